#pragma once
// The kernel of y = x W^T for up to 16 rows of x, on weights [out, in] as a checkpoint stores them: bf16, E4M3 or int8,
// row-major. Reading the weights is all that costs time here, so everything serves one aim: keep reading them.
//
// - The grid is persistent: a block takes every gridDim.x-th tile of 16 outputs until none is left.
// - Split-K inside a block: each of its warps has a range of k for all tiles, and that range of x stays in shared
//   memory. Which range a warp has depends on `in` alone, and the warps' sums (f32; int32 for int8) are added in their
//   order: a row has the same bits among any number of rows.
// - The weight is the 16-row operand of the tensor-core product, 8 rows of x at a time are the other. A lane loads 16
//   bytes of a weight at once. A sum over k has no order, so these 8 (or 16) values may stand for any k of the
//   instruction, as long as both operands agree: a lane then reads from shared memory only what it copied there itself,
//   without barriers or bank conflicts, at some twenty instructions for a KiB.
// - Each warp is its own loader. Its ring of kStages asynchronous copies runs ahead across the tiles' borders and is
//   filled before the kernel before this one in the stream has ended (kernels/device/launch.cuh). Held in registers
//   instead, the weights under way would leave no room for the blocks of the next kernel.
// - Where x does not fit into shared memory, k is split once more, over launches: each leaves its sums for the next
//   (loads_sums, stores_sums of the Job). Reading the weights twice, each time for some of the rows, would cost far
//   more; but how a row is summed then depends on the number of rows.
// - Few values of x are normed and quantized by every block for itself: cheaper than a launch of its own that all
//   others wait for.
#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/products/bytes/held_row.cuh"
#include "kernels/products/skinny_formats.cuh"
#include "kernels/products/skinny_job.cuh"

namespace fewbit::cuda::skinny {

// Values of x that prepare_x() takes: 4 units of 8 a thread, which stay in registers.
inline constexpr int kMostPreparedValues = 16384;
inline constexpr int kStepBytes = kSkinnyStepBytes, kStageBytes = kSkinnyStageBytes;

// 16 bytes of a weight on their way to the lane's own place in the ring.
__device__ __forceinline__ void copy16_async(uint8_t* shared, const uint8_t* global) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// What is fixed when the kernel is compiled (chosen in skinny_cuda.cu).
template <class Format_, int kRowBlocks_, int kWarps_, int kStages_, int kBlocksPerSm_, int kSumBuffers_ = 2>
struct Variant {
  using Format = Format_;
  static constexpr int kRowBlocks = kRowBlocks_;  // of 8 rows of x
  static constexpr int kWarps = kWarps_, kThreads = 32 * kWarps;
  static constexpr int kStages = kStages_;  // of a warp's ring, all but one under way
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  // Buffers for the warps' sums of a tile: with two, one barrier a tile is enough.
  static constexpr int kSumBuffers = kSumBuffers_;
  static constexpr int kOuts = kSkinnyOuts, kSumStride = kSkinnySumStride;
};

// Bytes from row to row of x in shared memory.
template <class Format>
__host__ __device__ constexpr int x_pitch(int in) {
  return skinny_pitch(in, Format::kXBytes, Format::kBytes);
}

// Where a lane reads the weights next: walks over the tiles of its block and, in each, over the steps of its warp's
// range of k.
struct Loader {
  const Job& job;
  const uint8_t* low = nullptr;   // of output g = lane / 4 of the tile
  const uint8_t* high = nullptr;  // of output g + 8
  int row_bytes, at, steps;       // `at`: where this lane's range begins, in bytes of a row
  int tile, step = 0, which = 0;  // which: the weight that has the tile

  __device__ __forceinline__ Loader(const Job& j, int bytes, int begin, int count)
      : job(j), row_bytes(bytes), at(begin), steps(count), tile(blockIdx.x) {
    seek();
  }
  // To the beginning of the range in the rows of `tile`.
  __device__ __forceinline__ void seek() {
    if (tile >= job.tiles) return;
    while (tile >= job.weights[which].end_tile) ++which;
    const Weight& w = job.weights[which];
    const int o = (tile - (which == 0 ? 0 : job.weights[which - 1].end_tile)) * 16 + threadIdx.x % 32 / 4;
    low = w.w + static_cast<int64_t>(min(o, w.out - 1)) * row_bytes + at;  // past the last output: that one again
    high = w.w + static_cast<int64_t>(min(o + 8, w.out - 1)) * row_bytes + at;
  }
  // One step on its way to the lane's place in a stage: a group of copies of its own, empty past the last tile.
  __device__ __forceinline__ void fetch(uint8_t* stage) {
    next(stage);
    cp_async_commit();
  }
  __device__ __forceinline__ void next(uint8_t* stage) {
    if (tile >= job.tiles) return;
    copy16_async(stage, low);
    copy16_async(stage + 512, high);
    low += kStepBytes;
    high += kStepBytes;
    if (++step < steps) return;
    step = 0;
    tile += gridDim.x;
    seek();
  }
};

// Copies the range of `steps` steps from `first` on of all rows of x to its place in shared memory [rows, pitch]. One
// warp, the one that will read it.
template <class Format>
__device__ __forceinline__ void copy_range(const Job& job, uint8_t* to, int pitch, int first, int steps) {
  constexpr int kUnits = kStepBytes / 16, kWiden = Format::kXBytes / Format::kBytes;
  constexpr int kCodeWiden = Format::kCodeBytes / Format::kBytes;
  const int64_t row_bytes = static_cast<int64_t>(job.stride) * Format::kCodeBytes;
  for (int e = threadIdx.x % 32; e < job.rows * steps * kUnits; e += 32) {
    const int row = e / (steps * kUnits), byte = first * kStepBytes + e % (steps * kUnits) * 16;
    Format::copy(to + row * pitch + kWiden * byte,
                 static_cast<const uint8_t*>(job.x) + row * row_bytes + kCodeWiden * byte);
  }
  __syncwarp();
}

// The rows of x [rows, in] bf16, normed and quantized as the job says, to their place in shared memory [rows, pitch],
// and their scales. All threads of the block; ends with a barrier. rows * in <= kMostPreparedValues. The bits are those
// of rms_norm and quantize_rows.
template <class Format, int kThreads>
__device__ __forceinline__ void prepare_x(const Job& job, uint8_t* to, int pitch, float* scales) {
  constexpr int kUnits = kMostPreparedValues / (kHeldValues * kThreads);
  __shared__ float partial[32];
  for (int r = 0; r < job.rows; ++r) {
    const auto* x = static_cast<const __nv_bfloat16*>(job.x) + static_cast<int64_t>(r) * job.in;
    HeldUnit units[kUnits];
    const auto for_units = [&](auto&& f) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        if (const int c = kHeldValues * (threadIdx.x + u * kThreads); c < job.in) f(units[u], c, u);
    };
    for_units([&](auto& unit, int c, int) { unit = load_vec<__nv_bfloat16, kHeldValues>(x + c); });
    if (job.norm) norm_held_row(for_units, job.norm, job.in, job.norm_eps, job.norm_offset, partial);
    if constexpr (Format::kBytes == 2) {
      for_units([&](auto& unit, int c, int) { store_vec(reinterpret_cast<__nv_bfloat16*>(to + r * pitch) + c, unit); });
    } else {
      const float scale = Format::scale(largest_magnitude(for_units, partial), job.fixed), inverse = 1.f / scale;
      if (threadIdx.x == 0) scales[r] = scale;
      for_units([&](auto& unit, int c, int) {
        float scaled[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) scaled[i] = mul_rn(to_f32(unit[i]), inverse);
        Format::put(to + r * pitch + Format::kXBytes * c, scaled);
      });
    }
  }
  __syncthreads();
}

// One output of one row. All that its sum is combined with on the way to y is read before the sum is there: read(),
// then the barrier that the sums need, then store().
template <class Sum>
struct Output {
  Sum earlier;  // of the k split before
  float x_scale, scale, bias, before;
  int64_t at;
  // Which weight's it is; -1: not an output. A pointer to the weight would make the compiler read the job from memory.
  int of = -1;

  __device__ __forceinline__ void read(const Job& job, int tile, int row, int o, const float* x_scales) {
    if (row >= job.rows) return;
    int which = 0;
    while (tile >= job.weights[which].end_tile) ++which;
    const Weight& w = job.weights[which];
    o += (tile - (which == 0 ? 0 : job.weights[which - 1].end_tile)) * 16;
    if (o >= w.out) return;
    of = which;
    at = static_cast<int64_t>(row) * w.out + o;
    if (job.loads_sums) earlier = static_cast<const Sum*>(w.sums)[at];
    if (job.stores_sums) return;
    if (w.scales) {
      x_scale = x_scales[row];
      scale = w.scales[o];
    }
    if (w.bias) bias = __bfloat162float(w.bias[o]);
    if (w.add)
      before =
          job.y_f32 ? static_cast<const float*>(w.y)[at] : __bfloat162float(static_cast<const __nv_bfloat16*>(w.y)[at]);
  }
  __device__ __forceinline__ void store(const Job& job, Sum sum) const {
    const Weight& w = job.weights[of];
    if (job.loads_sums) sum += earlier;
    if (job.stores_sums) {
      static_cast<Sum*>(w.sums)[at] = sum;
      return;
    }
    float value = static_cast<float>(sum);
    if (w.scales) value = mul_rn(mul_rn(value, x_scale), scale);
    if (w.bias) value = add_rn(value, bias);
    if (w.add) value = add_rn(value, before);
    if (job.y_f32)
      static_cast<float*>(w.y)[at] = value;
    else
      static_cast<__nv_bfloat16*>(w.y)[at] = __float2bfloat16_rn(value);
  }
};

template <class V>
__global__ void __launch_bounds__(V::kThreads, V::kBlocksPerSm) product_kernel(const __grid_constant__ Job job) {
  using Format = typename V::Format;
  using Sum = typename Format::Sum;
  // The warps' rings [kWarps, kRingBytes], x [rows, pitch], sums [kSumBuffers, kWarps, rows, kSumStride]. Rings that
  // did not begin at a line of 128 bytes would cost every copy one pass more.
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float scales_sh[Job::kRows];
  allow_successor();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row_bytes = job.in * Format::kBytes, all_steps = row_bytes / kStepBytes;
  const int pitch = x_pitch<Format>(job.in);
  const int first = all_steps * warp / V::kWarps, steps = all_steps * (warp + 1) / V::kWarps - first;
  Loader loader(job, job.stride * Format::kBytes, first * kStepBytes + lane % 4 * 16, steps);
  uint8_t* ring = shared + warp * V::kRingBytes + lane * 16;
  uint8_t* x_sh = shared + V::kWarps * V::kRingBytes;
  if (!job.settled) await_predecessor();
#pragma unroll
  for (int d = 0; d < V::kStages - 1; ++d) loader.fetch(ring + d * kStageBytes);
  await_predecessor();
  const float* x_scales = job.x_scales;
  if (job.norm || job.quantize) {
    prepare_x<Format, V::kThreads>(job, x_sh, pitch, scales_sh);
    x_scales = scales_sh;
  } else {
    copy_range<Format>(job, x_sh, pitch, first, steps);
  }
  constexpr int kWiden = Format::kXBytes / Format::kBytes;
  const uint8_t* x[V::kRowBlocks];
#pragma unroll
  for (int c = 0; c < V::kRowBlocks; ++c)  // rows past the last repeat it; nobody stores their sums
    x[c] = x_sh + min(8 * c + lane / 4, job.rows - 1) * pitch + kWiden * (first * kStepBytes + lane % 4 * 16);

  Sum* all = reinterpret_cast<Sum*>(x_sh + job.rows * pitch);
  const int sums_of_tile = V::kWarps * job.rows * V::kSumStride;
  Sum sums[V::kRowBlocks][4] = {};
  int tile = blockIdx.x, step = 0, turn = 0;  // turn: how many tiles this block has done
  while (tile < job.tiles)
#pragma unroll
    for (int d = 0; d < V::kStages; ++d) {
      if (tile >= job.tiles) break;
      cp_async_wait<V::kStages - 2>();  // what a lane reads it has copied itself: no barrier
      const uint4 low = *reinterpret_cast<const uint4*>(ring + d * kStageBytes);
      const uint4 high = *reinterpret_cast<const uint4*>(ring + d * kStageBytes + 512);
#pragma unroll
      for (int c = 0; c < V::kRowBlocks; ++c) Format::multiply(sums[c], low, high, x[c] + step * kWiden * kStepBytes);
      loader.fetch(ring + (d + V::kStages - 1) % V::kStages * kStageBytes);
      if (++step < steps) continue;
      // The end of a tile. The warps leave their sums in shared memory and take turns in adding them, two rows each.
      // Sums of neighbouring tiles lie in different buffers: one barrier a tile is enough.
      Sum* of_tile = all + turn % V::kSumBuffers * sums_of_tile;
#pragma unroll
      for (int c = 0; c < V::kRowBlocks; ++c)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = 8 * c + lane % 4 * 2 + j % 2;
          if (row < job.rows) of_tile[(warp * job.rows + row) * V::kSumStride + lane / 4 + j / 2 * 8] = sums[c][j];
          sums[c][j] = 0;
        }
      Output<Sum> output;
      const int row = 2 * ((warp + V::kWarps - turn % V::kWarps) % V::kWarps) + lane / 16, o = lane % 16;
      output.read(job, tile, row, o, x_scales);
      __syncthreads();
      if (output.of >= 0) {
        const Sum* of = of_tile + row * V::kSumStride + o;
        Sum sum = of[0];
#pragma unroll
        for (int k = 1; k < V::kWarps; ++k) sum += of[k * job.rows * V::kSumStride];
        output.store(job, sum);
      }
      if constexpr (V::kSumBuffers == 1) __syncthreads();
      step = 0;
      ++turn;
      tile += gridDim.x;
    }
}

// Dynamic shared memory of the kernel, in bytes.
template <class V>
size_t shared_bytes(int rows, int in) {
  static_assert(sizeof(typename V::Format::Sum) == 4 && V::kWarps == kSkinnyWarps);
  constexpr SkinnyShape kShape{V::kRowBlocks, V::kStages, V::Format::kBytes, V::Format::kXBytes, V::kSumBuffers};
  return static_cast<size_t>(skinny_shared_bytes(kShape, rows, in));
}

template <class V>
void launch_variant(CudaState& s, Job job, int count) {
  job.tiles = 0;
  for (int i = 0; i < count; ++i) job.weights[i].end_tile = job.tiles += (job.weights[i].out + V::kOuts - 1) / V::kOuts;
  const size_t shared = shared_bytes<V>(job.rows, job.in);
  auto* kernel = product_kernel<V>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  launch_overlapping(s, kernel, dim3(static_cast<unsigned>(std::min(job.tiles, V::kBlocksPerSm * s.sms()))),
                     dim3(V::kThreads), shared, job);
}

}  // namespace fewbit::cuda::skinny
