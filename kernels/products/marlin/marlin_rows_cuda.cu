// Launches of the kernel of marlin_rows.cuh, and how the work is cut.
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/products/marlin/marlin_rows.cuh"

namespace fewbit::cuda {
namespace {

// What a product's time is made of, in times of a stage of four words by all of 16 warps (about 1 us of an H200):
// fitted to thousands of timed ways to cut fourteen shapes (docs/performance.md); only what differs between the ways
// counts.
struct RowsCosts {
  double stage, eight;        // a stage by all of 16 warps, and of 8
  double member, member_row;  // adding the sums of a chunk in a block: for every warp of its team; that for each row
  double run_row;             // reading x: a row of a run
  double slice, partial;      // leaving sums for other blocks: for each of them; for each chunk
  // where most products take another variant: its instructions must come, and then theirs again
  double once;
};
template <class V>
constexpr RowsCosts kRowsCosts{};
template <bool kZeros>
constexpr RowsCosts kRowsCosts<RowsVariant<1, 4, kZeros>> = {
    .stage = 1,
    .eight = 1.12,
    .member = .72,
    .member_row = .13,
    .run_row = 0,
    .slice = 1.63,
    .partial = .53,
    .once = 0,
};
template <bool kZeros>
constexpr RowsCosts kRowsCosts<RowsVariant<2, 4, kZeros>> = {
    .stage = 1,
    .eight = 9,
    .member = 0,
    .member_row = .052,
    .run_row = .061,
    .slice = .251,
    .partial = .505,
    .once = 5.63,
};
template <bool kZeros>
constexpr RowsCosts kRowsCosts<RowsVariant<2, 2, kZeros>> = {
    .stage = 1.221,
    .eight = .747,
    .member = 0,
    .member_row = .12,
    .run_row = .03,
    .slice = .436,
    .partial = .279,
    .once = 0,
};

// Bytes of sums from which on it is slower to take them as they come than to meet: whoever looks for them and empties
// their place moves them too.
constexpr size_t kMostMail = size_t{4} << 20;

// A way to cut a product, as the kernel's variant counts: `parts` blocks of `warps` warps share the chunks, `slices`
// blocks the k of each.
template <class V>
struct RowsCut {
  int runs, chunks, rows;
  int warps, slices, parts;

  int most_runs() const { return (runs + slices - 1) / slices; }
  int most_chunks() const { return (chunks + parts - 1) / parts; }
  size_t partial_bytes() const { return sizeof(float) * slices * V::kTokens * chunks * V::kOutputs; }
  int letters() const {  // as RowsJob has it
    if (slices == 1 || partial_bytes() >= kMostMail) return 0;
    const int quads = most_chunks() * RowsQuad<V>::kOfChunk, takers = slices * 32 * warps;
    return quads <= takers ? 1 : quads <= kMostLetters * takers && slices <= kFewSlices ? kMostLetters : 0;
  }
  size_t shared_bytes() const { return V::shared_bytes(warps, most_runs(), rows, letters()); }
};
template <class V>
RowsCut<V> cut_of(const StreamJob& product, int warps, int slices, int sms) {
  const int runs = (product.in / marlin::kTileK + kWarpTiles - 1) / kWarpTiles,
            chunks = product.chunks * (marlin::kTileN / V::kOutputs);
  return {runs, chunks, product.rows, warps, slices, std::min(chunks, sms / slices)};
}
template <class V>
struct RowsPlan {
  RowsCut<V> cut{};
  int team = 0;  // warps that have a chunk together; 0: there is no way
  double time = std::numeric_limits<double>::infinity();
};
size_t room_of(const CudaState& s) { return s.max_shared() - kStaticShared; }

// Of the ways whose blocks are resident together the one that is quickest, by these costs, for the busiest block.
template <class V>
RowsPlan<V> plan_rows(const CudaState& s, const StreamJob& product) {
  constexpr RowsCosts of = kRowsCosts<V>;
  RowsPlan<V> best;
  for (const int warps : {16, 8}) {
    for (int slices = 1; slices <= s.sms(); ++slices) {
      const RowsCut<V> cut = cut_of<V>(product, warps, slices, s.sms());
      if (slices > cut.runs) break;
      const int most = cut.most_runs(), mine = cut.most_chunks();
      if (most > V::kMostRuns || cut.shared_bytes() > room_of(s)) continue;
      for (int team = 1; team <= warps && team <= cut.runs / slices; team *= 2) {
        const int teams = warps / team, rounds = (mine + teams - 1) / teams;
        double time = of.once + V::kHalves * rounds * ((most + team - 1) / team) * (warps == 8 ? of.eight : of.stage) +
                      rounds * team * (of.member + product.rows * of.member_row) + product.rows * most * of.run_row;
        if (slices > 1) time += slices * of.slice + mine * of.partial;
        if (time < best.time) best = {cut, team, time};
      }
    }
  }
  return best;
}

template <class V>
bool launch(CudaState& s, const StreamJob& product, const RowsPlan<V>& plan) {
  if (plan.team == 0) return false;
  const RowsCut<V>& cut = plan.cut;
  RowsJob job{};
  static_cast<StreamJob&>(job) = product;
  constexpr int kOfRun = marlin::kTileN / V::kOutputs;
  job.chunks = cut.chunks;
  for (StreamWeight& weight : job.weights) weight.end_chunk *= kOfRun;
  job.passes = 1;
  job.slices = cut.slices;
  job.parts = cut.parts;
  job.team_shift = std::countr_zero(static_cast<unsigned>(plan.team));
  job.least_runs = cut.runs / cut.slices;
  job.longer = cut.runs % cut.slices;
  job.least_chunks = cut.chunks / cut.parts;
  job.longer_parts = cut.chunks % cut.parts;
  job.x_stride = V::x_stride(cut.most_runs());
  job.letters = cut.letters();
  if (job.letters > 0)
    job.partials = static_cast<float*>(s.mailbox(cut.partial_bytes()));
  else if (job.slices > 1)
    set_meeting<V::kTokens>(s, job, job.rows, 32 * cut.warps, V::kOutputs);
  // More than half of a multiprocessor's shared memory: two blocks on one would hold up the rest.
  const size_t shared = std::max(cut.shared_bytes(), room_of(s) / 2 + 1);
  auto* kernel = marlin_rows_kernel<V>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  launch_overlapping(s, kernel, dim3(job.slices, job.parts), dim3(32 * cut.warps), shared, job);
  return true;
}

template <bool kZeros>
bool launch_planned(CudaState& s, const StreamJob& product) {
  using Eight = RowsVariant<1, 4, kZeros>;
  using Wide = RowsVariant<2, 4, kZeros>;
  using Narrow = RowsVariant<2, 2, kZeros>;
  if (product.rows <= Eight::kTokens) return launch(s, product, plan_rows<Eight>(s, product));
  const auto wide = plan_rows<Wide>(s, product);
  const auto narrow = plan_rows<Narrow>(s, product);
  return wide.time < narrow.time ? launch(s, product, wide) : launch(s, product, narrow);
}

}  // namespace

bool marlin_rows(CudaState& s, StreamJob job) {
  constexpr int kTogether = 16;
  const bool zeros = job.weights[0].w.z != nullptr;
  for (int left = job.rows; left > 0; left -= kTogether) {
    job.rows = std::min(left, kTogether);
    if (!(zeros ? launch_planned<true>(s, job) : launch_planned<false>(s, job))) return false;
    job.x += static_cast<int64_t>(kTogether) * job.in;
    for (StreamWeight& weight : job.weights)
      weight.y = static_cast<char*>(weight.y) + static_cast<int64_t>(kTogether) * weight.w.out * (job.y_f32 ? 4 : 2);
  }
  return true;
}

}  // namespace fewbit::cuda
