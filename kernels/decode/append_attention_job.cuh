#pragma once
// What append_attention.cuh works with: its configurations, what a launch takes, and a block's shared memory beside the
// ring of keys.
#include "kernels/attention/attention_decode.cuh"
#include "kernels/attention/kv_quantize.cuh"
#include "kernels/attention/rope_head.cuh"
#include "kernels/decode/append_attention_columns.cuh"
#include "kernels/decode/append_attention_merge.cuh"
#include "kernels/device/tensor_map.cuh"

namespace fewbit::cuda::append_decode {

using attention_decode::Block;
using attention_decode::Job;
using attention_decode::KeyRing;

// Those of attention_decode.cuh. kBoxes: the copy engine brings the keys, in boxes, for an even number of positions;
// kPairs: two keys are a row of its maps, so that it asks for whole lines of 128 bytes; kQueries: rows of queries that
// a warp's lanes read.
struct PieceConfig : attention_decode::Config<128, I4Codes, 1> {
  static constexpr bool kBoxes = false, kPairs = false;
  static constexpr int kQueries = 8;
};
struct BoxConfig : attention_decode::Config<128, I4Codes, 1> {
  using Base = attention_decode::Config<128, I4Codes, 1>;
  static constexpr bool kBoxes = true, kPairs = false;
  static constexpr int kQueries = 8;
  using Warp = attention_columns::WarpColumns<128, Base::kKeys, I4Codes, 1, true>;
  static constexpr int kTile = Base::kKeys * 64, kWarpSpace = 2 * Base::kStages * kTile;
  static_assert(kWarpSpace >= static_cast<int>(sizeof(float)) * Base::kRows * Base::kSumStride);
  static constexpr size_t kShared = 1024 + Base::kWarps * kWarpSpace + sizeof(float) * Base::kScales;
};
// For up to four query heads of a kv head.
struct ByteConfig : BoxConfig {
  static constexpr bool kPairs = true;
  static constexpr int kQueries = 4;
  using Warp = ByteColumns<128, kKeys, I4Codes>;
};

// What the launch takes besides the operands of attention.
struct Fresh {
  const __nv_bfloat16 *k, *v;  // [sequences, kv_heads * d]
  const float* inv_freq;
  I4Codes *k_cache, *v_cache;
  float *k_scales, *v_scales;
  Norms<__nv_bfloat16> norms;
  HeadSizes head;
};

// The codes as rows [sequences * kv heads * positions, bytes], or half as many of two; the words of all rows one after
// another.
struct Maps {
  CUtensorMap k, v, k_words, v_words;
};
template <class S>
Maps maps_of(const AttentionSource<__nv_bfloat16, I4Codes>& a) {
  constexpr int kTogether = S::kPairs ? 2 : 1;
  const auto groups = static_cast<cuuint64_t>(int4_groups(a.d));
  const cuuint64_t rows = static_cast<cuuint64_t>(a.seqs) * static_cast<cuuint64_t>(a.kv_heads) *
                          static_cast<cuuint64_t>(a.keys),
                   row = static_cast<cuuint64_t>(a.kv_token) * kTogether, words = rows * groups;
  const auto of_codes = [&](const I4Codes* codes) {
    return map_of<2>(CU_TENSOR_MAP_DATA_TYPE_UINT8, codes, {row, rows / kTogether}, {row},
                     {static_cast<cuuint32_t>(row), S::kKeys / kTogether},
                     S::kPairs ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
  };
  const auto of_words = [&](const float* all) {
    return map_of<2>(CU_TENSOR_MAP_DATA_TYPE_UINT32, all, {words, 1}, {(4 * words + 15) / 16 * 16},
                     {static_cast<cuuint32_t>(S::kKeys * groups), 1}, CU_TENSOR_MAP_SWIZZLE_NONE);
  };
  return {of_codes(a.k), of_codes(a.v), of_words(a.k_scales), of_words(a.v_scales)};
}

inline constexpr int kFitWarps = 2;  // for a group of features: a key and a value have all warps of a block

// Whole lines, so that what lies behind begins at one.
template <class S>
struct alignas(128) Room {
  float inv_freq[S::kDim / 2], table[table_size(S::kDim / 2)];
  alignas(16) __nv_bfloat16 norms[2][S::kDim];  // weights, of q and of k
  __nv_bfloat16 heads[S::kRows + 2][S::kDim];   // queries, then the new key and the new value
  nibble_rows::FitRoom<S::kWarps, kFitWarps> fit;
  float ml[S::kWarps * S::kRows * 2];
  uint64_t full[S::kWarps * S::kStages * 2];
  SplitResult<S> result;
};

}  // namespace fewbit::cuda::append_decode
