// Mixtral: Mistral's block with a mixture of experts for its MLP. w1 is the gate, w3 up, w2 down.
#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_mixtral(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const MoeNames names = {"block_sparse_moe.gate", "block_sparse_moe.experts.", "w1", "w3", "w2"};
  const std::vector<BlockOp> block = moe_block(c, decoder_block(c, s, {}), names, s.intermediate, true);
  return decoder_spec(c, s, block, mistral_windows(c, s));
}

}  // namespace

const Family family_mixtral = {
    .classes = {{"MixtralForCausalLM"}},
    .model_types = {"mixtral"},
    .build = &arch_mixtral,
    .chat = "mistral",
    .gguf = {.arch = "llama", .has_experts = true, .pairs = true, .queries_of_70b = 2, .divisors = true},
};

}  // namespace fewbit
