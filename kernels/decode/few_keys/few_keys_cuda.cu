// Which calls of append_attention() are one launch over a cache of bf16.
#include "kernels/attention/attention_launch.cuh"
#include "kernels/decode/few_keys/few_keys.cuh"
#include "kernels/decode/few_keys/step_kernel.cuh"

namespace fewbit::cuda::few_keys {
namespace {

using Bf16 = __nv_bfloat16;

// Keys in sight of a token: of 8 kv heads 572 were measured to pay, and 32,000 that are brought while a product runs
// stand in its way. Keys of a block: two rounds of its warps with heads of up to 128 values, which it brings early.
constexpr int64_t kMostKeys = 1024, kMostKeysOfBlock = 128;

// Null where there is no norm.
const Bf16* norm_of(ConstTensorView weight, int64_t d) {
  if (!weight.data) return nullptr;
  FEWBIT_ASSERT(weight.dtype == DType::bf16 && weight.numel() == d);
  return weight.as<Bf16>();
}

struct Call {
  TensorView q;
  ConstTensorView k, v;
  const HeadNorms& norms;
  const RopeTable& rope;
  const KvCache& cache;
  const AttentionArgs& args;
};

bool aligned(ConstTensorView v) { return !v.data || aligned16(v.as<Bf16>()); }

// Whether the kernel takes a call whose attention, of one new token a sequence, is `a`.
template <class Source>
bool takes(CudaState& s, const Call& c, const Source& a) {
  return c.rope.inv_freq.numel() > 0 && !c.rope.hadamard && !c.args.turn_back && a.chunk == 0 &&
         a.heads / a.kv_heads <= 8 && aligned(c.k) && aligned(c.v) && aligned(c.norms.q) && aligned(c.norms.k) &&
         choose_kernel(problem_of(a, true), s.traits()).kernel == Kernel::attention_decode;
}

// False, and nothing launched, where there are too many keys or blocks for it to pay.
template <class S>
bool launch(CudaState& s, const Call& c, const typename S::Source& a, const CachePlace& place, int splits) {
  const int64_t keys = a.window > 0 ? std::min(a.keys, a.window) : a.keys;
  if (keys > kMostKeys) return false;
  Job job = job_of<S>(s, a, splits);
  job.behind_append = true;  // the position that is read first is the one that counts
  const int64_t tiles = static_cast<int64_t>(a.kv_heads) * job.row_tiles * a.seqs;
  if (keys > kMostKeysOfBlock * job.splits || tiles * job.splits > s.sms()) return false;
  const NewRows rows{.k = c.k.as<Bf16>(),
                     .v = c.v.as<Bf16>(),
                     .k_cache = c.cache.k.as<Bf16>(),
                     .v_cache = c.cache.v.as<Bf16>(),
                     .inv_freq = c.rope.inv_freq.as<float>(),
                     .half = static_cast<int>(c.rope.inv_freq.numel()),
                     .rope_scale = c.rope.attention_scale,
                     .q_norm = norm_of(c.norms.q, a.d),
                     .k_norm = norm_of(c.norms.k, a.d),
                     .eps = c.norms.eps,
                     .offset = c.norms.offset,
                     .place = place,
                     .settled = s.recording};
  launch_job<S>(s, step_kernel<S>, a, job, rows);
  return true;
}

template <class Source>
bool run(CudaState& s, const Call& c, const Source& a, const CachePlace& place, int splits) {
  constexpr bool kPages = std::is_same_v<Source, PagedSource<Bf16>>;
  if (!takes(s, c, a)) return false;
  FEWBIT_ASSERT(c.rope.inv_freq.dtype == DType::f32 && 2 * c.rope.inv_freq.numel() <= a.d);
  bool launched = false;
  dispatch_head_dim<Bf16>(
      a.d, [&](auto dim) { launched = launch<StepConfig<decltype(dim)::value, kPages>>(s, c, a, place, splits); });
  return launched;
}

// Whether the operands have the types and shapes of one new token a sequence over a cache of bf16.
bool is_step(const Call& c, int64_t seqs) {
  return c.q.dtype == DType::bf16 && c.k.dtype == DType::bf16 && c.v.dtype == DType::bf16 &&
         c.cache.k.dtype == DType::bf16 && c.q.rows() == seqs && seqs > 0 && c.k.rows() == seqs &&
         c.k.shape == c.v.shape && c.k.cols() == c.args.kv_heads * c.args.head_dim;
}

}  // namespace

bool append_attention(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                      const HeadNorms& norms, const RopeTable& rope, const KvCache& cache, const AttentionArgs& args,
                      TensorView out) {
  const Shape& shape = cache.k.shape;
  const Call call{q, k, v, norms, rope, cache, args};
  if (!is_step(call, shape[0])) return false;
  FEWBIT_ASSERT(consistent(cache, q.dtype) && shape[1] == args.kv_heads && head_dim_of(cache) == args.head_dim);
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == q.rows());
  AttentionSource<Bf16> a{};
  set_queries(a, q, args, shape[0], out);
  set_cache(a, cache, positions, shape[2], shape[2]);
  return run(ex.cuda_state(), call, a, {.len = 1, .capacity = shape[2]}, 0);
}

bool append_attention_paged(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows& rows,
                            const HeadNorms& norms, const RopeTable& rope, const KvCache& cache,
                            const AttentionArgs& args, TensorView out) {
  const Call call{q, k, v, norms, rope, cache, args};
  const bool steps =
      !rows.runs.empty() && std::ranges::all_of(rows.runs, [](const RowRun& r) { return r.end == r.begin + 1; });
  if (!steps || !is_step(call, q.rows()) || q.rows() >= 65536) return false;
  FEWBIT_ASSERT(consistent(cache, q.dtype) && cache.k.shape[1] == args.kv_heads && head_dim_of(cache) == args.head_dim);
  const CachePlace place = place_of(rows, cache, q.rows());
  PagedSource<Bf16> a{};
  set_queries(a, q, args, q.rows(), out);
  set_cache(a, cache, rows.positions, kPagePositions, place.blocks * kPagePositions);
  a.table_of = place.table_of, a.tables = place.tables, a.blocks = place.blocks;
  return run(ex.cuda_state(), call, a, place, static_cast<int>(rows.splits));
}

}  // namespace fewbit::cuda::few_keys
