// Launches of the kernel of marlin_rows.cuh, and how the work is cut.
#include <algorithm>
#include <bit>

#include "kernels/marlin_rows.cuh"

namespace fewbit::cuda {
namespace {

// `parts` blocks share the chunks, `slices` blocks the k of each; teams of `team` warps have a chunk.
struct RowsPlan {
  int warps = 0, slices = 0, parts = 0, team = 0;
};

// What a block's time is made of, in times of half a run by all of 16 warps, for up to 8 rows and for more: fitted to thousands of
// timed ways to cut fourteen shapes on an H200 (docs/performance.md); only what differs between the ways counts.
struct RowsCosts {
  double eight;               // half a run by all of 8 warps
  double member, member_row;  // adding the sums of a chunk in a block: for every warp of its team; that for each row
  double uneven;              // a chunk whose runs the members do not share alike
  double run_row;             // reading x: a row of a run
  double split, slice;        // leaving sums for other blocks: at all; for each of them
  double partial;             // that for each chunk
};
constexpr RowsCosts kRowsCosts[] = {
    {.eight = 1.12, .member = .72, .member_row = .13, .uneven = 0, .run_row = 0, .split = 0, .slice = 1.63, .partial = .53},
    {.eight = .938, .member = 0, .member_row = .054, .uneven = 0, .run_row = .013, .split = 2.87, .slice = 1.06, .partial = .365}};

// Bytes of sums from which on it is slower to take them as they come than to meet: whoever looks for them and empties their place moves
// them too.
constexpr size_t kMostMail = size_t{4} << 20;

// Of the ways whose blocks are resident together the one that is quickest, by these costs, for the busiest block.
template <class V>
RowsPlan plan_rows(int sms, size_t room, int runs, int chunks, int rows) {
  const RowsCosts& of = kRowsCosts[V::kColumns - 1];
  RowsPlan best;
  double least = 0;
  for (int slices = 1; slices <= sms && slices <= runs; ++slices) {
    const int most = (runs + slices - 1) / slices, parts = std::min(chunks, sms / slices), mine = (chunks + parts - 1) / parts;
    if (most > V::kMostRuns) continue;
    for (const int warps : {16, 8}) {
      if (V::shared_bytes(warps, most, rows) > room) continue;
      for (int team = 1; team <= warps && team <= runs / slices; team *= 2) {
        const int teams = warps / team, rounds = (mine + teams - 1) / teams, stages = 2 * rounds * ((most + team - 1) / team);
        double cost = stages * (warps == 8 ? of.eight : 1) + rounds * team * (of.member + rows * of.member_row) +
                      (most % team != 0 ? rounds * of.uneven : 0) + rows * most * of.run_row;
        if (slices > 1) cost += of.split + slices * of.slice + mine * of.partial;
        if (best.warps > 0 && cost >= least) continue;
        best = {warps, slices, parts, team};
        least = cost;
      }
    }
  }
  return best;
}

template <class V>
bool launch(CudaState& s, const StreamJob& product) {
  RowsJob job{};
  static_cast<StreamJob&>(job) = product;
  const size_t room = s.max_shared() - kStaticShared;
  const int runs = (job.in / marlin::kTileK + kWarpTiles - 1) / kWarpTiles;
  const RowsPlan plan = plan_rows<V>(s.sms(), room, runs, job.chunks, job.rows);
  if (plan.warps == 0) return false;
  job.passes = 1;
  job.slices = plan.slices;
  job.parts = plan.parts;
  job.team_shift = std::countr_zero(static_cast<unsigned>(plan.team));
  job.least_runs = runs / plan.slices;
  job.longer = runs % plan.slices;
  const int most = job.least_runs + (job.longer > 0), most_chunks = (job.chunks + plan.parts - 1) / plan.parts;
  job.least_chunks = job.chunks / plan.parts;
  job.longer_parts = job.chunks % plan.parts;
  job.x_stride = V::x_stride(most);
  if (job.slices > 1) {
    const int quads = most_chunks * RowsQuad<V>::kOfChunk, takers = job.slices * 32 * plan.warps;
    const size_t bytes = sizeof(float) * job.slices * V::kTokens * job.chunks * marlin::kTileN;
    const bool two = quads <= kMostLetters * takers && job.slices <= kSlicesOfTwo;
    job.letters = bytes >= kMostMail ? 0 : quads <= takers ? 1 : two ? kMostLetters : 0;
    if (job.letters > 0)
      job.partials = static_cast<float*>(s.mailbox(bytes));
    else
      set_meeting<V::kTokens>(s, job, job.rows, 32 * plan.warps);
  }
  // More than half of a multiprocessor's shared memory: two blocks on one would hold up the rest.
  const size_t shared = std::max(V::shared_bytes(plan.warps, most, job.rows), room / 2 + 1);
  auto* kernel = marlin_rows_kernel<V>;
  FEWBIT_CUDA_CALL(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  launch_overlapping(s, kernel, dim3(job.slices, job.parts), dim3(32 * plan.warps), shared, job);
  return true;
}

}  // namespace

bool marlin_rows(CudaState& s, StreamJob job) {
  constexpr int kTogether = 16;
  const bool zeros = job.weights[0].w.z != nullptr;
  for (int left = job.rows; left > 0; left -= kTogether) {
    job.rows = std::min(left, kTogether);
    const bool launched = job.rows <= 8 ? zeros ? launch<RowsVariant<1, true>>(s, job) : launch<RowsVariant<1, false>>(s, job)
                                        : zeros ? launch<RowsVariant<2, true>>(s, job) : launch<RowsVariant<2, false>>(s, job);
    if (!launched) return false;
    job.x += static_cast<int64_t>(kTogether) * job.in;
    for (StreamWeight& weight : job.weights)
      weight.y = static_cast<char*>(weight.y) + static_cast<int64_t>(kTogether) * weight.w.out * (job.y_f32 ? 4 : 2);
  }
  return true;
}

}  // namespace fewbit::cuda
