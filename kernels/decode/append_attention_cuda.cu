// One launch where append_attention.cuh has it, else two ops of which the second begins before the first has ended.
#include "kernels/attention/attention_launch.cuh"
#include "kernels/decode/append_attention.cuh"
#include "kernels/decode/append_attention.h"
#include "kernels/decode/few_keys/few_keys.cuh"
#include "kernels/model/hadamard.h"

namespace fewbit::cuda {
namespace {

bool takes(ConstTensorView q, ConstTensorView k, ConstTensorView v, const RopeTable& table, const KvCache& cache,
           const AttentionArgs& args) {
  const int64_t d = args.head_dim;
  return q.dtype == DType::bf16 && k.dtype == DType::bf16 && cache.k.dtype == DType::u8 &&
         q.rows() == cache.k.shape[0] && args.heads <= 8 * args.kv_heads && d == 128 &&
         2 * table.inv_freq.numel() <= d && aligned16(k.as<__nv_bfloat16>()) && aligned16(v.as<__nv_bfloat16>());
}

// The copy engine brings the keys of heads of 128 where there is one that can. A box begins at a multiple of 16 bytes,
// which are the words of two keys: heads of an odd number of positions would begin between them.
bool by_boxes(const CudaState& s, const KvCache& cache) {
  const int64_t words = cache.k_scales.numel() / 2;
  return s.sm90() && tensor_map_encoder() && cache.k.shape[2] % 2 == 0 && words < (int64_t{1} << 31) &&
         aligned16(static_cast<const float*>(cache.k_scales.data)) &&
         aligned16(static_cast<const float*>(cache.v_scales.data));
}

bool run(CudaState& s, const AttentionSource<__nv_bfloat16, I4Codes>& a, const append_decode::Fresh& fresh,
         bool boxes) {
  using namespace append_decode;
  if (!boxes) return launch<PieceConfig>(s, a, fresh);
  return a.heads <= 4 * a.kv_heads ? launch<ByteConfig>(s, a, fresh) : launch<BoxConfig>(s, a, fresh);
}

}  // namespace

void append_attention(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                      const HeadNorms& norms, const RopeTable& table, const KvCache& cache, const AttentionArgs& args,
                      TensorView out) {
  using T = __nv_bfloat16;
  const int64_t seqs = cache.k.shape[0], d = args.head_dim;
  AttentionSource<T, I4Codes> a{};
  if (takes(q, k, v, table, cache, args) && q.numel() > 0) {
    FEWBIT_ASSERT(consistent(cache, q.dtype) && v.dtype == k.dtype && k.shape == v.shape && k.rows() == seqs);
    FEWBIT_ASSERT(cache.k.shape[1] == args.kv_heads && head_dim_of(cache) == d && k.cols() == args.kv_heads * d);
    FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == seqs && table.inv_freq.dtype == DType::f32);
    FEWBIT_ASSERT(table.hadamard || !table.turn_values);
    set_queries(a, q, args, seqs, out);
    a.turn_back = args.turn_back;
    set_cache(a, cache, positions, cache.k.shape[2], cache.k.shape[2]);
    const KernelProblem problem = problem_of(a, true);
    CudaState& s = ex.cuda_state();
    if (a.chunk == 0 && choose_kernel(problem, s.traits()).kernel == Kernel::attention_decode) {
      const append_decode::Fresh fresh{.k = k.as<T>(),
                                       .v = v.as<T>(),
                                       .inv_freq = table.inv_freq.as<float>(),
                                       .k_cache = cache.k.as<I4Codes>(),
                                       .v_cache = cache.v.as<I4Codes>(),
                                       .k_scales = static_cast<float*>(cache.k_scales.data),
                                       .v_scales = static_cast<float*>(cache.v_scales.data),
                                       .norms = norms_of<T>(norms, q, k, d),
                                       .head = head_sizes(table, d)};
      const bool turned = run(s, a, fresh, by_boxes(s, cache));
      if (args.turn_back && !turned) cuda::hadamard(ex, out, out.row_range(0, 0), d);
      return;
    }
  }
  if (q.numel() > 0 && few_keys::append_attention(ex, q, k, v, positions, norms, table, cache, args, out)) return;
  cuda::rope_append(ex, q, k, v, positions, norms, table, cache);
  AttentionArgs behind = args;
  behind.behind_append = true;
  cuda::attention_cached(ex, q, positions, cache, behind, out);
}

void append_attention_paged(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows& rows,
                            const HeadNorms& norms, const RopeTable& table, const KvCache& cache,
                            const AttentionArgs& args, TensorView out) {
  if (q.numel() > 0 && few_keys::append_attention_paged(ex, q, k, v, rows, norms, table, cache, args, out)) return;
  cuda::rope_append_paged(ex, q, k, v, rows, norms, table, cache);
  AttentionArgs behind = args;
  behind.behind_append = true;
  cuda::attention_paged(ex, q, rows, cache, behind, out);
}

}  // namespace fewbit::cuda
