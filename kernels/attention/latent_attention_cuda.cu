// Latent attention. Over the tokens at hand: queries, keys and values of equal width are laid out for the kernels of
// plain attention, the values padded with zeros; where keys are chosen, a block has one head of one query and gathers
// them. Over the cache in three launches: queries times the key weights; scores, softmax and the mean of the latents,
// split over the keys, a warp having one head; the splits merged and multiplied by the value weights.
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/latent_attention.h"
#include "kernels/attention/latent_ends.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTokens = 8;         // that share the weights of a product
constexpr int kTile = 16;          // keys in shared memory at once
constexpr int kMostRank = 1024;    // 32 registers of a lane
constexpr int kMostChosen = 8192;  // scores of a query in shared memory

struct Sizes {
  int heads, nope, rope, value, rank;
  float scale;
};

Sizes sizes_of(const LatentArgs& a) {
  return {
      a.heads, static_cast<int>(a.nope), static_cast<int>(a.rope), static_cast<int>(a.value), static_cast<int>(a.rank),
      a.scale};
}

unsigned blocks_for(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

// Of every token and head: its query, its key and its value padded to nope + rope values. A thread has a value of each.
template <class T>
__global__ void lay_out_kernel(const T* q_nope, const T* q_rope, const T* kv, const T* k_rope, Sizes z, T* q, T* k,
                               T* v, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const int d = z.nope + z.rope, c = static_cast<int>(i % d);
  const int64_t th = i / d, t = th / z.heads;  // token and head; token
  const T* own = kv + th * (z.nope + z.value);
  q[i] = c < z.nope ? q_nope[th * z.nope + c] : q_rope[th * z.rope + c - z.nope];
  k[i] = c < z.nope ? own[c] : k_rope[t * z.rope + c - z.nope];
  v[i] = c < z.value ? own[z.nope + c] : from_f32<T>(0.f);
}

// The first `value` of every d values.
template <class T>
__global__ void take_values_kernel(const T* x, int d, int value, T* out, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) out[i] = x[i / value * d + i % value];
}

// Scores of one query in shared memory become weights; returns their sum. `reduce` has room for 32.
__device__ __forceinline__ float softmax_in_place(float* scores, int n, float* reduce) {
  float top = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) top = fmaxf(top, scores[i]);
  top = block_max(top, reduce);
  for (int i = threadIdx.x; i < n; i += kThreads) sum += scores[i] = expf(scores[i] - top);
  return block_sum(sum, reduce);
}

// Grid: heads x tokens. Shared: scores of the chosen keys [choices], the query [nope + rope].
template <class T>
__global__ void __launch_bounds__(kThreads)
    chosen_attention_kernel(const T* q_nope, const T* q_rope, const T* kv, const T* k_rope, const int32_t* chosen,
                            int choices, int64_t len, Sizes z, T* out) {
  extern __shared__ float scores[];
  __shared__ float reduce[32];
  float* query = scores + choices;
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = z.nope + z.value;
  const int64_t t = blockIdx.y, first = t / len * len, th = t * z.heads + head;
  chosen += t * choices;
  for (int i = threadIdx.x; i < z.nope; i += kThreads) query[i] = to_f32(q_nope[th * z.nope + i]) * z.scale;
  for (int i = threadIdx.x; i < z.rope; i += kThreads) query[z.nope + i] = to_f32(q_rope[th * z.rope + i]) * z.scale;
  int count = 0;  // of keys that are there: -1 ends them
  for (int i = threadIdx.x; i < choices; i += kThreads) count += chosen[i] >= 0;
  count = static_cast<int>(block_sum(static_cast<float>(count), reduce));
  for (int i = warp; i < count; i += kWarps) {
    const int64_t row = first + chosen[i];
    const T *key = kv + (row * z.heads + head) * each, *turned = k_rope + row * z.rope;
    float dot = 0;
    for (int c = lane; c < z.nope; c += 32) dot = fmaf(query[c], to_f32(key[c]), dot);
    for (int c = lane; c < z.rope; c += 32) dot = fmaf(query[z.nope + c], to_f32(turned[c]), dot);
    dot = warp_sum(dot);
    if (lane == 0) scores[i] = dot;
  }
  __syncthreads();
  const float sum = softmax_in_place(scores, count, reduce);
  for (int c = threadIdx.x; c < z.value; c += kThreads) {
    float mean = 0;
    for (int i = 0; i < count; ++i)
      mean = fmaf(scores[i], to_f32(kv[((first + chosen[i]) * z.heads + head) * each + z.nope + c]), mean);
    out[th * z.value + c] = from_f32<T>(mean / sum);
  }
}

// absorbed[t, h, r] = scale * sum_i q_nope[t, h, i] W[h (nope + value) + i, r]. Grid: ranks / 256 x heads x tokens / 8.
template <class T>
__global__ void __launch_bounds__(kThreads)
    absorb_queries_kernel(const T* q_nope, const T* w, Sizes z, int64_t tokens, float* absorbed) {
  extern __shared__ float query[];  // [kTokens, nope]
  const int r = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y;
  const int64_t t0 = static_cast<int64_t>(blockIdx.z) * kTokens;
  for (int i = threadIdx.x; i < kTokens * z.nope; i += kThreads) {
    const int64_t t = t0 + i / z.nope;
    query[i] = t < tokens ? to_f32(q_nope[(t * z.heads + head) * z.nope + i % z.nope]) * z.scale : 0.f;
  }
  __syncthreads();
  if (r >= z.rank) return;
  const T* rows = w + static_cast<int64_t>(head) * (z.nope + z.value) * z.rank + r;
  float sum[kTokens] = {};
  for (int i = 0; i < z.nope; ++i) {
    const float x = to_f32(rows[static_cast<int64_t>(i) * z.rank]);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sum[t] = fmaf(query[t * z.nope + i], x, sum[t]);
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
    if (t0 + t < tokens) absorbed[((t0 + t) * z.heads + head) * z.rank + r] = sum[t];
}

// What a split of the keys of a head of a query adds up to.
struct Partial {
  float* mean;          // [tokens, heads, splits, rank], not divided
  float *top, *weight;  // [tokens, heads, splits]
  int splits;
};

// L: what the latents are stored as, T or E4M3 with a scale for every kLatentGroup features of a row.
template <class T, class L>
struct Cached {
  const float* absorbed;  // [tokens, heads, rank]
  const T* q_rope;
  const L* latent;
  const float* scales;  // [batch, capacity, groups], or null
  const T* k_rope;
  const int32_t* positions;
  const int32_t* chosen;  // or null
  int choices;
  int64_t len, capacity;
  int64_t before;  // rows in front of these: which sequence a row is of
};

// Grid: splits x heads / 8 x tokens. Shared: of 16 keys the latents and turned parts [16, rank + rope]. kOwn: values of
// the latent that a lane has; rank <= 32 kOwn.
template <class T, class L, int kOwn>
__global__ void __launch_bounds__(kThreads) attend_latents_kernel(const Cached<T, L> a, Sizes z, Partial to) {
  extern __shared__ float tile[];
  const int lane = threadIdx.x % 32, head = blockIdx.y * kWarps + threadIdx.x / 32, d = z.rank + z.rope;
  const int64_t t = blockIdx.z, first = (a.before + t) / a.len * a.capacity;
  const int32_t* chosen = a.chosen ? a.chosen + t * a.choices : nullptr;
  const bool inside = head < z.heads;
  float q[kOwn], mean[kOwn] = {}, top = -INFINITY, weight = 0;
  constexpr int kTurned = 8;  // rope <= 256
  float turned[kTurned];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int c = i * 32 + lane;
    q[i] = inside && c < z.rank ? a.absorbed[(t * z.heads + head) * z.rank + c] : 0.f;
  }
#pragma unroll
  for (int i = 0; i < kTurned; ++i) {
    const int c = i * 32 + lane;
    turned[i] = inside && c < z.rope ? to_f32(a.q_rope[(t * z.heads + head) * z.rope + c]) * z.scale : 0.f;
  }
  const int keys = chosen ? a.choices : a.positions[t] + 1, each = (keys + to.splits - 1) / to.splits;
  const int begin = blockIdx.x * each, end = min(begin + each, keys);
  const int64_t groups = latent_groups(z.rank);
  for (int key0 = begin; key0 < end; key0 += kTile) {
    const int some = min(kTile, end - key0);
    __syncthreads();  // the tile before has been used
    for (int i = threadIdx.x; i < some * d; i += kThreads) {
      const int j = i / d, c = i % d, position = chosen ? chosen[key0 + j] : key0 + j;
      if (position < 0) continue;
      const int64_t row = first + position;
      if (c >= z.rank)
        tile[i] = to_f32(a.k_rope[row * z.rope + c - z.rank]);
      else if constexpr (std::is_same_v<L, __nv_fp8_e4m3>)
        tile[i] = float(a.latent[row * z.rank + c]) * a.scales[row * groups + c / int{kLatentGroup}];
      else
        tile[i] = to_f32(a.latent[row * z.rank + c]);
    }
    __syncthreads();
    for (int j = 0; j < some; ++j) {
      if (chosen && chosen[key0 + j] < 0) break;
      const float* key = tile + j * d;
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (const int c = i * 32 + lane; c < z.rank) dot = fmaf(q[i], key[c], dot);
#pragma unroll
      for (int i = 0; i < kTurned; ++i)
        if (const int c = i * 32 + lane; c < z.rope) dot = fmaf(turned[i], key[z.rank + c], dot);
      dot = warp_sum(dot);
      const float higher = fmaxf(top, dot), rescale = expf(top - higher), p = expf(dot - higher);
      weight = fmaf(weight, rescale, p);
      top = higher;
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (const int c = i * 32 + lane; c < z.rank) mean[i] = fmaf(mean[i], rescale, p * key[c]);
    }
  }
  if (!inside) return;
  const int64_t at = (t * z.heads + head) * to.splits + blockIdx.x;
  if (lane == 0) to.top[at] = top, to.weight[at] = weight;
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    if (const int c = i * 32 + lane; c < z.rank) to.mean[at * z.rank + c] = mean[i];
}

// Merges the splits of a head of a query and multiplies by its value weights. Grid: heads x tokens.
template <class T>
__global__ void __launch_bounds__(kThreads) latent_values_kernel(Partial from, const T* w, Sizes z, T* out) {
  extern __shared__ float latent[];  // [rank]
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t th = static_cast<int64_t>(blockIdx.y) * z.heads + head, at = th * from.splits;
  float top = -INFINITY, sum = 0;
  for (int s = 0; s < from.splits; ++s) top = fmaxf(top, from.top[at + s]);
  for (int s = 0; s < from.splits; ++s) sum += from.weight[at + s] * expf(from.top[at + s] - top);
  for (int c = threadIdx.x; c < z.rank; c += kThreads) {
    float mean = 0;
    for (int s = 0; s < from.splits; ++s)
      mean = fmaf(expf(from.top[at + s] - top), from.mean[(at + s) * z.rank + c], mean);
    latent[c] = mean / sum;
  }
  __syncthreads();
  const T* rows = w + (static_cast<int64_t>(head) * (z.nope + z.value) + z.nope) * z.rank;
  for (int c = warp; c < z.value; c += kWarps) {
    float dot = 0;
    for (int r = lane; r < z.rank; r += 32)
      dot = fmaf(latent[r], to_f32(rows[static_cast<int64_t>(c) * z.rank + r]), dot);
    dot = warp_sum(dot);
    if (lane == 0) out[th * z.value + c] = from_f32<T>(dot);
  }
}

template <class K>
void allow_shared(K* kernel, size_t bytes) {
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

template <class T>
void attend_chosen(CudaState& s, const LatentQueries& q, ConstTensorView kv, ConstTensorView k_rope, int64_t seqs,
                   const Sizes& z, TensorView out) {
  const auto choices = static_cast<int>(q.chosen.cols());
  if (choices > kMostChosen)
    fail(ErrorKind::unsupported, "latent_attention: a choice of " + std::to_string(choices) +
                                     " keys; a GPU takes up to " + std::to_string(kMostChosen));
  const size_t shared = sizeof(float) * static_cast<size_t>(choices + z.nope + z.rope);
  allow_shared(chosen_attention_kernel<T>, shared);
  const int64_t tokens = out.rows(), len = tokens / seqs;
  constexpr int64_t kMost = 65535;  // of a grid's second dimension; whole sequences, for keys are counted from there
  const int64_t at_once = std::max<int64_t>(1, kMost / len) * len;
  if (len > kMost) fail(ErrorKind::unsupported, "latent_attention: more than 65,535 tokens of a sequence at once");
  for (int64_t t = 0; t < tokens; t += at_once) {
    const int64_t some = std::min(at_once, tokens - t);
    chosen_attention_kernel<T>
        <<<dim3(static_cast<unsigned>(z.heads), static_cast<unsigned>(some)), kThreads, shared, s.stream>>>(
            q.nope.as<T>() + t * q.nope.cols(), q.rope.as<T>() + t * q.rope.cols(), kv.as<T>() + t * kv.cols(),
            k_rope.as<T>() + t * k_rope.cols(), q.chosen.as<int32_t>() + t * choices, choices, len, z,
            out.as<T>() + t * out.cols());
    FEWBIT_CUDA_LAUNCHED();
  }
}

template <class T, class L>
void attend_latents(CudaState& s, const Cached<T, L>& a, const Sizes& z, const Partial& to, int64_t tokens) {
  auto* kernel = z.rank <= 128   ? attend_latents_kernel<T, L, 4>
                 : z.rank <= 256 ? attend_latents_kernel<T, L, 8>
                 : z.rank <= 512 ? attend_latents_kernel<T, L, 16>
                                 : attend_latents_kernel<T, L, 32>;
  const size_t shared = sizeof(float) * static_cast<size_t>(kTile * (z.rank + z.rope));
  allow_shared(kernel, shared);
  const dim3 grid(static_cast<unsigned>(to.splits), static_cast<unsigned>((z.heads + kWarps - 1) / kWarps),
                  static_cast<unsigned>(tokens));
  kernel<<<grid, kThreads, shared, s.stream>>>(a, z, to);
  FEWBIT_CUDA_LAUNCHED();
}

// Enough blocks for the GPU, each of at least 64 keys of a full cache.
int splits_for(const CudaState& s, int heads, int64_t tokens, int64_t keys) {
  const int64_t blocks = tokens * ((heads + kWarps - 1) / kWarps);
  return static_cast<int>(std::clamp<int64_t>(4 * s.sms() / blocks, 1, std::min<int64_t>(64, (keys + 63) / 64)));
}

}  // namespace

void latent_attention(Exec& ex, const LatentQueries& q, ConstTensorView kv, ConstTensorView k_rope, int64_t seqs,
                      const LatentArgs& args, TensorView out) {
  if (out.numel() == 0) return;
  const Sizes z = sizes_of(args);
  CudaState& s = ex.cuda_state();
  const int64_t tokens = out.rows(), d = args.nope + args.rope, n = tokens * args.heads * d;
  if (!q.chosen.data && (d > 256 || args.value > d))
    fail(ErrorKind::unsupported, "latent_attention: keys of " + std::to_string(d) + " features and values of " +
                                     std::to_string(args.value) +
                                     "; a GPU takes keys of up to 256, and values that are not wider");
  dispatch_f32_bf16(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (q.chosen.data) return attend_chosen<T>(s, q, kv, k_rope, seqs, z, out);
    const Shape shape = {tokens, args.heads * d};
    const Tensor wide_q = ex.alloc(out.dtype, shape), k = ex.alloc(out.dtype, shape), v = ex.alloc(out.dtype, shape),
                 wide = ex.alloc(out.dtype, shape);
    lay_out_kernel<T><<<blocks_for(n), kThreads, 0, s.stream>>>(q.nope.as<T>(), q.rope.as<T>(), kv.as<T>(),
                                                                k_rope.as<T>(), z, wide_q.view().as<T>(),
                                                                k.view().as<T>(), v.view().as<T>(), n);
    FEWBIT_CUDA_LAUNCHED();
    cuda::attention(ex, wide_q, k, v, seqs,
                    {.heads = args.heads, .kv_heads = args.heads, .head_dim = d, .scale = args.scale}, wide);
    take_values_kernel<T><<<blocks_for(out.numel()), kThreads, 0, s.stream>>>(wide.view().as<T>(), static_cast<int>(d),
                                                                              z.value, out.as<T>(), out.numel());
    FEWBIT_CUDA_LAUNCHED();
  });
}

void latent_attention_cached(Exec& ex, const LatentQueries& q, ConstTensorView w, ConstTensorView positions,
                             const LatentCache& cache, const LatentArgs& args, TensorView out) {
  if (out.numel() == 0) return;
  if (args.rank > kMostRank || args.rope > 256)
    fail(ErrorKind::unsupported, "latent_attention: a latent of " + std::to_string(args.rank) + " and " +
                                     std::to_string(args.rope) + " features; a GPU takes up to 1024 and 256");
  const Sizes z = sizes_of(args);
  CudaState& s = ex.cuda_state();
  if (out.dtype == DType::bf16 && !q.chosen.data && !cache.scales.data && latent_wide::takes(s, z.nope, z.rope, z.rank))
    return latent_wide::attend(s, q, w, positions, cache, args, out);
  const int64_t all = out.rows(), len = all / cache.latent.shape[0], capacity = cache.latent.shape[1];
  const int64_t at_once =
      std::clamp<int64_t>(latent_wide::kAbsorbed / (args.heads * args.rank), 1, std::min<int64_t>(all, 65535));
  const int choices = q.chosen.data ? static_cast<int>(q.chosen.cols()) : 0;
  const int splits = splits_for(s, z.heads, at_once, choices > 0 ? choices : capacity);
  const int64_t rows = at_once * z.heads;
  float* absorbed = s.scratch_of<float>(rows * z.rank + rows * splits * (z.rank + 2));
  float* mean = absorbed + rows * z.rank;
  const Partial partial{mean, mean + rows * splits * z.rank, mean + rows * splits * (z.rank + 1), splits};
  dispatch_f32_bf16(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for (int64_t t = 0; t < all; t += at_once) {
      const int64_t tokens = std::min(at_once, all - t);
      const dim3 grid(static_cast<unsigned>((z.rank + kThreads - 1) / kThreads), static_cast<unsigned>(z.heads),
                      static_cast<unsigned>((tokens + kTokens - 1) / kTokens));
      absorb_queries_kernel<T><<<grid, kThreads, sizeof(float) * kTokens* static_cast<size_t>(z.nope), s.stream>>>(
          q.nope.as<T>() + t * q.nope.cols(), w.as<T>(), z, tokens, absorbed);
      FEWBIT_CUDA_LAUNCHED();
      const auto attend = [&](auto* latent) {
        using L = std::remove_const_t<std::remove_pointer_t<decltype(latent)>>;
        const Cached<T, L> a{absorbed,
                             q.rope.as<T>() + t * q.rope.cols(),
                             latent,
                             cache.scales.data ? cache.scales.as<float>() : nullptr,
                             cache.k_rope.as<T>(),
                             positions.as<int32_t>() + t,
                             choices > 0 ? q.chosen.as<int32_t>() + t * choices : nullptr,
                             choices,
                             len,
                             capacity,
                             t};
        attend_latents(s, a, z, partial, tokens);
      };
      if (cache.scales.data)
        attend(static_cast<const __nv_fp8_e4m3*>(cache.latent.data));
      else
        attend(cache.latent.as<T>());
      latent_values_kernel<T><<<dim3(static_cast<unsigned>(z.heads), static_cast<unsigned>(tokens)), kThreads,
                                sizeof(float) * static_cast<size_t>(z.rank), s.stream>>>(partial, w.as<T>(), z,
                                                                                         out.as<T>() + t * out.cols());
      FEWBIT_CUDA_LAUNCHED();
    }
  });
}

}  // namespace fewbit::cuda
