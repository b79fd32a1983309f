#pragma once
// How a warp of marlin_rows.cuh brings its weights into shared memory, and what the kernel is compiled for.
#include "kernels/products/marlin/marlin_rows_reduce.cuh"

namespace fewbit::cuda::marlin_rows {

// kColumns, 1 or 2: column operands of the tensor cores, each with eight rows of x. kWords: words that a lane has of a
// k-tile. With 4 a chunk is 64 outputs; with 2 it is half of that (QuadOf), so that a warp has half as many sums to
// hand over, but reads x twice as often, and device memory in pieces of 256 bytes.
template <int kColumns_, int kWords_, bool kZeros_>
struct Variant {
  static constexpr int kColumns = kColumns_, kTokens = 8 * kColumns, kWords = kWords_;
  static constexpr bool kZeros = kZeros_;
  static constexpr int kOutputs = 16 * kWords;   // of a chunk
  static constexpr int kTileLanes = 8 * kWords;  // lanes that copy, and later read, a k-tile of it
  // A stage of a warp's ring: the words of kTiles k-tiles and, in the first stage of a run, its scales and zero points.
  static constexpr int kTiles = 16 / kWords, kTileBytes = 128 * kWords, kHalves = kWarpTiles / kTiles;
  static constexpr int kScalesAt = kTiles * kTileBytes, kScaleBytes = 2 * kOutputs;
  static constexpr int kZerosAt = kScalesAt + kScaleBytes, kZeroBytes = kZeros ? kOutputs / 2 : 0;
  static constexpr int kStageBytes = (kZerosAt + kZeroBytes + 127) / 128 * 128;  // whole lines
  static constexpr int kStages = kColumns == 1 ? 4 : 3, kMaxWarps = 16;
  static constexpr int kMostRuns = 20;                        // of a split: 80 KiB of x for 16 rows
  static constexpr int kAtOnce = kWords == 2 ? kColumns : 1;  // columns whose sums a team adds at once
  static constexpr int kWarpQuads = kWords * kAtOnce * 32;    // quads of sums that a warp hands over at a time
  static constexpr int kRingBytes = kStages * kStageBytes;    // of a warp
  static constexpr int kWarpBytes = kRingBytes + 16 * kWarpQuads;
  static int x_stride(int runs) { return runs * kWarpTiles * marlin::kTileK * 2 + 16; }  // + 16 against bank conflicts
  static size_t shared_bytes(int warps, int runs, int rows, int flagged_quads) {
    return static_cast<size_t>(warps) * kWarpBytes + static_cast<size_t>(rows) * x_stride(runs) + runs * kTokens * 4 +
           size_t{16} * flagged_quads * 32 * warps;
  }
};

// Where a warp reads next; it visits (chunk, run of 128 values of its k, stage of the run) in order.
template <class V>
struct Loader {
  static constexpr int kStep = 32 / V::kTileLanes;  // k-tiles that a warp copies at once
  const Job& job;
  int first_run, runs;  // of the warp
  int chunk, step;      // the next chunk, and the distance from one to the next
  int lane;
  int run = 0;
  const uint32_t* at = nullptr;  // this lane's words of the next stage
  const char* group = nullptr;   // this lane's scales or zero points of `run`
  int row_words = 0;             // from k-tile to k-tile
  int left = 0;                  // k-tiles that exist from this lane's first of the next stage on
  bool copies_group;             // this lane copies scales or zero points

  __device__ __forceinline__ Loader(const Job& j, int first_run, int runs, int first_chunk, int step, int lane)
      : job(j),
        first_run(first_run),
        runs(runs),
        chunk(first_chunk),
        step(step),
        lane(lane),
        copies_group(lane < V::kScaleBytes / 16 ? grouped() : lane < (V::kScaleBytes + V::kZeroBytes) / 16) {
    seek();
  }
  __device__ __forceinline__ void seek() {
    if (chunk >= job.chunks) return;
    // An index, not a pointer: through a pointer the compiler would read the job by loads from memory, which queue
    // behind all words that were requested before.
    int i = 0;
    while (chunk >= job.weights[i].end_chunk) ++i;
    const int out = job.weights[i].w.out, local = chunk - first_chunk_of(job, i),
              tile = first_run * kWarpTiles + lane / V::kTileLanes;
    const int64_t first_group = grouped() ? first_run : 0;
    row_words = out * 2;
    left = static_cast<unsigned>(job.in) / marlin::kTileK - tile;
    at = job.weights[i].w.b + static_cast<int64_t>(tile) * row_words +
         (local * (V::kTileBytes / 4) + 4 * (lane % V::kTileLanes));
    group =
        copies_scales()
            ? reinterpret_cast<const char*>(job.weights[i].w.s + first_group * out + local * V::kOutputs) + 16 * lane
            : reinterpret_cast<const char*>(job.weights[i].w.z + first_group * (out / 8) + local * (V::kOutputs / 8)) +
                  (16 * lane - V::kScaleBytes);
  }
  __device__ __forceinline__ bool grouped() const { return job.weights[0].w.grouped(); }  // all are alike
  __device__ __forceinline__ bool copies_scales() const { return !V::kZeros || lane < V::kScaleBytes / 16; }
  // Copies the next stage, the kHalf-th of its run, to this lane's place of a slot.
  template <int kHalf>
  __device__ __forceinline__ void fetch(uint32_t to) {
    if (chunk < job.chunks) {
      if (left >= V::kTiles) {
#pragma unroll
        for (int i = 0; i < V::kTiles; i += kStep) cp_async16(to + i * V::kTileBytes, at + i * row_words);
      } else {
#pragma unroll
        for (int i = 0; i < V::kTiles; i += kStep)  // past the end: zeros, which meet zeros of x
          cp_async16(to + i * V::kTileBytes, i < left ? at + i * row_words : job.weights[0].w.b, i < left);
      }
      at += V::kTiles * row_words;
      left -= V::kTiles;
      if (kHalf == 0) {
        if (copies_group) cp_async16(to + V::kScalesAt, group);
        if (grouped()) group += copies_scales() ? row_words : row_words / 4;
      }
      if (kHalf == V::kHalves - 1 && ++run == runs) {
        run = 0;
        chunk += step;
        seek();
      }
    }
    cp_async_commit();
  }
};

}  // namespace fewbit::cuda::marlin_rows
