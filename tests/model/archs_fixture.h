#pragma once
// What the tests of architectures share: a Llama config to vary, the spec or the refusal that a config gives, the ops
// of a kind in a layer.
#include <gtest/gtest.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "formats/guarded_json.h"
#include "src/model/archs.h"

namespace fewbit::test {

using nlohmann::json;

inline json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 50},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 512},
          {"eos_token_id", {1, 2}},
          {"bos_token_id", 0}};
}

inline ModelSpec spec_of(const json& config) {
  return build_spec(ConfigView::parse(python_json(config), "config.json"));
}

inline std::string refusal(const json& config, ErrorKind kind) {
  try {
    spec_of(config);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "";
}

inline bool says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* p : parts)
    if (message.find(p) == std::string::npos) return false;
  return true;
}

template <class Op>
std::vector<Op> ops(const ModelSpec& spec, int64_t layer) {
  std::vector<Op> out;
  for (const BlockOp& op : spec.block(layer))
    if (const Op* found = std::get_if<Op>(&op)) out.push_back(*found);
  return out;
}

}  // namespace fewbit::test
