#pragma once
// What Granite's plain models and its hybrids share.
#include "src/model/archs/decoder.h"

namespace fewbit {

inline constexpr GgufMultipliers kGraniteMultipliers{.embedding = "embedding_multiplier",
                                                     .residual = "residual_multiplier",
                                                     .scores = "attention_multiplier",
                                                     .logits = "logits_scaling",
                                                     .logits_divided = true};

// Attention and an MLP, without the multipliers; and the block with experts in place of its MLP.
std::vector<BlockOp> granite_block(const ConfigView&, const DecoderSizes&);
std::vector<BlockOp> granite_experts(const ConfigView&, const DecoderSizes&, const std::vector<BlockOp>& dense);
// The multipliers of a block, and where the stacks of its experts are; those of the whole model. Error{checkpoint} for
// one that is not above 0.
void put_granite_multipliers(const ConfigView&, std::vector<BlockOp>& block);
ModelSpec with_granite_multipliers(const ConfigView&, ModelSpec);

}  // namespace fewbit
