#pragma once
// y = x W^T for a few rows of x, on weights [out, in] as a checkpoint stores them: bf16, E4M3 or int8, row-major.
// Nothing but the weights costs time, so everything serves one aim: keep reading them.
//
// A block lives as long as the product and walks over runs of 16 outputs ("tiles"); each of its warps has a slice of k,
// whose x it keeps in shared memory. The weight is the 16-row operand of the tensor-core product, x (8 rows at a time)
// the other. Weights come 16 bytes a lane: a sum over k has no order, so the eight (sixteen) values that a lane holds
// stand for whatever k the instruction believes, as long as both operands agree, and a lane reads from shared memory
// just what it has copied there itself: no barrier, no bank conflict, some twenty instructions on a KiB. A ring of
// kDepth such copies a lane runs ahead over the tiles' borders and is filled before the kernel before it in the stream
// has ended (launch.cuh); held in registers it would leave no room for the next kernel's. Sums are f32 (int32 for int8)
// and are added over the warps in their order; which k a warp has depends on `in` alone, so that a row gives the same
// bits among any number of rows. That ends where x finds no room in shared memory: k is then cut in as many launches as
// it needs, each of which leaves its sums for the next, since to read the weights once for some rows and again for
// others costs far more.
//
// Few activations are normed and quantized here, by every block for itself: cheaper than a launch that all wait for.
#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/products/skinny_formats.cuh"
#include "kernels/products/skinny_job.cuh"

namespace fewbit::cuda {

inline constexpr int kPreparedHere = 16384;         // values of x, see prepare_here()
inline constexpr int kStepBytes = 64;               // of a weight row: what four lanes take by one load
inline constexpr int kSlotBytes = 16 * kStepBytes;  // of a warp and step

// 16 bytes of a weight into the lane's own place of the ring.
__device__ __forceinline__ void stream16(uint8_t* shared, const uint8_t* global) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

template <class Format_, int kColumns_, int kWarps_, int kDepth_, int kBlocks_, int kSumBuffers_ = 2>
struct SkinnyVariant {
  using Format = Format_;
  static constexpr int kColumns = kColumns_;  // runs of 8 rows of x
  static constexpr int kWarps = kWarps_, kThreads = 32 * kWarps;
  static constexpr int kDepth = kDepth_;  // slots of a warp's ring, all but one under way
  static constexpr int kRingBytes = kDepth * kSlotBytes;
  static constexpr int kBlocks = kBlocks_;          // on a multiprocessor
  static constexpr int kSumBuffers = kSumBuffers_;  // of the tiles' sums: one barrier a tile with two
  static constexpr int kOuts = 16, kSumStride = kOuts + 4;
};

// Bytes from row to row of x in shared memory. The eight lanes of a quarter of a load have two rows and four
// places 16 (wide: 32) bytes apart: neighbouring rows fill each other's gaps in the banks.
template <class Format>
__host__ __device__ constexpr int skinny_pitch(int in) {
  const int bytes = in * Format::kXBytes;
  if (Format::kXBytes > Format::kBytes) return bytes + 16;
  return bytes % 128 == 64 ? bytes : bytes + 64;
}

// Where a warp reads next: walks over (tile, step of its slice of k).
struct SkinnyFeeder {
  const SkinnyJob& job;
  const uint8_t* low = nullptr;   // of this lane: output g of the tile
  const uint8_t* high = nullptr;  // output g + 8
  int row_bytes, at, steps;       // `at`: bytes into a row, where this lane's slice begins
  int tile, step = 0, which = 0;

  __device__ __forceinline__ SkinnyFeeder(const SkinnyJob& j, int bytes, int begin, int count)
      : job(j), row_bytes(bytes), at(begin), steps(count), tile(blockIdx.x) {
    seat();
  }
  __device__ __forceinline__ void seat() {
    if (tile >= job.tiles) return;
    while (tile >= job.weights[which].end_tile) ++which;
    const SkinnyWeight& w = job.weights[which];
    const int o = (tile - (which == 0 ? 0 : job.weights[which - 1].end_tile)) * 16 + threadIdx.x % 32 / 4;
    low = w.w + static_cast<int64_t>(min(o, w.out - 1)) * row_bytes + at;  // past the end: the last again
    high = w.w + static_cast<int64_t>(min(o + 8, w.out - 1)) * row_bytes + at;
  }
  // One step to the lane's place of a slot of the ring; a group of copies of its own, empty past the end.
  __device__ __forceinline__ void fetch(uint8_t* slot) {
    next(slot);
    cp_async_commit();
  }
  __device__ __forceinline__ void next(uint8_t* slot) {
    if (tile >= job.tiles) return;
    stream16(slot, low);
    stream16(slot + 512, high);
    low += kStepBytes;
    high += kStepBytes;
    if (++step < steps) return;
    step = 0;
    tile += gridDim.x;
    seat();
  }
};

// The warp's steps of the rows of x, to their place in shared memory [rows, pitch].
template <class Format>
__device__ __forceinline__ void copy_slice(const SkinnyJob& job, uint8_t* to, int pitch, int first, int steps) {
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

// The rows of x [rows, in] bf16, normed and quantized as the job says, to their place in shared memory [rows,
// pitch]; their scales. All threads of the block; ends with a barrier. in <= kPreparedHere; the bits are
// those of rms_norm and quantize_rows, whose threads add in the same order.
template <class Format, int kThreads>
__device__ __forceinline__ void prepare_here(const SkinnyJob& job, uint8_t* to, int pitch, float* scales) {
  constexpr int kUnits = kPreparedHere / (8 * kThreads);  // of eight values, a thread
  __shared__ float partial[32];
  for (int r = 0; r < job.rows; ++r) {
    const auto* x = static_cast<const __nv_bfloat16*>(job.x) + static_cast<int64_t>(r) * job.in;
    Vec<__nv_bfloat16, 8> v[kUnits];
    const auto for_units = [&](auto&& f) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        if (const int c = 8 * (threadIdx.x + u * kThreads); c < job.in) f(v[u], c);
    };
    for_units([&](auto& unit, int c) { unit = load_vec<__nv_bfloat16, 8>(x + c); });
    if (job.norm) {
      float squares = 0;
      for_units([&](auto& unit, int) {
#pragma unroll
        for (int i = 0; i < 8; ++i) squares = fmaf(to_f32(unit[i]), to_f32(unit[i]), squares);
      });
      const float inverse = 1.f / sqrtf(block_sum(squares, partial) / static_cast<float>(job.in) + job.norm_eps);
      for_units([&](auto& unit, int c) {
        const auto weight = load_vec<__nv_bfloat16, 8>(job.norm + c);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          unit[i] = __float2bfloat16_rn(to_f32(unit[i]) * inverse * (to_f32(weight[i]) + job.norm_offset));
      });
    }
    if constexpr (Format::kBytes == 2) {
      for_units([&](auto& unit, int c) { store_vec(reinterpret_cast<__nv_bfloat16*>(to + r * pitch) + c, unit); });
    } else {
      float most = 0;
      for_units([&](auto& unit, int) {
#pragma unroll
        for (int i = 0; i < 8; ++i) most = larger_abs(most, to_f32(unit[i]));
      });
      most = block_reduce(
          most, [](float a, float b) { return larger_abs(a, b); }, 0.f, partial);
      const float scale = Format::scale(most, job.fixed), inverse = 1.f / scale;
      if (threadIdx.x == 0) scales[r] = scale;
      for_units([&](auto& unit, int c) {
        float scaled[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) scaled[i] = mul_rn(to_f32(unit[i]), inverse);
        Format::put(to + r * pitch + Format::kXBytes * c, scaled);
      });
    }
  }
  __syncthreads();
}

// One output of one row: what its sum meets on the way to y is read before the sum is there.
template <class Sum>
struct SkinnyOutput {
  Sum earlier;  // of the launch before
  float x_scale, scale, bias, before;
  int64_t at;
  int of = -1;  // which weight's; -1: not an output. A pointer to it would have the compiler read the job from memory.

  __device__ __forceinline__ void read(const SkinnyJob& job, int tile, int row, int o, const float* x_scales) {
    if (row >= job.rows) return;
    int which = 0;
    while (tile >= job.weights[which].end_tile) ++which;
    const SkinnyWeight& w = job.weights[which];
    o += (tile - (which == 0 ? 0 : job.weights[which - 1].end_tile)) * 16;
    if (o >= w.out) return;
    of = which;
    at = static_cast<int64_t>(row) * w.out + o;
    if (job.resumes) earlier = static_cast<const Sum*>(w.sums)[at];
    if (job.pauses) return;
    if (w.scales) {
      x_scale = x_scales[row];
      scale = w.scales[o];
    }
    if (w.bias) bias = __bfloat162float(w.bias[o]);
    if (w.add)
      before =
          job.y_f32 ? static_cast<const float*>(w.y)[at] : __bfloat162float(static_cast<const __nv_bfloat16*>(w.y)[at]);
  }
  __device__ __forceinline__ void store(const SkinnyJob& job, Sum sum) const {
    const SkinnyWeight& w = job.weights[of];
    if (job.resumes) sum += earlier;
    if (job.pauses) {
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
__global__ void __launch_bounds__(V::kThreads, V::kBlocks) skinny_kernel(const __grid_constant__ SkinnyJob job) {
  using Format = typename V::Format;
  using Sum = typename Format::Sum;
  // The warps' rings, x [rows, pitch], sums [kSumBuffers, kWarps, rows, kSumStride].
  extern __shared__ __align__(128) uint8_t shared[];  // rings off a line cost every copy a pass more
  __shared__ float scales_sh[SkinnyJob::kRows];
  allow_successor();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row_bytes = job.in * Format::kBytes, all_steps = row_bytes / kStepBytes;
  const int pitch = skinny_pitch<Format>(job.in);
  const int first = all_steps * warp / V::kWarps, steps = all_steps * (warp + 1) / V::kWarps - first;
  SkinnyFeeder feeder(job, job.stride * Format::kBytes, first * kStepBytes + lane % 4 * 16, steps);
  uint8_t* ring = shared + warp * V::kRingBytes + lane * 16;
  uint8_t* x_sh = shared + V::kWarps * V::kRingBytes;
  if (!job.settled) await_predecessor();
#pragma unroll
  for (int d = 0; d < V::kDepth - 1; ++d) feeder.fetch(ring + d * kSlotBytes);
  await_predecessor();
  const float* x_scales = job.x_scales;
  if (job.norm || job.quantize) {
    prepare_here<Format, V::kThreads>(job, x_sh, pitch, scales_sh);
    x_scales = scales_sh;
  } else {
    copy_slice<Format>(job, x_sh, pitch, first, steps);
  }
  constexpr int kWiden = Format::kXBytes / Format::kBytes;
  const uint8_t* x[V::kColumns];
#pragma unroll
  for (int c = 0; c < V::kColumns; ++c)  // rows past the last repeat it; their sums are not stored
    x[c] = x_sh + min(8 * c + lane / 4, job.rows - 1) * pitch + kWiden * (first * kStepBytes + lane % 4 * 16);

  Sum* all = reinterpret_cast<Sum*>(x_sh + job.rows * pitch);
  const int sums_of_tile = V::kWarps * job.rows * V::kSumStride;
  Sum sums[V::kColumns][4] = {};
  int tile = blockIdx.x, step = 0, turn = 0;  // turn: tiles that this block has done
  while (tile < job.tiles)
#pragma unroll
    for (int d = 0; d < V::kDepth; ++d) {
      if (tile >= job.tiles) break;
      cp_async_wait<V::kDepth - 2>();  // what a lane reads it has copied itself: no barrier
      const uint4 low = *reinterpret_cast<const uint4*>(ring + d * kSlotBytes);
      const uint4 high = *reinterpret_cast<const uint4*>(ring + d * kSlotBytes + 512);
#pragma unroll
      for (int c = 0; c < V::kColumns; ++c) Format::multiply(sums[c], low, high, x[c] + step * kWiden * kStepBytes);
      feeder.fetch(ring + (d + V::kDepth - 1) % V::kDepth * kSlotBytes);
      if (++step < steps) continue;
      // The end of a tile. Sums of neighbouring tiles lie in different buffers, so one barrier a tile is
      // enough; the warps take turns in adding them, two rows each.
      Sum* of_tile = all + turn % V::kSumBuffers * sums_of_tile;
#pragma unroll
      for (int c = 0; c < V::kColumns; ++c)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = 8 * c + lane % 4 * 2 + j % 2;
          if (row < job.rows) of_tile[(warp * job.rows + row) * V::kSumStride + lane / 4 + j / 2 * 8] = sums[c][j];
          sums[c][j] = 0;
        }
      SkinnyOutput<Sum> output;
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

template <class V>
size_t skinny_shared(int rows, int in) {
  return static_cast<size_t>(V::kWarps * V::kRingBytes) +
         static_cast<size_t>(rows) * (skinny_pitch<typename V::Format>(in) +
                                      sizeof(typename V::Format::Sum) * V::kSumBuffers * V::kWarps * V::kSumStride);
}

template <class V>
void launch_skinny(CudaState& s, SkinnyJob job, int count) {
  job.tiles = 0;
  for (int i = 0; i < count; ++i) job.weights[i].end_tile = job.tiles += (job.weights[i].out + V::kOuts - 1) / V::kOuts;
  const size_t shared = skinny_shared<V>(job.rows, job.in);
  auto* kernel = skinny_kernel<V>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  launch_overlapping(s, kernel, dim3(static_cast<unsigned>(std::min(job.tiles, V::kBlocks * s.sms()))),
                     dim3(V::kThreads), shared, job);
}

}  // namespace fewbit::cuda
