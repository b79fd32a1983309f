// A block has one head of one query and a split of its keys, a warp 32 positions at a time: all of them are codes to
// the query, or none. Scores have a position a lane, sums over values a feature a lane. Ordinary arithmetic in f32;
// each kv head is read once for every query head.
#include <algorithm>
#include <string>

#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/kivi/kivi_attention.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kMaxSplits = 64;

template <class T>
struct Job {
  const T* q;                                 // [tokens, heads, d]
  const uint8_t *k, *v;                       // codes
  const __nv_bfloat162 *k_scales, *v_scales;  // scale, zero
  const T *k_recent, *v_recent;
  const int32_t* positions;
  const float* sinks;  // or null
  T* out;
  float2* ml;  // [tokens, heads, splits]: the reference of the weights, and their sum
  float* o;    // [tokens, heads, splits, d]; with one split the output is written at once, and ml and o are null
  int d, heads, kv_heads, len, splits;
  int64_t capacity, ring, window, chunk;
  float scale, softcap;

  __device__ int first_in_sight(int p) const {
    if (chunk > 0) return static_cast<int>(p / chunk * chunk);
    return window > 0 ? static_cast<int>(max(int64_t{0}, p - window + 1)) : 0;
  }
};

// The weights of splits relative to the largest reference; a split without keys has {-infinity, 0}.
__device__ __forceinline__ float weight_of(float m, float top) { return m == -INFINITY ? 0.f : expf(m - top); }

// q . key of the lane's position, whose codes are `row`. folded: q times the scales of the group, `base`: q times its
// zeros.
template <int kBits>
__device__ __forceinline__ float coded_score(const uint8_t* row, const float* folded, float base, int d) {
  constexpr int kEach = 32 / kBits;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(row);
  float sum = base;
  for (int w = 0; w < d / kEach; ++w) {
    const uint32_t word = words[w];
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      sum = fmaf(static_cast<float>(word >> (i * kBits) & kMask), folded[w * kEach + i], sum);
  }
  return sum;
}

template <class T>
__device__ __forceinline__ float plain_score(const T* row, const float* query, int d) {
  float sum = 0;
  for (int c = 0; c < d; c += kVec16<T>) {
    const Vec<T, kVec16<T>> key = load_vec<T, kVec16<T>>(row + c);
#pragma unroll
    for (int i = 0; i < kVec16<T>; ++i) sum = fmaf(to_f32(key[i]), query[c + i], sum);
  }
  return sum;
}

// What a warp has summed so far: lane's features are lane + 32 g.
template <int kGroups>
struct Sums {
  float m = -INFINITY, l = 0, o[kGroups] = {};
};

// The positions [first, first + 32), of which the query sees [begin, end), into the warp's sums.
template <class T, int kBits, int kGroups>
__device__ __forceinline__ void add_tile(const Job<T>& j, Sums<kGroups>& s, const float* query, float* folded,
                                         int64_t head, int first, int begin, int end, bool coded) {
  constexpr int kEach = 8 / kBits;
  const int lane = threadIdx.x % 32, groups = j.d / kKiviGroup;
  const int64_t row = head * j.capacity + first, recent = head * j.ring + first % j.ring;
  float score = 0;
  if (coded) {
    const __nv_bfloat162* numbers = j.k_scales + row / kKiviGroup * j.d;
    float base = 0;
    for (int c = lane; c < j.d; c += 32) {
      folded[c] = query[c] * to_f32(numbers[c].x);
      base = fmaf(query[c], to_f32(numbers[c].y), base);
    }
    base = warp_sum(base);
    __syncwarp();
    score = coded_score<kBits>(j.k + (row + lane) * (j.d / kEach), folded, base, j.d);
    __syncwarp();
  } else {
    score = plain_score(j.k_recent + (recent + lane) * j.d, query, j.d);
  }
  score *= j.scale;
  if (j.softcap > 0) score = j.softcap * tanhf(score / j.softcap);
  const bool seen = first + lane >= begin && first + lane < end;
  const float top = fmaxf(s.m, warp_max(seen ? score : -INFINITY));
  const float weight = seen ? expf(score - top) : 0.f, keep = weight_of(s.m, top);
  s.m = top;
  s.l = s.l * keep + warp_sum(weight);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) s.o[g] *= keep;
  // Rows out of sight are not read: nobody may have written them.
  for (int i = max(begin - first, 0); i < min(end - first, 32); ++i) {
    const float w = __shfl_sync(0xffffffffu, weight, i);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= groups) break;
      const int c = g * kKiviGroup + lane;
      float value;
      if (coded) {
        const __nv_bfloat162 numbers = j.v_scales[(row + i) * groups + g];
        const int byte = j.v[((row + i) * j.d + c) / kEach];
        const auto code = static_cast<float>(byte >> (lane % kEach * kBits) & ((1 << kBits) - 1));
        value = fmaf(code, to_f32(numbers.x), to_f32(numbers.y));
      } else {
        value = to_f32(j.v_recent[(recent + i) * j.d + c]);
      }
      s.o[g] = fmaf(w, value, s.o[g]);
    }
  }
}

// Merges the warps' sums, which lie in `sums` [kWarps, d] and `ml` [kWarps], in their order: to the output, or as those
// of a split.
template <class T>
__device__ __forceinline__ void merge_warps(const Job<T>& j, const float* sums, const float2* ml, int64_t row,
                                            int head) {
  const bool last = j.splits == 1;
  float top = last && j.sinks ? j.sinks[head] : -INFINITY, l = 0;
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, ml[w].x);
  for (int w = 0; w < kWarps; ++w) l += weight_of(ml[w].x, top) * ml[w].y;
  if (last && j.sinks) l += expf(j.sinks[head] - top);
  const int64_t split = row * j.splits + blockIdx.z;
  for (int c = threadIdx.x; c < j.d; c += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum = fmaf(weight_of(ml[w].x, top), sums[w * j.d + c], sum);
    if (last)
      j.out[row * j.d + c] = from_f32<T>(sum / l);
    else
      j.o[split * j.d + c] = sum;
  }
  if (!last && threadIdx.x == 0) j.ml[split] = {top, l};
}

// Grid: tokens x heads x splits. Shared: the query [d], room of the warps [kWarps, d].
template <class T, int kBits, int kGroups>
__global__ void __launch_bounds__(kThreads) kivi_attention_kernel(Job<T> j) {
  extern __shared__ float query[];
  __shared__ float2 ml[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* room = query + j.d + warp * j.d;
  const int64_t t = blockIdx.x, row = t * j.heads + blockIdx.y;
  const int64_t head = t / j.len * j.kv_heads + blockIdx.y / (j.heads / j.kv_heads);
  const int p = j.positions[t], begin = j.first_in_sight(p), coded = static_cast<int>(kivi_coded(p));
  for (int c = threadIdx.x; c < j.d; c += kThreads) query[c] = to_f32(j.q[row * j.d + c]);
  __syncthreads();
  Sums<kGroups> s;
  const int step = j.splits * kWarps;
  for (int tile = begin / kKiviGroup + static_cast<int>(blockIdx.z) * kWarps + warp; tile <= p / kKiviGroup;
       tile += step) {
    const int first = tile * kKiviGroup;
    add_tile<T, kBits, kGroups>(j, s, query, room, head, first, begin, p + 1, first < coded);
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    if (g < j.d / kKiviGroup) room[g * kKiviGroup + lane] = s.o[g];
  if (lane == 0) ml[warp] = {s.m, s.l};
  __syncthreads();
  merge_warps(j, query + j.d, ml, row, blockIdx.y);
}

// Grid: tokens x heads. Adds the splits in their order.
template <class T>
__global__ void __launch_bounds__(kThreads) kivi_combine_kernel(Job<T> j) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * j.heads + blockIdx.y;
  const float2* ml = j.ml + row * j.splits;
  float top = j.sinks ? j.sinks[blockIdx.y] : -INFINITY, l = 0;
  for (int s = 0; s < j.splits; ++s) top = fmaxf(top, ml[s].x);
  for (int s = 0; s < j.splits; ++s) l += weight_of(ml[s].x, top) * ml[s].y;
  if (j.sinks) l += expf(j.sinks[blockIdx.y] - top);
  for (int c = threadIdx.x; c < j.d; c += kThreads) {
    float sum = 0;
    for (int s = 0; s < j.splits; ++s) sum = fmaf(weight_of(ml[s].x, top), j.o[(row * j.splits + s) * j.d + c], sum);
    j.out[row * j.d + c] = from_f32<T>(sum / l);
  }
}

// As many splits as give every multiprocessor four blocks, by the shapes alone: the host reads no position.
int splits_of(const CudaState& s, int64_t blocks, int64_t capacity) {
  const int64_t wanted = 4 * s.sms() / blocks, most = capacity / kKiviGroup / kWarps;
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, most), 1, kMaxSplits));
}

template <class T, int kBits>
auto kernel_of(int d) {
  return d <= 64    ? kivi_attention_kernel<T, kBits, 2>
         : d <= 128 ? kivi_attention_kernel<T, kBits, 4>
         : d <= 256 ? kivi_attention_kernel<T, kBits, 8>
                    : kivi_attention_kernel<T, kBits, 16>;
}

template <class T>
void launch(CudaState& s, Job<T> job, int64_t tokens, int bits) {
  const int64_t rows = tokens * job.heads;
  job.splits = splits_of(s, rows, job.capacity);
  if (job.splits > 1) {
    job.o = s.scratch_of<float>(rows * job.splits * (job.d + 2));
    job.ml = reinterpret_cast<float2*>(job.o + rows * job.splits * job.d);
  }
  const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(job.heads), static_cast<unsigned>(job.splits));
  const size_t shared = sizeof(float) * static_cast<size_t>(job.d) * (1 + kWarps);
  (bits == 2 ? kernel_of<T, 2>(job.d) : kernel_of<T, 4>(job.d))<<<grid, kThreads, shared, s.stream>>>(job);
  FEWBIT_CUDA_LAUNCHED();
  if (job.splits == 1) return;
  kivi_combine_kernel<T><<<dim3(grid.x, grid.y), kThreads, 0, s.stream>>>(job);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace

void kivi_attention(Exec& ex, ConstTensorView q, ConstTensorView positions, const KiviCache& c, const AttentionArgs& a,
                    TensorView out) {
  const int64_t batch = c.k.shape[0], len = q.rows() / batch;
  FEWBIT_ASSERT(q.rows() % batch == 0 && consistent(c, q.dtype, len) && c.k.shape[1] == a.kv_heads);
  FEWBIT_ASSERT(a.heads % a.kv_heads == 0 && c.k_recent.shape[3] == a.head_dim && q.cols() == a.heads * a.head_dim);
  FEWBIT_ASSERT(positions.numel() == q.rows() && positions.dtype == DType::i32);
  FEWBIT_ASSERT(out.dtype == q.dtype && out.numel() == q.numel());
  if (a.head_dim > 512)
    fail(ErrorKind::unsupported, "attention over a cache of KIVI's form on a GPU: heads of " +
                                     std::to_string(a.head_dim) + " features; expected 512 at most; take fp8");
  if (q.rows() == 0) return;
  dispatch_f32_bf16(q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(ex.cuda_state(),
           Job<T>{.q = q.as<T>(),
                  .k = c.k.as<uint8_t>(),
                  .v = c.v.as<uint8_t>(),
                  .k_scales = static_cast<const __nv_bfloat162*>(c.k_scales.data),
                  .v_scales = static_cast<const __nv_bfloat162*>(c.v_scales.data),
                  .k_recent = c.k_recent.as<T>(),
                  .v_recent = c.v_recent.as<T>(),
                  .positions = positions.as<int32_t>(),
                  .sinks = a.sinks.data ? a.sinks.as<float>() : nullptr,
                  .out = out.as<T>(),
                  .d = static_cast<int>(a.head_dim),
                  .heads = a.heads,
                  .kv_heads = a.kv_heads,
                  .len = static_cast<int>(len),
                  .capacity = c.k.shape[2],
                  .ring = c.k_recent.shape[2],
                  .window = a.window,
                  .chunk = a.chunk,
                  .scale = a.scale,
                  .softcap = a.softcap},
           q.rows(), c.bits);
  });
}

}  // namespace fewbit::cuda
