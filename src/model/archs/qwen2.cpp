// Qwen2: Llama's block with biases on q, k and v, which its config does not mention; alone or as the language model of
// Qwen2.5-VL.
#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_qwen2(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  return decoder_spec(c, s, decoder_block(c, s, {.qkv = true}), qwen_windows(c, s));
}

// As published the config and the tensors are those of a Qwen2 with a tower beside it; transformers 5 saves a config
// and a prefix of the language model's own.
ModelSpec arch_qwen2_5_vl(const ConfigView& c) {
  if (!c.has("text_config")) return arch_qwen2(c);
  ModelSpec spec = arch_qwen2(c.text_model());
  const bool tied = spec.tied();
  for (std::string* name : {&spec.block_prefix, &spec.embed, &spec.final_norm})
    name->insert(std::string_view("model.").size(), "language_model.");
  if (tied) spec.lm_head = spec.embed;
  return spec;
}

}  // namespace

const Family family_qwen2 = {
    .classes = {{"Qwen2ForCausalLM"}},
    .model_types = {"qwen2"},
    .build = &arch_qwen2,
    .chat = "chatml",
    .gguf = {.arch = "qwen2", .queries_of_70b = 1, .square = true},
};

const Family family_qwen2_5_vl = {
    .classes = {{"Qwen2_5_VLForConditionalGeneration"}},
    .model_types = {"qwen2_5_vl"},
    .build = &arch_qwen2_5_vl,
    .keeps = {{"visual.*", kVisionTower, true}, {"model.visual.*", kVisionTower, true}},
    .chat = "chatml",
    .gguf = {.arch = "qwen2vl", .read_as = "Qwen2ForCausalLM", .square = true, .sections = true},
};

}  // namespace fewbit
