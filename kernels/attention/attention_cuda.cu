// Launches one of four kernels, or widens a cache of 4 bits first, as kernels/choice/kernel_choice.h says.
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_decode.cuh"
#include "kernels/attention/attention_flash.cuh"
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_plain.cuh"
#include "kernels/attention/attention_wide.cuh"
#include "kernels/model/hadamard.h"

namespace fewbit::cuda {
namespace {

// Keys and values of 4 bits as a bf16 cache in scratch memory, `a` over it; which of them are in sight the host does
// not know.
AttentionSource<__nv_bfloat16> widened(CudaState& s, const AttentionSource<__nv_bfloat16, I4Codes>& a) {
  const int64_t rows = static_cast<int64_t>(a.seqs) * a.kv_heads * a.keys, values = rows * a.d;
  __nv_bfloat16* room = s.scratch_of<__nv_bfloat16>(2 * (values + 8));
  __nv_bfloat16 *k = room, *v = room + (values + 7) / 8 * 8;
  const auto widen = [&](const I4Codes* codes, const float* scales, __nv_bfloat16* to) {
    const auto blocks =
        static_cast<unsigned>((values / 2 + nibble_rows::kWidenThreads - 1) / nibble_rows::kWidenThreads);
    nibble_rows::widen_kernel<nibble_rows::kWidenThreads><<<blocks, nibble_rows::kWidenThreads, 0, s.stream>>>(
        codes, reinterpret_cast<const uint32_t*>(scales), reinterpret_cast<__nv_bfloat162*>(to), values / 2, a.d / 2,
        static_cast<int>(int4_groups(a.d)));
    FEWBIT_CUDA_LAUNCHED();
  };
  widen(a.k, a.k_scales, k);
  widen(a.v, a.v_scales, v);
  AttentionSource<__nv_bfloat16> wide{};
  wide.q = a.q, wide.k = k, wide.v = v, wide.positions = a.positions, wide.out = a.out;
  wide.seqs = a.seqs, wide.len = a.len, wide.heads = a.heads, wide.kv_heads = a.kv_heads, wide.d = a.d;
  wide.kv_token = a.d, wide.kv_head = static_cast<int64_t>(a.keys) * a.d, wide.kv_seq = a.kv_heads * wide.kv_head;
  wide.keys = a.keys, wide.window = a.window, wide.scale = a.scale, wide.softcap = a.softcap;
  wide.sinks = a.sinks, wide.chunk = a.chunk, wide.turn_back = a.turn_back;
  return wide;
}

// Returns whether the output is turned back already where that is asked.
template <class T, class C>
bool run(CudaState& s, const AttentionSource<T, C>& a, bool over_cache, bool behind_append = false) {
  Kernel kernel = a.chunk > 0 ? Kernel::attention_plain : choose_kernel(problem_of(a, over_cache), s.traits()).kernel;
  if (a.sinks && kernel != Kernel::attention_decode) kernel = Kernel::attention_plain;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (!kIsCode<C>)
      if (kernel == Kernel::attention_wide) {
        a.d == 64 ? attention_wide::launch<64>(s, a) : attention_wide::launch<128>(s, a);
        return false;
      }
    if constexpr (kGroupScales<C>) {
      // Not split along the keys: the scratch memory is taken.
      if (kernel == Kernel::attention_widened) return run(s, widened(s, a), false);
    }
    if (kernel != Kernel::attention_plain) {
      bool turned = false;
      dispatch_head_dim<C>(a.d, [&](auto dim) {
        if (kernel == Kernel::attention_decode)
          turned = attention_decode::launch<decltype(dim)::value>(s, a, behind_append);
        else if constexpr (!kGroupScales<C>)
          attention_flash::launch<decltype(dim)::value>(s, a);
      });
      return turned;
    }
  }
  attention_plain::launch(s, a);
  return false;
}

}  // namespace

void attention(Exec& ex, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs,
               const AttentionArgs& args, TensorView out) {
  if (q.numel() == 0) return;
  FEWBIT_ASSERT(k.dtype == q.dtype && v.dtype == q.dtype && k.shape == v.shape && k.rows() == q.rows());
  FEWBIT_ASSERT(k.cols() == args.kv_heads * args.head_dim);
  dispatch_f32_bf16(q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    AttentionSource<T> a{};
    set_queries(a, q, args, seqs, out);
    a.k = k.as<T>();
    a.v = v.as<T>();
    a.keys = a.len;
    a.kv_token = k.cols();
    a.kv_head = args.head_dim;
    a.kv_seq = a.len * a.kv_token;
    if (a.keys <= a.chunk) a.chunk = 0;
    run(ex.cuda_state(), a, false);
  });
}

void attention_cached(Exec& ex, ConstTensorView q, ConstTensorView positions, const KvCache& cache,
                      const AttentionArgs& args, TensorView out) {
  const Shape& shape = cache.k.shape;
  FEWBIT_ASSERT(consistent(cache, q.dtype) && shape[1] == args.kv_heads && head_dim_of(cache) == args.head_dim);
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == q.rows());
  if (q.numel() == 0) return;
  bool turned = false;
  dispatch_cache(q.dtype, cache.k.dtype, [&](auto type, auto code) {
    using T = typename decltype(type)::type;
    using C = typename decltype(code)::type;
    AttentionSource<T, C> a{};
    set_queries(a, q, args, shape[0], out);
    a.turn_back = args.turn_back;
    set_cache(a, cache, positions, shape[2], shape[2]);
    turned = run(ex.cuda_state(), a, true, args.behind_append);
  });
  if (args.turn_back && !turned) cuda::hadamard(ex, out, out.row_range(0, 0), args.head_dim);
}

}  // namespace fewbit::cuda
