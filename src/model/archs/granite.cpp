// Granite 3 (IBM): Llama's block with four multipliers, of the embedding, of attention's scores, of what each branch
// adds to the states, and of the logits; with experts or without. Keys and defaults: configuration_granite.py and
// configuration_granitemoe.py of Hugging Face transformers.
#include "src/model/archs/granite.h"

#include <fmt/format.h>

namespace fewbit {
namespace {

float multiplier(const ConfigView& c, const std::string& key) {
  const double m = c.f64(key, 1);
  if (!(m > 0))
    fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected a number above 0, found {}", c.where(), key, m));
  return static_cast<float>(m);
}

}  // namespace

void put_granite_multipliers(const ConfigView& c, std::vector<BlockOp>& block) {
  for (BlockOp& op : block) {
    if (auto* a = std::get_if<Attention>(&op)) a->scale = multiplier(c, "attention_multiplier");
    if (auto* add = std::get_if<AddTo>(&op); add && add->out == Slot::x)
      add->factor = multiplier(c, "residual_multiplier");
    if (auto* m = std::get_if<Moe>(&op)) {
      m->stacked_gate_up = "block_sparse_moe.input_linear.weight";
      m->stacked_down = "block_sparse_moe.output_linear.weight";
    }
  }
}

std::vector<BlockOp> granite_experts(const ConfigView& c, const DecoderSizes& s, const std::vector<BlockOp>& dense) {
  return moe_block(c, dense, {"block_sparse_moe.router.layer", "block_sparse_moe.experts.", "w1", "w3", "w2"},
                   s.intermediate, true);
}

ModelSpec with_granite_multipliers(const ConfigView& c, ModelSpec spec) {
  spec.embed_scale = multiplier(c, "embedding_multiplier");
  spec.logit_scale = 1 / multiplier(c, "logits_scaling");
  return spec;
}

std::vector<BlockOp> granite_block(const ConfigView& c, const DecoderSizes& s) {
  const bool attention = c.flag("attention_bias", false);
  return decoder_block(c, s, {.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)});
}

namespace {

ModelSpec arch_granite(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  std::vector<BlockOp> block = granite_block(c, s);
  if (c.architecture() == "GraniteMoeForCausalLM") block = granite_experts(c, s, block);
  put_granite_multipliers(c, block);
  return with_granite_multipliers(c, decoder_spec(c, s, block));
}

}  // namespace

const Family family_granite = {
    .classes = {{"GraniteForCausalLM"}},
    .model_types = {"granite"},
    .build = &arch_granite,
    .gguf = {.arch = "granite", .multipliers = kGraniteMultipliers, .pairs = true, .output_biases = true},
};

const Family family_granite_moe = {
    .classes = {{"GraniteMoeForCausalLM"}},
    .model_types = {"granitemoe"},
    .build = &arch_granite,
    .gguf = {.arch = "granitemoe", .has_experts = true, .multipliers = kGraniteMultipliers, .pairs = true},
};

}  // namespace fewbit
