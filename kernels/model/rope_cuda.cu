// Rotary position embedding: a block has one token and kHeads of its heads; it computes the token's cosines and sines
// once, in shared memory, with the precise sincosf (positions reach 10^5 radians), then turns the pairs of its heads,
// 16 bytes of each half at a time, or neighbours one by one.
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/rope.cuh"
#include "kernels/model/rope.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 8;  // heads of one block

// kN: values per thread and step; 16 bytes, or 1 where half a head is not a multiple of that.
template <class T, int kN, bool kNeighbours>
__global__ void rope_kernel(T* x,  // [tokens, heads * head_dim]
                            const int32_t* __restrict__ positions, const float* __restrict__ inv_freq, int half,
                            int heads, int head_dim, float attention_scale) {
  extern __shared__ float table[];  // [2, half]: cosines, sines
  allow_successor();
  await_predecessor();
  const float position = static_cast<float>(positions[blockIdx.x]);
  rope_angles(table, position, inv_freq, half, attention_scale, threadIdx.x, kThreads);
  __syncthreads();
  const int first_head = blockIdx.y * kHeads, per_head = half / kN;
  const int mine = min(kHeads, heads - first_head);
  T* token = x + (static_cast<int64_t>(blockIdx.x) * heads + first_head) * head_dim;
  for (int e = threadIdx.x; e < mine * per_head; e += kThreads) {
    const int i = e % per_head * kN;
    T* head = token + e / per_head * head_dim;
    if constexpr (kNeighbours) {
      const float c = table[i], s = table[half + i], a = to_f32(head[2 * i]), b = to_f32(head[2 * i + 1]);
      head[2 * i] = from_f32<T>(turned_first(a, b, c, s));
      head[2 * i + 1] = from_f32<T>(turned_second(a, b, c, s));
      continue;
    }
    auto u = load_vec<T, kN>(head + i), v = load_vec<T, kN>(head + half + i);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float c = table[i + j], s = table[half + i + j], a = to_f32(u[j]), b = to_f32(v[j]);
      u[j] = from_f32<T>(turned_first(a, b, c, s));
      v[j] = from_f32<T>(turned_second(a, b, c, s));
    }
    store_vec(head + i, u);
    store_vec(head + half + i, v);
  }
}

// A block has one row.
template <class T>
__global__ void scale_by_position_kernel(T* x,  // [tokens, cols]
                                         const int32_t* __restrict__ positions, float factor, int64_t every,
                                         int64_t shift, int64_t cols) {
  allow_successor();
  await_predecessor();
  const int64_t steps = (positions[blockIdx.x] + shift) / every;
  const float by = 1.f + factor * log1pf(static_cast<float>(steps));
  T* row = x + blockIdx.x * cols;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) row[c] = from_f32<T>(to_f32(row[c]) * by);
}

}  // namespace

void rope(Exec& ex, TensorView x, ConstTensorView positions, ConstTensorView inv_freq, int64_t head_dim,
          float attention_scale, RopePairs pairs) {
  const int64_t tokens = x.rows(), half = inv_freq.numel();
  FEWBIT_ASSERT(positions.dtype == DType::i32 && inv_freq.dtype == DType::f32 && positions.numel() == tokens);
  if (x.numel() == 0 || half == 0) return;
  FEWBIT_ASSERT(head_dim > 0 && x.cols() % head_dim == 0 && 2 * half <= head_dim);
  const int64_t heads = x.cols() / head_dim;
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>((heads + kHeads - 1) / kHeads));
  const size_t shared = static_cast<size_t>(half) * 2 * sizeof(float);
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kN = kVec16<T>;
    const bool vectors = half % kN == 0 && aligned16(x.as<T>(), head_dim);
    auto* kernel = pairs == RopePairs::neighbours ? rope_kernel<T, 1, true>
                   : vectors                      ? rope_kernel<T, kN, false>
                                                  : rope_kernel<T, 1, false>;
    launch_overlapping(ex.cuda_state(), kernel, grid, dim3(kThreads), shared, x.as<T>(), positions.as<int32_t>(),
                       inv_freq.as<float>(), static_cast<int>(half), static_cast<int>(heads),
                       static_cast<int>(head_dim), attention_scale);
  });
}

void scale_by_position(Exec& ex, TensorView x, ConstTensorView positions, float factor, int64_t every, int64_t shift) {
  if (x.numel() == 0) return;
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_overlapping(ex.cuda_state(), scale_by_position_kernel<T>, dim3(static_cast<unsigned>(x.rows())),
                       dim3(kThreads), 0, x.as<T>(), positions.as<int32_t>(), factor, every, shift, x.cols());
  });
}

}  // namespace fewbit::cuda
