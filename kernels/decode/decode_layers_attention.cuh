#pragma once
// Attention of one new token over its cache inside the kernel of decode_layers_kernel.cuh. A block has up to four query
// heads of one kv head and an equal range of the keys in sight (split-KV); the block whose range ends at the new token
// makes its key and value first. In a warp eight lanes share a key, so a warp has four keys in hand. Each block leaves
// its maximum m, sum l and output O in f32; the last block of a head set to arrive merges them in the order of the
// keys.
#include "kernels/decode/decode_layers_append.cuh"
#include "kernels/device/exponential.cuh"
#include "kernels/device/reduce.cuh"

namespace fewbit::cuda::decode_step {

inline constexpr int kKeyLanes = 8;  // lanes of a key
inline constexpr int kWarpKeys = 32 / kKeyLanes;
inline constexpr int kRoundKeys = kWarpKeys * kConsumerWarps;  // keys that a block has in hand

// Shared memory of attention by blocks with H query heads, in the order of use; 16-byte aligned.
template <int D, int H>
struct AttentionShared {
  static constexpr int kRows = H + 2;  // queries, the new key, the new value
  float o[kConsumerWarps][H][D];
  float wide[kRows][D];
  float m[kConsumerWarps * kWarpKeys][H];
  float l[kConsumerWarps][H];
  __nv_bfloat16 rows[kRows][D];
};

// What a block has of attention, in every layer of a step.
struct AttentionRange {
  int set, split;  // the head set, counted over all kv heads; the split of its keys
  int splits;      // of the keys in sight: no more than give every warp keys
  int kv_head, head0, heads;
  int begin, end;  // keys
  int position;    // of the new token
  bool has_new;    // the new token's among them
  bool none;       // nothing at all: more blocks than head sets times splits, or too few keys

  __device__ AttentionRange(const Job& job, int at, int block) : position(at) {
    set = block / job.key_splits, split = block % job.key_splits;
    kv_head = set / job.head_sets;
    const int group = job.heads / job.kv_heads, each = (group + job.head_sets - 1) / job.head_sets,
              own = set % job.head_sets * each;
    head0 = kv_head * group + own;
    heads = min(each, group - own);
    const int low = job.window > 0 ? max(0, position + 1 - job.window) : 0, all = position + 1 - low;
    splits = all <= job.whole_keys ? 1 : min(job.key_splits, (all + job.split_keys - 1) / job.split_keys);
    none = kv_head >= job.kv_heads || split >= splits;
    const int each_split = (all + splits - 1) / splits;
    begin = low + min(all, split * each_split);
    end = low + min(all, (split + 1) * each_split);
    has_new = begin <= position && position < end;
  }
};

static_assert(sizeof(AttentionRange) <= sizeof(MixtureShared::attention));

// kN values of a row of the cache, as they are stored.
template <int kN, class C>
struct RowSegment {
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
__device__ __forceinline__ const C* cache_row(const Job& job, const void* cache, int kv_head, int key, int d) {
  return static_cast<const C*>(cache) + (kv_head * job.capacity + key) * d;
}

// Brings the heads' norms and the block's keys and values (half a megabyte at most) to the L2 while weights stream.
template <int D, class C>
__device__ __forceinline__ void prefetch_keys(const Job& job, const LayerRecord& layer, const AttentionRange& own) {
  if (own.none) return;
  constexpr int kLine = 128, kMost = 2048, kNormLines = D * 2 / kLine;
  const int lines = min(static_cast<int>((own.end - own.begin) * D * sizeof(C) / kLine), kMost);
  const int64_t first = (own.kv_head * job.capacity + own.begin) * D * sizeof(C);
  const auto* norm = layer.head_norm[threadIdx.x / kNormLines % 2];
  if (threadIdx.x < 2 * kNormLines && norm)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(norm + threadIdx.x % kNormLines * (kLine / 2)));
  for (int i = threadIdx.x; i < lines; i += kConsumerThreads)
    for (const void* of : {layer.k, layer.v})
      asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(of) + first + i * kLine));
}

// The online softmax of a lane: over every kWarpKeys-th key of its warp, on D / kKeyLanes values of each.
template <int D, int H>
struct LaneSoftmax {
  static constexpr int kN = D / kKeyLanes;
  float m[H], l[H], o[H][kN];  // maximum (base 2), sum, output

  __device__ __forceinline__ LaneSoftmax() {
#pragma unroll
    for (int h = 0; h < H; ++h) {
      m[h] = -INFINITY, l[h] = 0;
#pragma unroll
      for (int i = 0; i < kN; ++i) o[h][i] = 0;
    }
  }
  // Adds a key of score s to head h; -inf for none. value_scale: of the value's codes.
  template <class Row>
  __device__ __forceinline__ void add(int h, float s, const Row& v, float value_scale) {
    const float top = fmaxf(m[h], s), about = top == -INFINITY ? 0.f : top;
    const float keep = exp2_fast(m[h] - about), weight = exp2_fast(s - about);
    m[h] = top;
    l[h] = l[h] * keep + weight;
#pragma unroll
    for (int i = 0; i < kN; ++i) o[h][i] = fmaf(weight * value_scale, v[i], o[h][i] * keep);
  }
};

// A key and its value, as much of them as a lane works on.
template <int D, class C>
struct KeyRows {
  static constexpr int kN = D / kKeyLanes;
  RowSegment<kN, C> k, v;

  __device__ __forceinline__ void load(const Job& job, const LayerRecord& layer, int kv_head, int key) {
    const int offset = threadIdx.x % kKeyLanes * kN;
    k.load(cache_row<C>(job, layer.k, kv_head, key, D) + offset);
    v.load(cache_row<C>(job, layer.v, kv_head, key, D) + offset);
  }
};
// The first key of this lane's warp, and of this lane.
__device__ __forceinline__ int first_key(const AttentionRange& own) {
  return own.begin + static_cast<int>(threadIdx.x) / 32 * kWarpKeys;
}
__device__ __forceinline__ int lane_key(const AttentionRange& own, int base) {
  return min(base + static_cast<int>(threadIdx.x) % 32 / kKeyLanes, own.end - 1);
}

// Goes through the block's keys, kRoundKeys a round. Returns the factor that all values share. `rows`: of the first
// round, if they are there.
template <int D, int H, class C>
__device__ __forceinline__ float attend_keys(const Job& job, const LayerRecord& layer, const AttentionRange& own,
                                             const AttentionShared<D, H>& space, LaneSoftmax<D, H>& state,
                                             KeyRows<D, C>& rows, bool there) {
  constexpr int kN = LaneSoftmax<D, H>::kN;
  const int lane = threadIdx.x % 32, kv_head = own.kv_head;
  const int offset = lane % kKeyLanes * kN, key_lane = lane / kKeyLanes;
  const int64_t scales_at = kTokenScales<C> ? kv_head * job.capacity : kv_head;
  float factor = job.score_scale * kLog2e, value_factor = 1.f;
  if constexpr (kIsCode<C> && !kTokenScales<C>)
    factor *= layer.k_scales[scales_at], value_factor = layer.v_scales[scales_at];
  // A round's rows are asked for before the round before is worked on.
  int base = first_key(own);
  if (!there && base < own.end) rows.load(job, layer, kv_head, lane_key(own, base));
#pragma unroll 1
  for (; base < own.end; base += kRoundKeys) {
    const bool valid = base + key_lane < own.end;
    const int key = lane_key(own, base), next = base + kRoundKeys;
    KeyRows<D, C> next_rows;
    if (next < own.end) next_rows.load(job, layer, kv_head, lane_key(own, next));
    float own_factor = factor, value_scale = 1.f;
    if constexpr (kTokenScales<C>) {
      own_factor *= layer.k_scales[scales_at + key];
      value_scale = layer.v_scales[scales_at + key];
    }
#pragma unroll
    for (int h = 0; h < H; ++h) {
      RowSegment<kN, __nv_bfloat16> q;
      q.load(space.rows[h] + offset);
      float s = 0;
#pragma unroll
      for (int i = 0; i < kN; ++i) s = fmaf(q[i], rows.k[i], s);
      s = warp_reduce(s, Sum{}, kKeyLanes);
      state.add(h, valid ? s * own_factor : -INFINITY, rows.v, value_scale);
    }
    rows = next_rows;
  }
  return value_factor;
}

// Brings the lanes' states to one maximum of the block (`top`), adds over the warp's keys, so that each of the
// four lanes with the same values ends with one head, or half of a head's values, and leaves the warps' sums in shared
// memory.
template <int D, int H>
__device__ __forceinline__ void merge_lanes(AttentionShared<D, H>& space, LaneSoftmax<D, H>& state, float (&top)[H]) {
  constexpr int kN = LaneSoftmax<D, H>::kN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int offset = lane % kKeyLanes * kN, key_lane = lane / kKeyLanes;
  if (lane % kKeyLanes == 0)
#pragma unroll
    for (int h = 0; h < H; ++h) space.m[warp * kWarpKeys + key_lane][h] = state.m[h];
  consumer_sync();
  static_assert(kConsumerWarps * kWarpKeys == 32 && (H == 2 || H == 4));
#pragma unroll
  for (int h = 0; h < H; ++h) {
    top[h] = warp_max(space.m[lane][h]);
    const float keep = state.m[h] == -INFINITY ? 0.f : exp2_fast(state.m[h] - top[h]);
    state.l[h] *= keep;
#pragma unroll
    for (int i = 0; i < kN; ++i) state.o[h][i] *= keep;
  }
  // Of two lanes the lower keeps the sum of `low`, the upper that of `high`.
  const auto halve = [&](float low, float high, int other) {
    const bool upper = lane & other;
    const float sent = __shfl_xor_sync(0xffffffffu, upper ? low : high, other);
    return (upper ? high : low) + sent;
  };
  if constexpr (H == 4) {
    const auto four = [&](float a, float b, float c, float d) { return halve(halve(a, c, 16), halve(b, d, 16), 8); };
    const int head = key_lane;  // bit 1: lane & 16, bit 0: lane & 8
    const float sum_l = four(state.l[0], state.l[1], state.l[2], state.l[3]);
    if (lane % kKeyLanes == 0) space.l[warp][head] = sum_l;
#pragma unroll
    for (int i = 0; i < kN; ++i)
      space.o[warp][head][offset + i] = four(state.o[0][i], state.o[1][i], state.o[2][i], state.o[3][i]);
  } else {  // lane & 16: the head, lane & 8: the half of the values
    const int head = key_lane / 2, half = key_lane % 2;
    float sum_l = halve(state.l[0], state.l[1], 16);
    sum_l += __shfl_xor_sync(0xffffffffu, sum_l, 8);
    if (lane % (2 * kKeyLanes) == 0) space.l[warp][head] = sum_l;
#pragma unroll
    for (int i = 0; i < kN / 2; ++i)
      space.o[warp][head][offset + half * (kN / 2) + i] =
          halve(halve(state.o[0][i], state.o[1][i], 16), halve(state.o[0][i + kN / 2], state.o[1][i + kN / 2], 16), 8);
  }
  consumer_sync();
}

// m and l of the head of thread h < H: the block's largest score, and the warps' sums of weights together.
template <int D, int H>
__device__ __forceinline__ float2 head_state(const AttentionShared<D, H>& space, const float (&top)[H]) {
  float sum = 0;
  for (int w = 0; w < kConsumerWarps; ++w) sum += space.l[w][threadIdx.x];
  float biggest = top[0];
#pragma unroll
  for (int h = 1; h < H; ++h)
    if (threadIdx.x == h) biggest = top[h];
  return make_float2(biggest, sum);
}

// Adds the warps' sums; the block's O, m and l go to device memory.
template <int D, int H>
__device__ __forceinline__ void store_split(const Job& job, const AttentionShared<D, H>& space, const float (&top)[H],
                                            float value_factor) {
  float* outputs = job.split_o + static_cast<int64_t>(blockIdx.x) * H * D;
  for (int e = threadIdx.x; e < H * D; e += kConsumerThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) sum += space.o[w][e / D][e % D];
    __stcg(outputs + e, sum * value_factor);
  }
  if (threadIdx.x < H) __stcg(job.split_ml + blockIdx.x * H + threadIdx.x, head_state(space, top));
}

// An output of attention; kWords: a word under `stamp`.
template <bool kWords>
__device__ __forceinline__ void put_attended(const Job& job, int at, float value, uint32_t stamp) {
  if constexpr (kWords)
    put_value(job.attended_words + at, rounded(value), stamp);
  else
    job.attended[at] = __float2bfloat16_rn(value);
}

// The same where these keys are all: the output at once.
template <int D, int H, bool kWords>
__device__ __forceinline__ void store_attended(const Job& job, const AttentionShared<D, H>& space,
                                               const AttentionRange& own, float value_factor, uint32_t stamp) {
  for (int e = threadIdx.x; e < own.heads * D; e += kConsumerThreads) {
    float sum = 0, all = 0;
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) sum += space.o[w][e / D][e % D], all += space.l[w][e / D];
    put_attended<kWords>(job, own.head0 * D + e,
                         kWords ? __fdividef(sum * value_factor, all) : sum * value_factor / all, stamp);
  }
}

// In the last block of a head set to arrive: merges the splits of the keys in their order.
template <int D, int H, bool kWords>
__device__ __forceinline__ void merge_splits(const Job& job, const AttentionRange& own, uint32_t stamp) {
  for (int e = threadIdx.x; e < own.heads * D; e += kConsumerThreads) {
    const int64_t row = static_cast<int64_t>(own.set) * job.key_splits * H;
    const float2* ml = job.split_ml + row + e / D;
    const float* from = job.split_o + row * D + e;
    float most = -INFINITY, all = 0, sum = 0;
    constexpr int kTogether = 8;
    for (int first = 0; first < own.splits; first += kTogether) {  // loads first
      float2 states[kTogether];
      float outs[kTogether];
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        const bool there = first + s < own.splits;
        states[s] = there ? __ldcg(ml + (first + s) * H) : make_float2(-INFINITY, 0.f);
        outs[s] = there ? __ldcg(from + static_cast<int64_t>(first + s) * H * D) : 0.f;
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
    put_attended<kWords>(job, own.head0 * D + e, sum / all, stamp);
  }
}

// Of a mixture: hands the block's sums to the other splits of its head set in words under `stamp`, and merges a part of
// the outputs of all of them. Neighbouring lanes look at an output's splits side by side: one trip for all of them, if
// there are no more.
template <int D, int H>
__device__ __forceinline__ void share_splits(const Job& job, const AttentionShared<D, H>& space,
                                             const AttentionRange& own, const float (&top)[H], float value_factor,
                                             uint32_t stamp) {
  uint64_t* outputs = job.split_words + static_cast<int64_t>(blockIdx.x) * H * D;
  for (int e = threadIdx.x; e < own.heads * D; e += kConsumerThreads) {
    float sum = 0, all = 0, biggest = top[0];
#pragma unroll
    for (int w = 0; w < kConsumerWarps; ++w) sum += space.o[w][e / D][e % D], all += space.l[w][e / D];
#pragma unroll
    for (int h = 1; h < H; ++h) biggest = e / D == h ? top[h] : biggest;
    put_float(outputs + e, sum * value_factor, stamp);
    if (e % D > 0) continue;
    uint64_t* ml = job.split_ml_words + 2 * (blockIdx.x * H + e / D);
    put_float(ml, biggest, stamp), put_float(ml + 1, all, stamp);
  }
  constexpr int kSplitLanes = 8;
  const int begin = own.heads * D * own.split / own.splits, end = own.heads * D * (own.split + 1) / own.splits;
  const int row = own.set * job.key_splits * H, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int e = begin + static_cast<int>(threadIdx.x) / kSplitLanes; e - lane / kSplitLanes < end;
       e += kConsumerThreads / kSplitLanes) {  // whole warps
    float most = -INFINITY, all = 0, sum = 0;
#pragma unroll 1
    for (int split = 0; split < own.splits; split += kSplitLanes) {
      const int of = row + (split + lane % kSplitLanes) * H;
      const bool there = split + lane % kSplitLanes < own.splits && e < end;
      float2 ml;
      float out = await_float_and_two(job.split_words + static_cast<int64_t>(of) * D + e,
                                      job.split_ml_words + 2 * (of + e / D), stamp, there, ml);
      if (!there) out = 0, ml = {-INFINITY, 0};
      const float highest = fmaxf(most, ml.x), about = highest == -INFINITY ? 0.f : highest;
      const float keep = exp2_fast(most - about), weight = exp2_fast(ml.x - about);
      most = highest, all = fmaf(weight, ml.y, all * keep), sum = fmaf(weight, out, sum * keep);
    }
    const float highest = warp_reduce(most, Max{}, kSplitLanes);
    const float weight = exp2_fast(most - (highest == -INFINITY ? 0.f : highest));
    all = warp_reduce(all * weight, Sum{}, kSplitLanes);
    sum = warp_reduce(sum * weight, Sum{}, kSplitLanes);
    if (e < end && lane % kSplitLanes == 0)
      put_value(job.attended_words + own.head0 * D + e, rounded(__fdividef(sum, all)), stamp);
  }
}

// The attention of a layer: the block's rows, its keys, its state to device memory, and the merge of the splits.
template <int D, int H, class C, bool kWords>
__device__ __forceinline__ void attend(const Job& job, const LayerRecord& layer, const AttentionRange& own,
                                       const float* angles, uint8_t* shared, uint32_t stamp) {
  if (own.none) return;
  auto& space = *reinterpret_cast<AttentionShared<D, H>*>(shared);
  __shared__ bool last;
  // A row a warp: the queries and, where the block has the new token, its key and value, which also go to the cache.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = own.kv_head;
  // Of a mixture the first keys are under way meanwhile, where none of them is the new one.
  KeyRows<D, C> first;
  const int base = first_key(own);
  const bool early = kWords && base + kWarpKeys <= (own.has_new ? own.position : own.end);
  if (early) first.load(job, layer, kv_head, lane_key(own, base));
  if (warp < (own.has_new ? H + 2 : H)) {
    const int which = warp < H ? 0 : warp - H + 1;
    __nv_bfloat16* row = space.rows[warp];
    if (warp < own.heads || which > 0)
      make_head_row<D, kWords>(job, layer, which, which == 0 ? own.head0 + warp : kv_head, angles, row,
                               space.wide[warp], stamp);
    else
      for (int i = lane; i < D; i += 32) row[i] = __float2bfloat16_rn(0.f);
    if (which > 0)
      store_row(row, static_cast<C*>(which == 2 ? layer.v : layer.k), which == 2 ? layer.v_scales : layer.k_scales,
                kv_head * job.capacity + own.position, kv_head, D);
  }
  consumer_sync();
  LaneSoftmax<D, H> state;
  const float value_factor = attend_keys<D, H, C>(job, layer, own, space, state, first, early);
  float top[H];
  merge_lanes<D, H>(space, state, top);
  if constexpr (kWords)
    if (own.splits > 1) return share_splits<D, H>(job, space, own, top, value_factor, stamp);
  if (kWords || own.splits == 1) return store_attended<D, H, kWords>(job, space, own, value_factor, stamp);
  store_split<D, H>(job, space, top, value_factor);
  consumer_sync();
  if (threadIdx.x == 0) last = arrives_last(job.counters + 2 + own.set, static_cast<uint32_t>(own.splits));
  consumer_sync();
  if (last) merge_splits<D, H, kWords>(job, own, stamp);
}

}  // namespace fewbit::cuda::decode_step
