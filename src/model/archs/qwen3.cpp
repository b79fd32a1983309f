// Qwen3: Llama's block with an RMS norm on every head of q and k, before the rotation; alone or as the language model
// of Qwen3-VL.
#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_qwen3(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  std::vector<BlockOp> block = decoder_block(c, s, {.qkv = attention, .o = attention});
  add_head_norms(block, s);
  return decoder_spec(c, s, block, qwen_windows(c, s));
}

}  // namespace

const Family family_qwen3 = {
    .classes = {{"Qwen3ForCausalLM"}},
    .model_types = {"qwen3"},
    .build = &arch_qwen3,
    .chat = "chatml",
    .gguf = {.arch = "qwen3"},
};

const Family family_qwen3_vl = {
    .classes = {{"Qwen3VLForConditionalGeneration", "model.language_model."}},
    .model_types = {"qwen3_vl"},
    .build = &arch_qwen3,
    .keeps = {{"model.visual.*", kVisionTower, true}},
    .chat = "chatml",
    .gguf = {.arch = "qwen3vl", .read_as = "Qwen3ForCausalLM", .sections = true},
};

}  // namespace fewbit
