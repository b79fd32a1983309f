// Two launches: rows as they are with the codes of values, then the groups of keys that the rows complete, read back
// from the recent rows.
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/kivi/kivi_append.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

template <class T>
struct Job {
  const T *k, *v;  // [tokens, kv_heads, d]
  const int32_t* positions;
  uint8_t *k_codes, *v_codes;
  __nv_bfloat162 *k_scales, *v_scales;  // scale, zero
  T *k_recent, *v_recent;
  int bits, d, heads, len;
  int64_t capacity, ring;

  // A kv head of the sequence of token t, of all sequences.
  __device__ int64_t head(int64_t t, int h) const { return t / len * heads + h; }
};

// The numbers of a group that goes from `low` to `high`; finite: all of its values are.
__device__ __forceinline__ __nv_bfloat162 numbers_of(float low, float high, bool finite, int bits) {
  const __nv_bfloat16 zero = from_f32<__nv_bfloat16>(finite ? kivi_low(low) : NAN);
  const float step = kivi_step(to_f32(zero), high, bits);
  return __nv_bfloat162(from_f32<__nv_bfloat16>(finite ? step : NAN), zero);
}

// Grid: new tokens x kv heads. A warp has 32 features of the value at a time, a lane one of them.
template <class T>
__global__ void __launch_bounds__(kThreads) kivi_rows_kernel(Job<T> j) {
  const int64_t t = blockIdx.x, head = j.head(t, blockIdx.y), from = (t * j.heads + blockIdx.y) * j.d;
  const int position = j.positions[t], lane = threadIdx.x % 32;
  const int64_t recent = (head * j.ring + position % j.ring) * j.d, row = head * j.capacity + position;
  const int groups = j.d / kKiviGroup, each = 8 / j.bits;
  for (int g = threadIdx.x / 32; g < groups; g += kWarps) {
    const int c = g * kKiviGroup + lane;
    j.k_recent[recent + c] = j.k[from + c];
    j.v_recent[recent + c] = j.v[from + c];
    const float x = to_f32(j.v[from + c]);
    const float low = -warp_max(-x), high = warp_max(x);
    const __nv_bfloat162 numbers = numbers_of(low, high, __all_sync(0xffffffffu, isfinite(x)), j.bits);
    if (lane == 0) j.v_scales[row * groups + g] = numbers;
    const float inverse = kivi_inverse(to_f32(numbers.x));
    int byte = kivi_code(x, to_f32(numbers.y), inverse, j.bits) << (lane % each * j.bits);
    for (int step = 1; step < each; step *= 2) byte |= __shfl_xor_sync(0xffffffffu, byte, step);
    if (lane % each == 0) j.v_codes[(row * j.d + c) / each] = static_cast<uint8_t>(byte);
  }
}

// Grid: new tokens x kv heads, of which those that end a group work. A thread has the features of a byte at a time.
template <class T, int kBits>
__global__ void __launch_bounds__(kThreads) kivi_keys_kernel(Job<T> j) {
  constexpr int kEach = 8 / kBits;
  const int64_t t = blockIdx.x, head = j.head(t, blockIdx.y);
  const int last = j.positions[t], first = last - (kKiviGroup - 1);
  if (last % kKiviGroup != kKiviGroup - 1) return;
  const T* x = j.k_recent + (head * j.ring + first % j.ring) * j.d;
  const int64_t row = head * j.capacity + first;
  for (int i = threadIdx.x; i < j.d / kEach; i += kThreads) {
    float zero[kEach], inverse[kEach];
    for (int f = 0; f < kEach; ++f) {
      const int c = i * kEach + f;
      float low = INFINITY, high = -INFINITY;
      bool finite = true;
      for (int token = 0; token < kKiviGroup; ++token) {
        const float value = to_f32(x[token * j.d + c]);
        finite = finite && isfinite(value);
        low = fminf(low, value), high = fmaxf(high, value);
      }
      const __nv_bfloat162 numbers = numbers_of(low, high, finite, kBits);
      j.k_scales[row / kKiviGroup * j.d + c] = numbers;
      zero[f] = to_f32(numbers.y), inverse[f] = kivi_inverse(to_f32(numbers.x));
    }
    for (int token = 0; token < kKiviGroup; ++token) {
      int byte = 0;
      for (int f = 0; f < kEach; ++f)
        byte |= kivi_code(to_f32(x[token * j.d + i * kEach + f]), zero[f], inverse[f], kBits) << (f * kBits);
      j.k_codes[(row + token) * (j.d / kEach) + i] = static_cast<uint8_t>(byte);
    }
  }
}

}  // namespace

void kivi_append(Exec& ex, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KiviCache& c) {
  const int64_t batch = c.k.shape[0], heads = c.k.shape[1], rows = k.rows(), d = c.k_recent.shape[3];
  FEWBIT_ASSERT(rows % batch == 0 && consistent(c, k.dtype, rows / batch) && k.cols() == heads * d);
  FEWBIT_ASSERT(v.dtype == k.dtype && v.numel() == k.numel());
  FEWBIT_ASSERT(positions.numel() == rows && positions.dtype == DType::i32);
  if (rows == 0) return;
  cudaStream_t stream = ex.cuda_state().stream;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(heads));
  dispatch_f32_bf16(k.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Job<T> job{.k = k.as<T>(),
                     .v = v.as<T>(),
                     .positions = positions.as<int32_t>(),
                     .k_codes = c.k.as<uint8_t>(),
                     .v_codes = c.v.as<uint8_t>(),
                     .k_scales = static_cast<__nv_bfloat162*>(c.k_scales.data),
                     .v_scales = static_cast<__nv_bfloat162*>(c.v_scales.data),
                     .k_recent = c.k_recent.as<T>(),
                     .v_recent = c.v_recent.as<T>(),
                     .bits = c.bits,
                     .d = static_cast<int>(d),
                     .heads = static_cast<int>(heads),
                     .len = static_cast<int>(rows / batch),
                     .capacity = c.k.shape[2],
                     .ring = c.k_recent.shape[2]};
    kivi_rows_kernel<T><<<grid, kThreads, 0, stream>>>(job);
    FEWBIT_CUDA_LAUNCHED();
    (c.bits == 2 ? kivi_keys_kernel<T, 2> : kivi_keys_kernel<T, 4>)<<<grid, kThreads, 0, stream>>>(job);
    FEWBIT_CUDA_LAUNCHED();
  });
}

}  // namespace fewbit::cuda
