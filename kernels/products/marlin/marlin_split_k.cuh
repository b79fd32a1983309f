#pragma once
// Split-K for few rows of x: the job of a launch, and how the partial sums of its blocks become outputs. Shared by
// marlin_stream.cuh and marlin_rows.cuh.
//
// The outputs of all linears of a launch are counted through in chunks of 64 (marlin_rows.cuh also knows chunks of 32).
// The grid has `splits` blocks along k times `n_blocks` along the chunks. Block n of the latter has the chunks
// n, n + n_blocks, n + 2 n_blocks, ... ; the blocks with the same n and different splits each leave partial sums of
// these chunks in device memory, and one of them or all together add them, always in the order of k.
#include "kernels/device/grid_barrier.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/products/marlin/marlin_tile.cuh"

namespace fewbit::cuda::marlin_split_k {

constexpr int kWeights = 3;                      // linears of one input in one launch
constexpr int kWarpTiles = 8;                    // k-tiles that a warp takes at a time: 128 values, the largest group
constexpr int kChunkQuads = marlin::kTileN / 4;  // quads (four neighbouring outputs, a float4) of a chunk of 64
constexpr size_t kStaticShared = 512;            // bytes, at most, of shared memory that is not dynamic

struct Weight {
  MarlinSource w;
  const __nv_bfloat16* bias;  // [out] or null
  void* y;                    // [rows, out]
  bool add;                   // y += the product
  int end_chunk;              // one past its last chunk, counted over all weights
};
struct Job {
  Weight weights[kWeights];  // alike in bits, `in`, group, and whether there are zero points
  const __nv_bfloat16* x;    // [rows, in]
  int rows, in;
  bool y_f32;
  int group_shift;       // log2 of the k-tiles of a group
  int chunks;            // of all weights
  int splits, n_blocks;  // blocks along k; blocks along the chunks
  int passes;            // over the weights, each for kTokens rows
  int batch_shift;       // log2 of the chunks of a batch: their sums wait together in shared memory to be added
  bool merge_together;   // all blocks with the same chunks add the partial sums, not only the last one to arrive
  float* partials;       // [passes, chunks, splits, kTokens, 64]
  uint32_t* counters;    // [passes * n_blocks, 2], zero between launches
};

__device__ __forceinline__ int first_chunk_of(const Job& job, int weight) {
  return weight == 0 ? 0 : job.weights[weight - 1].end_chunk;
}

__device__ __forceinline__ void add_quad(float4& a, float4 b) {
  a.x += b.x;
  a.y += b.y;
  a.z += b.z;
  a.w += b.w;
}

// Where four neighbouring outputs of one row go. It is worked out ahead of the sums where that is possible, and store()
// is kept short: every launch ends with it.
struct OutputQuad {
  int weight, col;  // col: the first output, counted within the weight
  int64_t at;       // its index in y

  OutputQuad() = default;
  __device__ __forceinline__ OutputQuad(int weight, int col, int64_t at) : weight(weight), col(col), at(at) {}
  __device__ __forceinline__ OutputQuad(const Job& job, int chunk, int quad, int row) : weight(0) {
    while (chunk >= job.weights[weight].end_chunk) ++weight;
    col = (chunk - first_chunk_of(job, weight)) * marlin::kTileN + 4 * quad;
    at = static_cast<int64_t>(row) * job.weights[weight].w.out + col;
  }
  // y = v times the scale of a group that spans the row, plus the bias or what y was.
  __device__ __forceinline__ void store(const Job& job, float4 v) const {
    const Weight& of = job.weights[weight];
    if (!of.w.grouped()) {
      float* out[4] = {&v.x, &v.y, &v.z, &v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) *out[k] *= __half2float(of.w.s[marlin::scale_column(col + k, false)]);
    }
    if (of.bias) {
      const __nv_bfloat16* bias = of.bias + col;
      add_quad(v, {__bfloat162float(bias[0]), __bfloat162float(bias[1]), __bfloat162float(bias[2]),
                   __bfloat162float(bias[3])});
    }
    if (job.y_f32) {
      auto* y = reinterpret_cast<float4*>(static_cast<float*>(of.y) + at);
      if (of.add) add_quad(v, *y);
      *y = v;
    } else {
      auto* y = reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(of.y) + at);
      if (of.add) {
        const uint2 before = *y;
        add_quad(v, {__uint_as_float(before.x << 16), __uint_as_float(before.x & 0xffff0000u),
                     __uint_as_float(before.y << 16), __uint_as_float(before.y & 0xffff0000u)});
      }
      *y = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
    }
  }
};

// Stores a quad of partial sums into the L2, marked to stay there: the weights that pass through would otherwise drive
// it out to memory before it is read.
__device__ __forceinline__ void store_partial(float4* to, float4 v) {
  uint64_t keep;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w), "l"(keep)
               : "memory");
}

// Called by all threads of a block once it has stored the partial sums of its split: turns those of all splits into
// outputs. Either all `mergers` blocks with the same chunks wait for each other at a grid barrier and then call
// add(rank, mergers), each for its `rank`-th part, or the last one to arrive does so alone. prepare(rank, mergers) is
// called before the wait, to hide in it what can be worked out early.
template <class Prepare, class Add>
__device__ __forceinline__ void merge_splits(const Job& job, int pass, int n_block, int split, const Prepare& prepare,
                                             const Add& add) {
  __shared__ bool last;
  uint32_t* counter = job.counters + 2 * (pass * job.n_blocks + n_block);
  const bool all = job.merge_together;
  __syncthreads();  // whoever sees the arrival counted sees what this block stored before
  if (threadIdx.x == 0) {
    if (all)
      count_arrival(counter);
    else
      last = arrives_last(counter, job.splits);
  }
  const int rank = all ? split : 0, mergers = all ? job.splits : 1;
  prepare(rank, mergers);
  if (all && threadIdx.x == 0) await_count(counter, job.splits);
  __syncthreads();
  if (!all && !last) return;
  add(rank, mergers);
  if (all) leave_barrier(counter, job.splits);
}

// Sets the job's scratch memory and counters for partial sums of `rows` rows (of a pass) in chunks of `outputs`, and
// whether one block or all add them: one alone where each of its threads then has at most kMostQuadsAlone quads to
// read, which takes less time than another trip to the counter.
template <int kTokens>
void set_up_merge(CudaState& s, Job& job, int rows, int threads, int outputs = marlin::kTileN) {
  constexpr int kMostQuadsAlone = 4;
  FEWBIT_ASSERT(2 * job.passes * job.n_blocks <= CudaState::kCounters);
  job.counters = s.counters;
  job.partials = s.scratch_of<float>(static_cast<int64_t>(job.passes) * job.splits * kTokens * job.chunks * outputs);
  const int most = (job.chunks + job.n_blocks - 1) / job.n_blocks;
  job.merge_together = most * rows * (outputs / 4) * job.splits > kMostQuadsAlone * threads;
}

}  // namespace fewbit::cuda::marlin_split_k

namespace fewbit::cuda::marlin_rows {

// The product of marlin_rows.cuh (4 bits, groups of 128 values and more), in launches of up to 16 rows. False where no
// way to cut it keeps all blocks of a launch resident.
bool try_launch(CudaState& s, marlin_split_k::Job job);

}  // namespace fewbit::cuda::marlin_rows
