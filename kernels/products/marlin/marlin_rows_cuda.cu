// Launches of the kernel of marlin_rows.cuh: which variant, and how the work is cut.
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/products/marlin/marlin_rows.cuh"

namespace fewbit::cuda::marlin_rows {
namespace {

// A model of a product's time, in units of the time in which all of 16 warps take one stage of four words (about 1 us
// on an H200). The numbers were fitted to thousands of timed ways to cut fourteen shapes; only what differs between the
// ways to cut one product counts.
struct Costs {
  double stage, eight;        // a stage by all of 16 warps, and by all of 8
  double member, member_row;  // adding the sums of a chunk within a block: for each warp of its team; and for each row
  double run_row;             // reading x: for each row of a run
  double split, partial;      // storing partial sums: for each split; for each chunk
  double once;                // where most products take another variant: fetching this one's instructions, then theirs
};
template <class V>
constexpr Costs kCosts{};
template <bool kZeros>
constexpr Costs kCosts<Variant<1, 4, kZeros>> = {
    .stage = 1,
    .eight = 1.12,
    .member = .72,
    .member_row = .13,
    .run_row = 0,
    .split = 1.63,
    .partial = .53,
    .once = 0,
};
template <bool kZeros>
constexpr Costs kCosts<Variant<2, 4, kZeros>> = {
    .stage = 1,
    .eight = 9,
    .member = 0,
    .member_row = .052,
    .run_row = .061,
    .split = .251,
    .partial = .505,
    .once = 5.63,
};
template <bool kZeros>
constexpr Costs kCosts<Variant<2, 2, kZeros>> = {
    .stage = 1.221,
    .eight = .747,
    .member = 0,
    .member_row = .12,
    .run_row = .03,
    .split = .436,
    .partial = .279,
    .once = 0,
};

// From so many bytes of partial sums on, an arrival counter is faster than flagged partials, for which the reader moves
// all sums twice: to read them, and to make their words unwritten again.
constexpr size_t kMostFlaggedBytes = size_t{4} << 20;

// A way to cut a product: `n_blocks` blocks of `warps` warps share the chunks, `splits` blocks the k of each. `runs`
// (of 128 values of k) and `chunks` are those of the product; how large a chunk is depends on V.
template <class V>
struct Cut {
  int runs, chunks, rows;
  int warps, splits, n_blocks;

  int most_runs() const { return (runs + splits - 1) / splits; }
  int most_chunks() const { return (chunks + n_blocks - 1) / n_blocks; }
  size_t partial_bytes() const { return sizeof(float) * splits * V::kTokens * chunks * V::kOutputs; }
  int flagged_quads() const {  // as in Job
    if (splits == 1 || partial_bytes() >= kMostFlaggedBytes) return 0;
    const int quads = most_chunks() * QuadOf<V>::kOfChunk, threads = splits * 32 * warps;
    return quads <= threads ? 1 : quads <= kMostFlaggedQuads * threads && splits <= kFewSplits ? kMostFlaggedQuads : 0;
  }
  size_t shared_bytes() const { return V::shared_bytes(warps, most_runs(), rows, flagged_quads()); }
};
template <class V>
Cut<V> cut_of(const marlin_split_k::Job& product, int warps, int splits, int sms) {
  const int runs = (product.in / marlin::kTileK + kWarpTiles - 1) / kWarpTiles,
            chunks = product.chunks * (marlin::kTileN / V::kOutputs);
  return {runs, chunks, product.rows, warps, splits, std::min(chunks, sms / splits)};
}
template <class V>
struct Plan {
  Cut<V> cut{};
  int team = 0;  // warps that have a chunk together; 0: there is no way to cut the product
  double time = std::numeric_limits<double>::infinity();
};
size_t room_of(const CudaState& s) { return s.max_shared() - kStaticShared; }

// Of the ways whose blocks are all resident, the one that takes the busiest block the least time by these costs.
template <class V>
Plan<V> make_plan(const CudaState& s, const marlin_split_k::Job& product) {
  constexpr Costs of = kCosts<V>;
  Plan<V> best;
  for (const int warps : {16, 8}) {
    for (int splits = 1; splits <= s.sms(); ++splits) {
      const Cut<V> cut = cut_of<V>(product, warps, splits, s.sms());
      if (splits > cut.runs) break;
      const int most = cut.most_runs(), mine = cut.most_chunks();
      if (most > V::kMostRuns || cut.shared_bytes() > room_of(s)) continue;
      for (int team = 1; team <= warps && team <= cut.runs / splits; team *= 2) {
        const int teams = warps / team, rounds = (mine + teams - 1) / teams;
        double time = of.once + V::kHalves * rounds * ((most + team - 1) / team) * (warps == 8 ? of.eight : of.stage) +
                      rounds * team * (of.member + product.rows * of.member_row) + product.rows * most * of.run_row;
        if (splits > 1) time += splits * of.split + mine * of.partial;
        if (time < best.time) best = {cut, team, time};
      }
    }
  }
  return best;
}

template <class V>
bool launch(CudaState& s, const marlin_split_k::Job& product, const Plan<V>& plan) {
  if (plan.team == 0) return false;
  const Cut<V>& cut = plan.cut;
  Job job{};
  static_cast<marlin_split_k::Job&>(job) = product;
  constexpr int kOfRun = marlin::kTileN / V::kOutputs;
  job.chunks = cut.chunks;
  for (Weight& weight : job.weights) weight.end_chunk *= kOfRun;
  job.passes = 1;
  job.splits = cut.splits;
  job.n_blocks = cut.n_blocks;
  job.team_shift = std::countr_zero(static_cast<unsigned>(plan.team));
  job.least_runs = cut.runs / cut.splits;
  job.longer_splits = cut.runs % cut.splits;
  job.least_chunks = cut.chunks / cut.n_blocks;
  job.longer_n_blocks = cut.chunks % cut.n_blocks;
  job.x_stride = V::x_stride(cut.most_runs());
  job.flagged_quads = cut.flagged_quads();
  if (job.flagged_quads > 0)
    job.partials = static_cast<float*>(s.flagged_partials(cut.partial_bytes()));
  else if (job.splits > 1)
    set_up_merge<V::kTokens>(s, job, job.rows, 32 * cut.warps, V::kOutputs);
  // More than half of a multiprocessor's shared memory, so that each gets one block: two on one would hold up the rest.
  const size_t shared = std::max(cut.shared_bytes(), room_of(s) / 2 + 1);
  auto* kernel = marlin_rows_kernel<V>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  launch_overlapping(s, kernel, dim3(job.splits, job.n_blocks), dim3(32 * cut.warps), shared, job);
  return true;
}

// f(plan) with the quickest plan for a product of up to 16 rows; a plan without a team where there is no way to cut it.
template <bool kZeros, class F>
bool with_plan(const CudaState& s, const marlin_split_k::Job& product, F&& f) {
  using Eight = Variant<1, 4, kZeros>;
  using Wide = Variant<2, 4, kZeros>;
  using Narrow = Variant<2, 2, kZeros>;
  if (product.rows <= Eight::kTokens) return f(make_plan<Eight>(s, product));
  const auto wide = make_plan<Wide>(s, product);
  const auto narrow = make_plan<Narrow>(s, product);
  return wide.time < narrow.time ? f(wide) : f(narrow);
}

template <bool kZeros>
bool fits(const CudaState& s, marlin_split_k::Job product, int rows) {
  product.rows = rows;
  return with_plan<kZeros>(s, product, [](const auto& plan) { return plan.team > 0; });
}

template <bool kZeros>
bool launch_planned(CudaState& s, const marlin_split_k::Job& product) {
  return with_plan<kZeros>(s, product, [&](const auto& plan) { return launch(s, product, plan); });
}

}  // namespace

bool try_launch(CudaState& s, marlin_split_k::Job job) {
  constexpr int kTogether = 16;
  const bool zeros = job.weights[0].w.z != nullptr;
  // Before the first launch: what has been added to y cannot be taken back. A first launch that does not fit says so
  // itself.
  const int rest = job.rows % kTogether;
  if (job.rows > kTogether && rest > 0 && !(zeros ? fits<true>(s, job, rest) : fits<false>(s, job, rest))) return false;
  for (int left = job.rows; left > 0; left -= kTogether) {
    job.rows = std::min(left, kTogether);
    if (!(zeros ? launch_planned<true>(s, job) : launch_planned<false>(s, job))) return false;
    job.x += static_cast<int64_t>(kTogether) * job.in;
    for (Weight& weight : job.weights)
      weight.y = static_cast<char*>(weight.y) + static_cast<int64_t>(kTogether) * weight.w.out * (job.y_f32 ? 4 : 2);
  }
  return true;
}

}  // namespace fewbit::cuda::marlin_rows
