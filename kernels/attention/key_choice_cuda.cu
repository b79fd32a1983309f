// The choice of keys of sparse attention. First the scores of some queries with all keys go to scratch memory: a block
// has 32 keys of one query, staged in shared memory with the query's heads; its threads share the heads of a key. Then
// a block has a query: it finds the smallest score that is still chosen by its bits, eight at a time from the top, and
// writes the positions above it, and of those that equal it the first ones, in their order. Both are exact; nothing
// depends on how blocks run. Bytes: the keys once a query from L2, the scores twice and four times.
#include "kernels/attention/key_choice.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kKeys = 32;                           // of a block of scores, one a lane
constexpr int64_t kScoreBytes = int64_t{64} << 20;  // scratch memory: so many queries at once as fit

// A number whose order is that of the scores: a NaN behind all.
__device__ __forceinline__ uint32_t ordered(float x) {
  if (isnan(x)) return 0;
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Grid: tiles of 32 keys x queries. Shared: the query [heads, d], the keys [32, d + 1], the weights [heads].
template <class T>
__global__ void __launch_bounds__(kThreads)
    score_keys_kernel(const T* q, const T* k, const T* weights, const int32_t* positions, uint32_t* scores,
                      int64_t first, int64_t len, int rows, int every, int heads, int d) {
  extern __shared__ float shared[];
  __shared__ float parts[kWarps][kKeys];
  float *query = shared, *tile = query + heads * d, *weight = tile + kKeys * (d + 1);
  const int64_t t = first + blockIdx.y;
  const int keys = rows / every, key0 = static_cast<int>(blockIdx.x) * kKeys, count = (positions[t] + 1) / every;
  if (key0 >= count) return;
  const T* own = k + (t / len * rows + static_cast<int64_t>(key0) * every + every - 1) * d;
  for (int i = threadIdx.x; i < heads * d; i += kThreads) query[i] = to_f32(q[t * heads * d + i]);
  for (int i = threadIdx.x; i < kKeys * d; i += kThreads)
    tile[i / d * (d + 1) + i % d] =
        key0 + i / d < keys ? to_f32(own[static_cast<int64_t>(i / d) * every * d + i % d]) : 0.f;
  for (int i = threadIdx.x; i < heads; i += kThreads) weight[i] = to_f32(weights[t * heads + i]);
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum = 0;
  for (int h = warp; h < heads; h += kWarps) {
    float dot = 0;
    for (int c = 0; c < d; ++c) dot = fmaf(query[h * d + c], tile[lane * (d + 1) + c], dot);
    sum = fmaf(weight[h], isnan(dot) ? dot : fmaxf(dot, 0.f), sum);
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || key0 + lane >= count) return;
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += parts[w][lane];
  scores[static_cast<int64_t>(blockIdx.y) * keys + key0 + lane] = ordered(sum);
}

// How many flags of threads before this one are set, and of all: `shared` has room for kWarps + 1.
__device__ __forceinline__ int flags_before(bool flag, int* shared, int* all) {
  const unsigned mask = __ballot_sync(0xffffffffu, flag);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
  if (lane == 0) shared[warp] = __popc(mask);
  __syncthreads();
  int before = __popc(mask & ((1u << lane) - 1)), total = 0;
  for (int w = 0; w < kWarps; ++w) {
    before += w < warp ? shared[w] : 0;
    total += shared[w];
  }
  *all = total;
  return before;
}

// The n-th largest of the scores, 1 <= n <= count, and how many of those that equal it are among the n.
__device__ __forceinline__ uint32_t nth_largest(const uint32_t* scores, int count, int n, int* equal) {
  __shared__ int histogram[256];
  __shared__ uint32_t digit;
  __shared__ int left;
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    histogram[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kThreads)
      if (shift == 24 || scores[i] >> (shift + 8) == prefix) atomicAdd(&histogram[scores[i] >> shift & 255], 1);
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = 255, rest = n;
      while (histogram[bin] < rest) rest -= histogram[bin--];
      digit = static_cast<uint32_t>(bin), left = rest;
    }
    __syncthreads();
    prefix = prefix << 8 | digit, n = left;
  }
  *equal = n;
  return prefix;
}

// Grid: queries.
__global__ void __launch_bounds__(kThreads)
    choose_keys_kernel(const uint32_t* scores, const int32_t* positions, int32_t* chosen, int64_t first, int keys,
                       int every, int n) {
  static_assert(kThreads == 256, "a bin of the histogram for every thread");
  __shared__ int counts[kWarps + 1];
  const int64_t t = first + blockIdx.x;
  const int count = (positions[t] + 1) / every;
  int32_t* to = chosen + t * n;
  scores += static_cast<int64_t>(blockIdx.x) * keys;
  if (count <= n) {
    for (int i = threadIdx.x; i < n; i += kThreads) to[i] = i < count ? i : -1;
    return;
  }
  int equal = 0;
  const uint32_t last = nth_largest(scores, count, n, &equal);
  int written = 0, seen = 0;  // positions so far; and scores that equal the last
  for (int begin = 0; begin < count; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const uint32_t score = i < count ? scores[i] : 0;
    int all = 0;
    const bool ties = i < count && score == last;
    const int rank = seen + flags_before(ties, counts, &all);
    seen += all;
    const bool take = i < count && (score > last || (ties && rank < equal));
    const int at = written + flags_before(take, counts, &all);
    written += all;
    if (take) to[at] = i;
  }
}

}  // namespace

void choose_keys(Exec& ex, ConstTensorView q, ConstTensorView k, ConstTensorView weights, ConstTensorView positions,
                 int64_t every, TensorView chosen) {
  const int64_t tokens = q.rows();
  if (tokens == 0) return;
  CudaState& s = ex.cuda_state();
  const int rows = static_cast<int>(k.shape[1]), block = static_cast<int>(every), keys = std::max(1, rows / block);
  const int d = static_cast<int>(k.shape[2]);
  const int heads = static_cast<int>(weights.cols()), n = static_cast<int>(chosen.cols());
  const int64_t len = tokens / k.shape[0];
  const int64_t at_once = std::min<int64_t>({tokens, 65535, std::max<int64_t>(1, kScoreBytes / 4 / keys)});
  const size_t shared = sizeof(float) * static_cast<size_t>(heads * d + kKeys * (d + 1) + heads);
  if (shared > s.max_shared())
    fail(ErrorKind::unsupported, "choose_keys: " + std::to_string(heads) + " index heads of " + std::to_string(d) +
                                     " features do not fit into the GPU's shared memory");
  uint32_t* scores = s.scratch_of<uint32_t>(at_once * keys);
  dispatch_f32_bf16(q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    FEWBIT_CUDA_CALL(cudaFuncSetAttribute(score_keys_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared)));
    for (int64_t first = 0; first < tokens; first += at_once) {
      const auto some = static_cast<unsigned>(std::min(at_once, tokens - first));
      const dim3 tiles(static_cast<unsigned>((keys + kKeys - 1) / kKeys), some);
      score_keys_kernel<T><<<tiles, kThreads, shared, s.stream>>>(
          q.as<T>(), k.as<T>(), weights.as<T>(), positions.as<int32_t>(), scores, first, len, rows, block, heads, d);
      FEWBIT_CUDA_LAUNCHED();
      choose_keys_kernel<<<some, kThreads, 0, s.stream>>>(scores, positions.as<int32_t>(), chosen.as<int32_t>(), first,
                                                          keys, block, n);
      FEWBIT_CUDA_LAUNCHED();
    }
  });
}

}  // namespace fewbit::cuda
