#pragma once
// E4M3 weights [out, in] as they lie, with a scale for each output, in decode_layers_kernel.cuh. The input of a product
// is rounded to E4M3 with one scale for all of it. Codes of both are exact in f16, their products in f32.
//
// A piece is 32 rows of 128 bytes. Lane 4 g + t takes 16 neighbouring bytes of rows g, g + 8, g + 16 and g + 24 at a
// time, which stand for whatever k the tensor cores believe, as long as the input has the same; the halves of every
// other row are exchanged in shared memory, so that the eight lanes of a quarter of a load find eight places in the
// banks.
#include "kernels/decode/decode_layers_kernel.cuh"
#include "kernels/grids/row_grid.h"
#include "kernels/products/bytes/quantize_rows.h"
#include "kernels/products/skinny_formats.cuh"

namespace fewbit::cuda {

using ByteFormat = SkinnyF8<F8Input::widened>;
inline constexpr int kByteOutputs = 32, kBytePieceBytes = kByteOutputs * kPieceK;

// The next piece of a weight, for one lane: 16 bytes of every fourth row.
struct StepByteSource {
  const uint8_t* codes = nullptr;
  int64_t four_rows = 0;  // bytes

  __device__ __forceinline__ void seat(const StepWeight& weight, int /*outputs*/, int inputs, int chunk, int k) {
    const int lane = threadIdx.x % 32;
    four_rows = 4 * static_cast<int64_t>(inputs);
    codes = static_cast<const uint8_t*>(weight.codes) +
            (chunk * kByteOutputs + lane / 8) * static_cast<int64_t>(inputs) + k * kPieceK + lane % 8 * 16;
  }
  __device__ __forceinline__ void fetch(uint8_t* to) {
    const int lane = threadIdx.x % 32;
    to += lane / 8 * kPieceK + (lane % 8 ^ lane / 8 % 2 * 4) * 16;
#pragma unroll
    for (int i = 0; i < kByteOutputs / 4; ++i) cp_async16(to + i * 4 * kPieceK, codes + i * four_rows);
    codes += kPieceK;
  }
};

// The input of a product as f16: first the block's values in bf16, then, once the largest of all is known, those of
// their codes.
struct StepByteInput {
  uint8_t* x;  // [needed, 128] of two bytes
  StepSpace space;
  int first, needed, slice;
  uint32_t parity;  // of the exchange with the cluster's other blocks
  float fixed;      // RowQuant::fixed
  float most = 0;   // the largest magnitude that this thread has put
  float scale = 0;  // of the codes; set by finish()

  // Values n .. n + 7, which are bf16 already. What lies outside of the block's slice counts for the scale alone.
  __device__ __forceinline__ void put(int n, const float (&v)[8], bool active) {
    if (!active) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) most = larger_abs(most, v[i]);
    const int own = n - first * kPieceK;
    if (own < 0 || own >= needed * kPieceK) return;
    *reinterpret_cast<uint4*>(x + 2 * own) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                                              pack_bf16(v[6], v[7])};
  }
  // All computing threads, when everything is put; another compute_sync() before the values are read.
  // `shared`: the blocks of the cluster have put a slice each, else all of them everything.
  __device__ __forceinline__ void finish(bool shared) {
#ifdef FEWBIT_SM90A
    const auto larger = [](float a, float b) { return larger_abs(a, b); };
    most = warp_reduce(most, larger);
    if (threadIdx.x % 32 == 0) space.most[threadIdx.x / 32] = most;
    compute_sync();
    most = warp_reduce(space.most[threadIdx.x % kStepWarps], larger, kStepWarps);
    if (shared) {
      float* sent = space.most + kStepWarps;
      if (threadIdx.x == 0) barrier_expect(space.most_barrier, kStepSlices * static_cast<int>(sizeof(float)));
      if (threadIdx.x < kStepSlices)
        send_to_block(static_cast<int>(threadIdx.x), sent + slice, space.most_barrier, most);
      barrier_await(shared_address(space.most_barrier), parity);
#pragma unroll
      for (int s = 0; s < kStepSlices; ++s) most = larger_abs(most, sent[s]);
    }
    scale = row_scale(most, fixed, kF8Max);
    const float inverse = 1.f / scale;
    for (int n = 8 * threadIdx.x; n < needed * kPieceK; n += 8 * kStepThreads) {
      float v[8];
      unpack8(*reinterpret_cast<const uint4*>(x + 2 * n), v);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = mul_rn(v[i], inverse);
      ByteFormat::put(x + 2 * n, v);
    }
#endif
  }
};

// Attention's output is small enough for every block to read all of it.
__device__ __forceinline__ int2 values_of(const StepJob& job, int product, const StepByteInput& input) {
  if (product == kOut) return {0, job.cut[kOut].pieces * kPieceK};
  return {input.first * kPieceK, (input.first + input.needed) * kPieceK};
}
__device__ __forceinline__ void finish_input(int product, StepByteInput& input) { input.finish(product == kDown); }

// The norm of the residual stream; waits for the phase before once the norm's weight is at hand. Every block norms all
// of the stream, at most kMostNormedBytes values, since its scale hangs on all.
template <class Sync>
__device__ __forceinline__ void normed_input(const StepJob& job, StepByteInput& input, const __nv_bfloat16* weight,
                                             const Sync& sync, float* shared) {
  constexpr int kUnits = kMostNormedBytes / (8 * kStepThreads);
  const auto at = [](int u) { return 8 * (static_cast<int>(threadIdx.x) + u * kStepThreads); };
  uint4 weights[kUnits] = {}, values[kUnits] = {};
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
    if (at(u) < job.hidden) weights[u] = *reinterpret_cast<const uint4*>(weight + at(u));
  sync.wait();
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
    if (at(u) < job.hidden) values[u] = load8_cg(job.x + at(u));
  float squares = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    float v[8];
    unpack8(values[u], v);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(v[i], v[i], squares);
  }
  const float inverse = 1.f / sqrtf(compute_sum(squares, shared) / static_cast<float>(job.hidden) + job.eps);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    float v[8], w[8];
    unpack8(values[u], v);
    unpack8(weights[u], w);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = rounded(v[i] * inverse * (w[i] + job.weight_offset));
    input.put(at(u), v, at(u) < job.hidden);
  }
  input.finish(false);
  compute_sync();
}

#ifdef FEWBIT_SM90A
// What a computing warp takes from its ring, in turn.
struct StepByteTaker {
  StepRing ring;
  int slot = 0;
  uint32_t parity = 0;

  // Adds the warp's next piece: part[j][s], of the codes' half s, has the outputs 16 j + lane / 4 (0) and + 8 (2).
  __device__ __forceinline__ void multiply_piece(const StepByteInput& input, int index, float (&part)[2][2][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint8_t* x = input.x + index * (2 * kPieceK) + 32 * t;
    const uint8_t* row = ring.slots + slot * kBytePieceBytes + g * kPieceK + 16 * t;
    barrier_await(shared_address(ring.full + slot), parity);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint8_t* half = row + (s ^ g % 2) * (kPieceK / 2);
      const uint4 first = *reinterpret_cast<const uint4*>(x + s * kPieceK),
                  second = *reinterpret_cast<const uint4*>(x + s * kPieceK + 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 low = *reinterpret_cast<const uint4*>(half + 16 * j * kPieceK);
        const uint4 high = *reinterpret_cast<const uint4*>(half + (16 * j + 8) * kPieceK);
        ByteFormat::multiply(part[j][s], low.x, high.x, first.x, first.y);
        ByteFormat::multiply(part[j][s], low.y, high.y, first.z, first.w);
        ByteFormat::multiply(part[j][s], low.z, high.z, second.x, second.y);
        ByteFormat::multiply(part[j][s], low.w, high.w, second.z, second.w);
      }
    }
    __syncwarp();  // all lanes have read the slot
    if (threadIdx.x % 32 < kArrivingLanes) barrier_arrive(ring.empty + slot);
    if (++slot == ring.count) slot = 0, parity ^= 1;
  }
  // The warp's pieces of so many chunks; leaves the sums of each, [rounds, kStepWarps, 32].
  __device__ __forceinline__ void multiply_rounds(int begin, int end, int rounds, const StepByteInput& input,
                                                  float* sums) {
    const int lane = threadIdx.x % 32;
    float* mine = sums + threadIdx.x / 32 * kByteOutputs + lane / 4;
#pragma unroll 1
    for (int r = 0; r < rounds; ++r, mine += kStepWarps * kByteOutputs) {
      float part[2][2][4] = {};
#pragma unroll 1
      for (int index = begin; index < end; ++index) multiply_piece(input, index, part);
      const bool upper = lane % 4 == 1;  // two lanes in four have 16 outputs each to leave
      if (lane % 4 < 2) {
        mine[16 * upper] = upper ? part[1][0][0] + part[1][1][0] : part[0][0][0] + part[0][1][0];
        mine[16 * upper + 8] = upper ? part[1][0][2] + part[1][1][2] : part[0][0][2] + part[0][1][2];
      }
    }
  }
};
#else
struct StepByteTaker;
#endif

struct StepBytes {
  static constexpr bool kZeros = false;
  using Layer = StepLayer;
  using Source = StepByteSource;
  using Input = StepByteInput;
  using Taker = StepByteTaker;
  static constexpr int kOutputs = kByteOutputs;
  static constexpr int kOwnOutputs = kOutputs / kStepSlices, kRoundsTogether = kOutputsTogether / kOutputs;
  static constexpr int kPieceBytes = kBytePieceBytes;
  static constexpr int kInputBytes = 2 * kPieceK, kNoteBytes = 0;

  __device__ __forceinline__ static Input input(const StepSpace& space, const StepPart& part, int product,
                                                const StepLayer& layer, int index) {
    return {.x = space.x,
            .space = space,
            .first = part.k0,
            .needed = part.length,
            .slice = static_cast<int>(blockIdx.x) % kStepSlices,
            .parity = static_cast<uint32_t>(index & 1),
            .fixed = layer.fixed[product]};
  }
  __device__ __forceinline__ static float factor(const StepWeight& weight, int output) {
    return static_cast<const float*>(weight.scales)[output];
  }
  __device__ __forceinline__ static float finished(float sum, float factor, const Input& input) {
    return mul_rn(mul_rn(sum, input.scale), factor);
  }
};

}  // namespace fewbit::cuda
