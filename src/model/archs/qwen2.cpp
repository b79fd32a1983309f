// Qwen2: Llama's block with biases on q, k and v, which its config does not mention; alone or as the language model of
// Qwen2.5-VL.
#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_qwen2(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  return decoder_spec(c, s, decoder_block(c, s, {.qkv = true}), qwen_windows(c, s));
}

}  // namespace

const Family family_qwen2 = {
    .classes = {{"Qwen2ForCausalLM"}},
    .model_types = {"qwen2"},
    .build = &arch_qwen2,
    .chat = "chatml",
    .gguf = {.arch = "qwen2", .square = true},
};

const Family family_qwen2_5_vl = {
    .classes = {{"Qwen2_5_VLForConditionalGeneration"}},
    .model_types = {"qwen2_5_vl"},
    .build = &arch_qwen2,
    .keeps = {{"visual.*", kVisionTower, true}},
    .chat = "chatml",
    .gguf = {.arch = "qwen2vl", .read_as = "Qwen2ForCausalLM", .square = true, .sections = true},
};

}  // namespace fewbit
