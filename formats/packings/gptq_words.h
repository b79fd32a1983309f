#pragma once
// The words that GPTQ v1 and v2 share (docs/formats/gptq.md). The two differ in one number: v1 stores zero
// points minus one. Internal to formats/packings and its tests.
//
//   qweight I32 [words(K), N]  codes, the stream of formats/bits.h running down column n
//   qzeros  I32 [G, words(N)]  zero points, the stream running along row g
//   scales  F16 [G, N]         g_idx I32 [K] the group of every input
//
// words(c) = 3*ceil(c/32) at 3 bits, else ceil(c*bits/32): where K or N does not fill the last word, its
// unused fields are 0. K = in, N = out, G = ceil(K/group).
#include "formats/packing.h"

namespace fewbit::gptq_words {

enum class ZeroOffset : uint8_t { none = 0, one = 1 };  // what was subtracted from a stored zero point

std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in);
// With ZeroOffset::one every zero point must be at least 1.
PackedLinear pack(std::string_view linear, const QuantizedLinear& q, ZeroOffset offset);
QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, Shape out_in, const TensorSource& source,
                       ZeroOffset offset);

}  // namespace fewbit::gptq_words
