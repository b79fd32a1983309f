#pragma once
// The two mixers of Qwen3-Next and Qwen3.5: a gated delta net, and attention whose output is gated.
#include "src/model/archs/decoder.h"

namespace fewbit {

// Their norms are around zero, but for the delta net's own.
constexpr NormKind kNextNorm = NormKind::rms_plus_one;

// x += o(attention(q, k, v of norm(x)) * sigmoid(gate)); the query's linear makes the gate of each head as well.
std::vector<BlockOp> gated_attention(const ConfigView&, const DecoderSizes&);
// x += out(norm(delta rule(short convolution of q, k, v of norm(x))) gated by z). `fused`: q, k, v and z are one
// linear, and both rates another, by key head.
std::vector<BlockOp> delta_net(const ConfigView&, const DecoderSizes&, bool fused);

}  // namespace fewbit
