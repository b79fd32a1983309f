#pragma once
// Attention of one new token over its cache inside decode_layers_cuda.cu. A block has up to four query heads of one kv
// head and an equal run of the keys in sight; the block whose run ends at the new token makes its key and value first.
// In a warp eight lanes share a key, so four keys are in hand at a time. Each block leaves (m, l, O) in f32; the last
// of a set of heads adds them in the order of the runs.
#include "kernels/attention/kv_quantize.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/decode/decode_layers_product.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/model/hadamard.cuh"
#include "kernels/model/rope.cuh"

namespace fewbit::cuda {

inline constexpr int kKeyLanes = 8;  // lanes of a key
inline constexpr int kWarpKeys = 32 / kKeyLanes;
inline constexpr int kRoundKeys = kWarpKeys * kStepWarps;  // keys a block has in hand
inline constexpr int kStepRows = kHeadsTogether + 2;       // queries, the new key, the new value

// Shared memory of attention, in the order of its parts; 16-byte aligned.
template <int D>
struct StepAttentionSpace {
  float o[kStepWarps][kHeadsTogether][D];
  float wide[kStepRows][D];
  float m[kStepWarps * kWarpKeys][kHeadsTogether];
  float l[kStepWarps][kHeadsTogether];
  __nv_bfloat16 rows[kStepRows][D];
};

// The same where attention is outside: a warp's head.
template <int D>
struct StepAppendSpace {
  float wide[kStepWarps][D];
  __nv_bfloat16 rows[kStepWarps][D];
};

// What a block has of attention, in every layer of a step.
struct StepAttention {
  int set, split;  // set: of all kv heads
  int kv_head, head0, heads;
  int begin, end;  // keys
  bool has_new;    // the new token's among them
  bool none;       // nothing at all: more blocks than sets times splits

  __device__ StepAttention(const StepJob& job, int position, int block) {
    set = block / job.splits, split = block % job.splits;
    kv_head = set / job.sets;
    none = kv_head >= job.kv_heads;
    const int group = job.heads / job.kv_heads, each = (group + job.sets - 1) / job.sets, own = set % job.sets * each;
    head0 = kv_head * group + own;
    heads = min(each, group - own);
    const int low = job.visible > 0 ? max(0, position + 1 - job.visible) : 0, all = position + 1 - low;
    const int run = (all + job.splits - 1) / job.splits;
    begin = low + min(all, split * run);
    end = low + min(all, (split + 1) * run);
    has_new = begin <= position && position < end;
  }
};

// kN values of a row of the cache, as they lie.
template <int kN, class C>
struct RowPart {
  using Word =
      std::conditional_t<kN * sizeof(C) % 16 == 0, uint4, std::conditional_t<kN * sizeof(C) % 8 == 0, uint2, uint32_t>>;
  static constexpr int kWords = kN * sizeof(C) / sizeof(Word), kEach = kN / kWords;
  Word words[kWords];

  __device__ __forceinline__ void load(const C* from) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const Word*>(from)[i];
  }
  __device__ __forceinline__ float operator[](int i) const {
    return to_f32(reinterpret_cast<const C*>(&words[i / kEach])[i % kEach]);
  }
};

template <class C>
__device__ __forceinline__ const C* cache_row(const StepJob& job, const void* cache, int kv_head, int key, int d) {
  return static_cast<const C*>(cache) + (kv_head * job.capacity + key) * d;
}

// The block's keys and values on their way to the L2 while the weights stream; no more than half a megabyte.
template <int D, class C>
__device__ __forceinline__ void step_prefetch_keys(const StepJob& job, const StepLayer& layer,
                                                   const StepAttention& own) {
  if (own.none) return;
  constexpr int kLine = 128, kMost = 2048;
  const int lines = min(static_cast<int>((own.end - own.begin) * D * sizeof(C) / kLine), kMost);
  const int64_t first = (own.kv_head * job.capacity + own.begin) * D * sizeof(C);
  for (int i = threadIdx.x; i < lines; i += kStepThreads) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(layer.k) + first + i * kLine));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(layer.v) + first + i * kLine));
  }
}

// Row `row` of the block's queries (below kHeadsTogether), its key or its value: from the product, normed, turned,
// rounded where the ops round. A warp's work.
template <int D>
__device__ __forceinline__ void step_row(const StepJob& job, const StepLayer& layer, int which, int head,
                                         const float* turns, __nv_bfloat16* row, float* wide) {
  const int lane = threadIdx.x % 32;
  const auto* from = reinterpret_cast<const unsigned short*>(job.qkv) +
                     ((which == 0 ? 0 : job.heads + (which - 1) * job.kv_heads) + head) * D;
  float v[D / 32];
#pragma unroll
  // not as bf16: that __ldcg is not volatile, and was moved out of the loop over layers
  for (int i = 0; i < D / 32; ++i) v[i] = __uint_as_float(static_cast<uint32_t>(__ldcg(from + lane + 32 * i)) << 16);
  if (which < 2 && layer.head_norm[which]) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) squares = fmaf(v[i], v[i], squares);
    const float inv = 1.f / sqrtf(warp_sum(squares) / D + job.head_eps);
#pragma unroll
    for (int i = 0; i < D / 32; ++i)
      v[i] = rounded(v[i] * inv * (to_f32(layer.head_norm[which][lane + 32 * i]) + job.weight_offset));
  }
#pragma unroll
  for (int i = 0; i < D / 32; ++i) row[lane + 32 * i] = __float2bfloat16_rn(v[i]);
  __syncwarp();
  if (which == 2) return;
  turn_head(row, row, turns, job.half, lane);
  __syncwarp();
  if (job.run == 0) return;
  hadamard_head(row, row, wide, D, job.run, job.run_scale, lane);
  __syncwarp();
}

// Attention outside: the new token's queries are left in job.qkv as it reads them, its key and value in the cache. A
// head at a time for each warp, neighbouring heads in other blocks.
template <int D, class C>
__device__ __forceinline__ void step_append(const StepJob& job, const StepLayer& layer, int position,
                                            const float* turns, uint8_t* shared) {
  auto& space = *reinterpret_cast<StepAppendSpace<D>*>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x;
  __nv_bfloat16* row = space.rows[warp];
#pragma unroll 1
  for (int of_all = blockIdx.x + warp * blocks; of_all < job.heads + 2 * job.kv_heads; of_all += kStepWarps * blocks) {
    const int which = (of_all >= job.heads) + (of_all >= job.heads + job.kv_heads);
    const int head = of_all - (which == 0 ? 0 : job.heads + (which - 1) * job.kv_heads);
    step_row<D>(job, layer, which, head, turns, row, space.wide[warp]);
    if (which == 0)
      for (int i = lane; i < D; i += 32) job.qkv[head * D + i] = row[i];
    else
      store_row(row, static_cast<C*>(which == 2 ? layer.v : layer.k), which == 2 ? layer.v_scales : layer.k_scales,
                head * job.capacity + position, head, D);
    __syncwarp();
  }
}

template <int D, class C>
__device__ __forceinline__ void step_attention(const StepJob& job, const StepLayer& layer, const StepAttention& own,
                                               int position, const float* turns, uint8_t* shared) {
  if (own.none) return;
  auto& space = *reinterpret_cast<StepAttentionSpace<D>*>(shared);
  __shared__ bool last;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = own.kv_head;

  if (warp < (own.has_new ? kStepRows : kHeadsTogether)) {
    const int which = warp < kHeadsTogether ? 0 : warp - kHeadsTogether + 1;
    __nv_bfloat16* row = space.rows[warp];
    if (warp < own.heads || which > 0)
      step_row<D>(job, layer, which, which == 0 ? own.head0 + warp : kv_head, turns, row, space.wide[warp]);
    else
      for (int i = lane; i < D; i += 32) row[i] = __float2bfloat16_rn(0.f);
    if (which > 0)
      store_row(row, static_cast<C*>(which == 2 ? layer.v : layer.k), which == 2 ? layer.v_scales : layer.k_scales,
                kv_head * job.capacity + position, kv_head, D);
  }
  compute_sync();

  constexpr int kN = D / kKeyLanes;  // of a lane
  const int part = lane % kKeyLanes * kN, key_lane = lane / kKeyLanes;
  const int64_t scales_at = kTokenScales<C> ? kv_head * job.capacity : kv_head;
  float factor = job.scale * kLog2e, value_factor = 1.f;
  if constexpr (kIsCode<C> && !kTokenScales<C>)
    factor *= layer.k_scales[scales_at], value_factor = layer.v_scales[scales_at];
  float m[kHeadsTogether], l[kHeadsTogether], o[kHeadsTogether][kN];
#pragma unroll
  for (int h = 0; h < kHeadsTogether; ++h) {
    m[h] = -INFINITY, l[h] = 0;
#pragma unroll
    for (int i = 0; i < kN; ++i) o[h][i] = 0;
  }
  // A round's rows are asked for before the round before is worked on.
  const auto key_of = [&](int base) { return min(base + key_lane, own.end - 1); };
  const auto row_of = [&](const void* cache, int key) { return cache_row<C>(job, cache, kv_head, key, D) + part; };
  using Row = RowPart<kN, C>;
  int base = own.begin + warp * kWarpKeys;
  Row k, v;
  if (base < own.end) k.load(row_of(layer.k, key_of(base))), v.load(row_of(layer.v, key_of(base)));
#pragma unroll 1
  for (; base < own.end; base += kRoundKeys) {
    const bool valid = base + key_lane < own.end;
    const int key = key_of(base), next = base + kRoundKeys;
    Row next_k, next_v;
    if (next < own.end) next_k.load(row_of(layer.k, key_of(next))), next_v.load(row_of(layer.v, key_of(next)));
    float own_factor = factor, weight_factor = 1.f;
    if constexpr (kTokenScales<C>) {
      own_factor *= layer.k_scales[scales_at + key];
      weight_factor = layer.v_scales[scales_at + key];
    }
#pragma unroll
    for (int h = 0; h < kHeadsTogether; ++h) {
      RowPart<kN, __nv_bfloat16> q;
      q.load(space.rows[h] + part);
      float s = 0;
#pragma unroll
      for (int i = 0; i < kN; ++i) s = fmaf(q[i], k[i], s);
      s = warp_reduce(s, Sum{}, kKeyLanes);
      s = valid ? s * own_factor : -INFINITY;
      const float top = fmaxf(m[h], s), about = top == -INFINITY ? 0.f : top;
      const float keep = exp2_fast(m[h] - about), weight = exp2_fast(s - about);
      m[h] = top;
      l[h] = l[h] * keep + weight;
#pragma unroll
      for (int i = 0; i < kN; ++i) o[h][i] = fmaf(weight * weight_factor, v[i], o[h][i] * keep);
    }
    k = next_k, v = next_v;
  }

  // About one maximum of the block, then over the warp's keys: each of the four lanes of a part ends with one head.
  if (lane % kKeyLanes == 0)
#pragma unroll
    for (int h = 0; h < kHeadsTogether; ++h) space.m[warp * kWarpKeys + key_lane][h] = m[h];
  compute_sync();
  float top[kHeadsTogether];
  static_assert(kStepWarps * kWarpKeys == 32 && kHeadsTogether == 4);
#pragma unroll
  for (int h = 0; h < kHeadsTogether; ++h) {
    top[h] = warp_max(space.m[lane][h]);
    const float keep = m[h] == -INFINITY ? 0.f : exp2_fast(m[h] - top[h]);
    l[h] *= keep;
#pragma unroll
    for (int i = 0; i < kN; ++i) o[h][i] *= keep;
  }
  // The four lanes of a part add; each ends with one head.
  // the lower lane keeps the sum of `low`, the upper of `high`
  const auto halve = [&](float low, float high, int other) {
    const bool upper = lane & other;
    const float sent = __shfl_xor_sync(0xffffffffu, upper ? low : high, other);
    return (upper ? high : low) + sent;
  };
  const int head = key_lane;  // bit 1: lane & 16, bit 0: lane & 8
  const float sum_l = halve(halve(l[0], l[2], 16), halve(l[1], l[3], 16), 8);
  if (lane % kKeyLanes == 0) space.l[warp][head] = sum_l;
#pragma unroll
  for (int i = 0; i < kN; ++i)
    space.o[warp][head][part + i] = halve(halve(o[0][i], o[2][i], 16), halve(o[1][i], o[3][i], 16), 8);
  compute_sync();
  float* parts = job.o_parts + static_cast<int64_t>(blockIdx.x) * kHeadsTogether * D;
  for (int e = threadIdx.x; e < kHeadsTogether * D; e += kStepThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kStepWarps; ++w) sum += space.o[w][e / D][e % D];
    __stcg(parts + e, sum * value_factor);
  }
  if (threadIdx.x < kHeadsTogether) {
    float sum = 0;
    for (int w = 0; w < kStepWarps; ++w) sum += space.l[w][threadIdx.x];
    float biggest = top[0];
#pragma unroll
    for (int h = 1; h < kHeadsTogether; ++h)
      if (threadIdx.x == h) biggest = top[h];
    __stcg(job.ml_parts + blockIdx.x * kHeadsTogether + threadIdx.x, make_float2(biggest, sum));
  }

  compute_sync();
  if (threadIdx.x == 0) last = arrives_last(job.counters + 2 + own.set, static_cast<uint32_t>(job.splits));
  compute_sync();
  if (!last) return;
  for (int e = threadIdx.x; e < own.heads * D; e += kStepThreads) {
    const int64_t row = static_cast<int64_t>(own.set) * job.splits * kHeadsTogether;
    const float2* ml = job.ml_parts + row + e / D;
    const float* from = job.o_parts + row * D + e;
    float most = -INFINITY, all = 0, sum = 0;
    constexpr int kTogether = 8;
    for (int first = 0; first < job.splits; first += kTogether) {  // loads first
      float2 states[kTogether];
      float outs[kTogether];
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        const bool there = first + s < job.splits;
        states[s] = there ? __ldcg(ml + (first + s) * kHeadsTogether) : make_float2(-INFINITY, 0.f);
        outs[s] = there ? __ldcg(from + static_cast<int64_t>(first + s) * kHeadsTogether * D) : 0.f;
      }
      float top_now = most;
#pragma unroll
      for (int s = 0; s < kTogether; ++s) top_now = fmaxf(top_now, states[s].x);
      const float about = top_now == -INFINITY ? 0.f : top_now, keep = exp2_fast(most - about);
      most = top_now, all *= keep, sum *= keep;
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        const float weight = exp2_fast(states[s].x - about);
        all = fmaf(weight, states[s].y, all);
        sum = fmaf(weight, outs[s], sum);
      }
    }
    job.attended[own.head0 * D + e] = __float2bfloat16_rn(sum / all);
  }
}

}  // namespace fewbit::cuda
