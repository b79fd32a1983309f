// Mixes of GGUF's types: what `llama-quantize --dry-run` (llama.cpp, September 2026) gives the tensors of the same
// shapes.
#include "src/model/gguf/mixes.h"

#include <algorithm>

#include "src/model/gguf/writer.h"
#include "tests/model/archs_fixture.h"

namespace fewbit::test {
namespace {

json with(int layers, int heads, int kv_heads, int experts, bool tied) {
  json c = llama();
  c.update({{"hidden_size", 256},
            {"intermediate_size", 256},
            {"num_hidden_layers", layers},
            {"num_attention_heads", heads},
            {"num_key_value_heads", kv_heads},
            {"tie_word_embeddings", tied}});
  if (experts > 0)
    c.update({{"architectures", {"MixtralForCausalLM"}},
              {"model_type", "mixtral"},
              {"num_local_experts", experts},
              {"num_experts_per_tok", 2}});
  return c;
}

// The digit of a K-quant, 8 of q8_0.
char digit(const gguf::BlockType* type) { return type->name[1]; }

// Of every layer, the type of the linear whose name ends like this.
std::string row(const std::map<std::string, const gguf::BlockType*>& types, const ModelSpec& spec,
                const std::string& ending) {
  std::string s;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const auto& [name, type] : types)
      if (name.starts_with(spec.prefix(layer)) && name.ends_with(ending)) {
        s += digit(type);
        break;
      }
  return s;
}

struct Expected {
  const char *mix, *ends, *k, *v, *o, *down;  // ends: embedding and head; "": all are the mix's usual type
};

void expect_types(const json& config, const char* down, const std::vector<Expected>& all) {
  const ModelSpec spec = spec_of(config);
  for (const Expected& e : all) {
    SCOPED_TRACE(e.mix);
    const GgufMix* mix = find_gguf_mix(e.mix);
    ASSERT_TRUE(mix);
    const auto types = types_of_mix(*mix, spec);
    const auto expect = [&](const std::string& ending, const std::string& wanted) {
      const std::string usual(static_cast<size_t>(spec.layers), digit(mix->type));
      EXPECT_EQ(row(types, spec, ending), wanted.empty() ? usual : wanted) << ending;
    };
    expect(".q_proj", "");
    expect(".k_proj", e.k);
    expect(".v_proj", e.v);
    expect(".o_proj", e.o);
    expect(down, e.down);
    expect(down == std::string(".w2") ? ".w1" : ".up_proj", "");
    EXPECT_EQ(digit(types.at("model.embed_tokens")), e.ends[0]);
    if (!spec.tied()) {
      EXPECT_EQ(digit(types.at("lm_head")), e.ends[1]);
    }
  }
}

TEST(GgufMixes, OfATiedModel) {
  expect_types(with(17, 8, 4, 0, true), ".down_proj",
               {{"q2_k_s", "6", "", "", "", "44222222222222222"},
                {"Q2_K_M", "6", "", "33333333333333333", "33333333333333333", "33333333333333333"},
                {"q3_k_s", "6", "", "", "", ""},
                {"q3_k_m", "6", "", "55444444444444444", "44444444444444444", "54444444444444444"},
                {"q3_k_l", "6", "", "55555555555555555", "55555555555555555", "55555555555555555"},
                {"q4_k_s", "6", "", "55554444444444444", "", "55444444444444444"},
                {"q4_k_m", "6", "", "66446446446446666", "", "66446446446446666"},
                {"q5_k_s", "6", "", "", "", ""},
                {"q5_k_m", "6", "", "66556556556556666", "", "66556556556556666"}});
}

TEST(GgufMixes, OfEightExperts) {
  const std::string eight = "8888888888", five = "5555555555";
  const char *all8 = eight.c_str(), *all5 = five.c_str();
  expect_types(with(10, 8, 4, 8, false), ".w2",
               {{"q2_k_s", "26", all8, all8, "", "4222222222"},
                {"q2_k_m", "26", all8, all8, all5, "3333333333"},
                {"q3_k_s", "36", all8, all8, all5, ""},
                {"q3_k_m", "36", all8, all8, all5, "4444444444"},
                {"q3_k_l", "36", all8, all8, "", all5},
                {"q4_k_s", "46", all8, all8, all5, "5444444444"},
                {"q4_k_m", "46", all8, all8, all5, "6446446466"},
                {"q5_k_s", "56", all8, all8, "", ""},
                {"q5_k_m", "56", all8, all8, "", "6556556566"}});
}

TEST(GgufMixes, OfFewKeysAndOtherExperts) {
  expect_types(with(10, 8, 2, 4, false), ".w2",
               {{"q2_k_s", "26", "", "4444444444", "", "4222222222"},
                {"q2_k_m", "26", "", "4444444444", "3333333333", "3333333333"},
                {"q3_k_m", "36", "", "5544444444", "4444444444", "4444444444"},
                {"q4_k_m", "46", "", "6446446466", "", "6446446466"}});
}

TEST(GgufMixes, OfTheModelsOf70B) {
  const std::string five(80, '5'), four(80, '4'), middle = [] {
    std::string s;
    for (int i = 0; i < 20; ++i) s += "446";
    return s.substr(0, 60);
  }();
  const std::string more = "6666666666" + middle + "6666666666";
  std::string values = more;
  std::replace(values.begin(), values.end(), '4', '5');
  expect_types(with(80, 8, 2, 0, false), ".down_proj",
               {{"q3_k_s", "36", "", five.c_str(), "", ""},
                {"q3_k_m", "36", "", five.c_str(), four.c_str(), ("55555" + four.substr(5)).c_str()},
                {"q4_k_m", "46", "", values.c_str(), "", more.c_str()}});
}

// Widths that are no whole blocks get a simpler type; the head q8_0.
TEST(GgufMixes, OfOtherWidths) {
  json c = with(4, 4, 2, 0, true);
  c["hidden_size"] = 384;
  const auto types = types_of_mix(*find_gguf_mix("q4_k_m"), spec_of(c));
  EXPECT_EQ(types.at("model.embed_tokens"), &gguf::type_q8_0);
  EXPECT_EQ(types.at("model.layers.0.self_attn.q_proj"), &gguf::type_q4_k);
  EXPECT_EQ(&gguf_type_for(gguf::type_q4_k, 384), &gguf::type_q5_0);
}

// A file whose tensors have the types of a mix says so; what a family keeps does not matter, and floats are none.
TEST(GgufMixes, AreToldByTheirTypes) {
  const ModelSpec spec = spec_of(with(17, 8, 4, 0, true));
  for (const GgufMix& mix : gguf_mixes()) {
    auto types = types_of_mix(mix, spec);
    EXPECT_EQ(mix_of_types(types, spec), &mix) << mix.name;
    types["model.layers.3.mlp.up_proj"] = &gguf::type_bf16;
    EXPECT_EQ(mix_of_types(types, spec), &mix) << mix.name;
    types["model.embed_tokens"] = &gguf::type_bf16;
    EXPECT_EQ(mix_of_types(types, spec), nullptr) << mix.name;
  }
}

TEST(GgufMixes, AreNamedBesideTheTypes) {
  EXPECT_EQ(&gguf_type_named("Q4_K_M"), &gguf::type_q4_k);
  EXPECT_EQ(&gguf_type_named("q8_0"), &gguf::type_q8_0);
  EXPECT_EQ(find_gguf_mix("q4_k"), nullptr);
  try {
    gguf_type_named("q4_k_x");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("q4_k_m"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace fewbit::test
