// Llama, Mistral, which is Llama with a sliding window on every layer, and Ministral 3, which scales its queries; alone
// or as the language model of a vision model.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

// Ministral 3 scales its queries by their positions, as Llama 4 does.
void scale_queries(const ConfigView& c, std::vector<BlockOp>& block) {
  const double beta = c.rope_number("llama_4_scaling_beta", 0),
               every = c.rope_number("original_max_position_embeddings", 0);
  if (beta == 0) return;
  if (!(every >= 1))
    fail(ErrorKind::checkpoint,
         c.where() +
             ": rope_parameters.original_max_position_embeddings: expected a number of at least 1 beside "
             "llama_4_scaling_beta");
  const auto rope =
      std::find_if(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Rope>(op); });
  block.insert(rope, PositionScale{Slot::q, static_cast<float>(beta), static_cast<int64_t>(every)});
}

ModelSpec arch_llama(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  const DecoderBiases bias{.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)};
  // Llama's own config has no window; a config that brings one means Mistral's.
  std::vector<BlockOp> block = decoder_block(c, s, bias);
  scale_queries(c, block);
  return decoder_spec(c, s, block, mistral_windows(c, s));
}

// Sizes that text_config leaves out are those of its config class: LLaVA 1.5's says hardly more than the vocabulary.
ConfigView with_defaults_of_type(const ConfigView& c) {
  const std::string type = c.str("model_type", "mistral");
  if (type == "llama")
    return c.with_defaults(
        R"({"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
            "vocab_size": 32000})");
  if (type == "mistral")
    return c.with_defaults(
        R"({"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 131072})");
  return c.with_defaults("{}");
}

// The language model of Mistral Small 3, Ministral 3 and LLaVA.
ModelSpec arch_wrapped_llama(const ConfigView& given) {
  const ConfigView c = with_defaults_of_type(given);
  const std::vector<std::string> known = {"llama", "mistral", "ministral3", "qwen2"};
  const std::string type = c.str("model_type", "mistral");
  if (std::find(known.begin(), known.end(), type) == known.end())
    fail(ErrorKind::unsupported,
         fmt::format("{}: model_type: found \"{}\"; supported: {}", c.where(), type, fmt::join(known, ", ")));
  if (type != "qwen2") return arch_llama(c);
  const DecoderSizes s = decoder_sizes(c);
  return decoder_spec(c, s, decoder_block(c, s, {.qkv = true}), qwen_windows(c, s));
}

}  // namespace

const Family family_llama = {
    .classes = {{"LlamaForCausalLM"}},
    .model_types = {"llama"},
    .build = &arch_llama,
    .chat = "llama3",
    .gguf = {.arch = "llama", .pairs = true, .output_biases = true, .queries_of_70b = 2, .divisors = true},
};

const Family family_mistral = {
    .classes = {{"MistralForCausalLM"}},
    .model_types = {"mistral"},
    .build = &arch_llama,
    .chat = "mistral",
    .gguf = {.arch = "llama", .pairs = true, .queries_of_70b = 2, .divisors = true},
};

const Family family_ministral3 = {
    .classes = {{"Ministral3ForCausalLM"}},
    .model_types = {"ministral3"},
    .build = &arch_llama,
    .chat = "mistral",
    .gguf = {.arch = "mistral3",
             .tell = {"attention.temperature_scale"},  // before Mistral Small 3: a file without is of that
             .pairs = true,
             .yarn_log = 1,
             .scaled_queries = true,
             .divisors = true},
};

const Family family_mistral3 = {
    .classes = {{"Mistral3ForConditionalGeneration", "language_model.model.", "language_model.lm_head."}},
    .model_types = {"mistral3"},
    .build = &arch_wrapped_llama,
    .keeps = {{"vision_tower.*", kVisionTower, true}, {"multi_modal_projector.*", kProjector, true}},
    .chat = "mistral",
    .gguf = {.arch = "mistral3",
             .read_as = "MistralForCausalLM",
             .pairs = true,
             .yarn_log = 1,
             .scaled_queries = true,
             .divisors = true},
};

const Family family_llava = {
    .classes = {{"LlavaForConditionalGeneration", "language_model.model.", "language_model.lm_head."},
                {"LlavaNextForConditionalGeneration", "language_model.model.", "language_model.lm_head."}},
    .model_types = {"llava", "llava_next"},
    .build = &arch_wrapped_llama,
    .keeps = {{"vision_tower.*", kVisionTower, true}, {"multi_modal_projector.*", kProjector, true}},
    .gguf = {.why_not = "which family its language model is of would be lost in one"},
};

}  // namespace fewbit
