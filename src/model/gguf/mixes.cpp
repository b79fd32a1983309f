#include "src/model/gguf/mixes.h"

#include <algorithm>

#include "src/core/strings.h"
#include "src/core/text/lower_case.h"
#include "src/model/gguf/family.h"
#include "src/model/gguf/names.h"
#include "src/model/gguf/writer.h"

namespace fewbit {
namespace {

using Type = const gguf::BlockType*;
constexpr Type kQ2 = &gguf::type_q2_k, kQ3 = &gguf::type_q3_k, kQ4 = &gguf::type_q4_k, kQ5 = &gguf::type_q5_k,
               kQ6 = &gguf::type_q6_k, kQ8 = &gguf::type_q8_0;

// What the rule asks of a model.
struct Facts {
  int64_t layers = 0, experts = 0, queries_per_key = 0;
  bool of_70b = false;
  bool tied = false;
};

template <class Op>
const Op* first_of(const ModelSpec& spec) {
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const BlockOp& op : spec.block(layer))
      if (const Op* found = std::get_if<Op>(&op)) return found;
  return nullptr;
}

Facts facts_of(const ModelSpec& spec) {
  Facts f{.layers = spec.layers, .tied = spec.tied()};
  const auto* attention = first_of<Attention>(spec);
  if (attention) f.queries_per_key = attention->heads / attention->kv_heads;
  const auto* moe = first_of<Moe>(spec);
  if (moe) f.experts = moe->experts;
  // llama.cpp knows the models of 70 G parameters by their layers.
  const int least = gguf_family_of(spec).queries_of_70b;
  f.of_70b = spec.layers == 80 && least > 0 && f.queries_per_key >= least;
  return f;
}

// The first and the last eighth of the layers, and every third between.
bool gets_more(int64_t i, int64_t n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

// The i-th of n tensors that make attention's values.
Type type_of_values(std::string_view mix, Type usual, int64_t i, int64_t n, const Facts& f) {
  const bool many = f.queries_per_key >= 4;
  Type type = usual;
  if (mix == "q2_k_m") type = many ? kQ4 : kQ3;
  if (mix == "q2_k_s" && many) type = kQ4;
  if (mix == "q3_k_m") type = i < 2 ? kQ5 : kQ4;
  if (mix == "q3_k_l") type = kQ5;
  if ((mix == "q4_k_m" || mix == "q5_k_m") && gets_more(i, n)) type = kQ6;
  if (mix == "q4_k_s" && i < 4) type = kQ5;
  if (f.of_70b && (type == kQ3 || type == kQ4)) type = kQ5;
  return f.experts == 8 ? kQ8 : type;
}

Type type_of_down(std::string_view mix, Type usual, int64_t layer, int64_t n) {
  if (mix == "q2_k_m") return kQ3;
  if (mix == "q2_k_s" && layer < n / 8) return kQ4;
  if (mix == "q3_k_m") return layer < n / 16 ? kQ5 : kQ4;
  if (mix == "q3_k_l") return kQ5;
  if ((mix == "q4_k_m" || mix == "q5_k_m") && gets_more(layer, n)) return kQ6;
  if (mix == "q4_k_s" && layer < n / 8) return kQ5;
  return usual;
}

Type type_of_attention_output(std::string_view mix, Type usual, const Facts& f) {
  if (f.experts == 8) return starts_with(mix, "q5") || mix == "q3_k_l" || mix == "q2_k_s" ? usual : kQ5;
  if (mix == "q2_k_m") return kQ3;
  if (mix == "q3_k_m") return kQ4;
  if (mix == "q3_k_l") return kQ5;
  return usual;
}

// The head, and the embedding where it is the head too; `in`: of its rows.
Type type_of_head(Type usual, int64_t in) { return in % usual->elements != 0 ? kQ8 : kQ6; }

bool makes_values(std::string_view tensor) {
  return tensor.ends_with(".attn_v.weight") || tensor.ends_with(".attn_qkv.weight") ||
         tensor.ends_with(".attn_kv_b.weight");
}

int64_t layer_of(const std::string& tensor) { return std::stoll(tensor.substr(std::string_view("blk.").size())); }

}  // namespace

const std::vector<GgufMix>& gguf_mixes() {
  static const std::vector<GgufMix> all = {
      {"q2_k_s", kQ2, 21, "Q2_K_S"}, {"q2_k_m", kQ2, 10, "Q2_K"},   {"q3_k_s", kQ3, 11, "Q3_K_S"},
      {"q3_k_m", kQ3, 12, "Q3_K_M"}, {"q3_k_l", kQ3, 13, "Q3_K_L"}, {"q4_k_s", kQ4, 14, "Q4_K_S"},
      {"q4_k_m", kQ4, 15, "Q4_K_M"}, {"q5_k_s", kQ5, 16, "Q5_K_S"}, {"q5_k_m", kQ5, 17, "Q5_K_M"},
  };
  return all;
}

const GgufMix* find_gguf_mix(std::string_view name) {
  const std::string lower = lower_case(name);
  for (const GgufMix& m : gguf_mixes())
    if (m.name == lower) return &m;
  return nullptr;
}

const GgufMix* mix_of_format(std::string_view format) {
  const size_t colon = format.find(':');
  return colon == std::string_view::npos ? nullptr : find_gguf_mix(format.substr(colon + 1));
}

const GgufMix* mix_of_types(const std::map<std::string, const gguf::BlockType*>& types, const ModelSpec& spec) {
  std::vector<NamedLinear> all = linears_of(spec);
  for (NamedLinear& l : ends_of(spec)) all.push_back(std::move(l));
  for (const GgufMix& mix : gguf_mixes()) {
    const auto own = types_of_mix(mix, spec);
    const bool same = std::all_of(all.begin(), all.end(), [&](const NamedLinear& l) {
      const auto wanted = own.find(l.name), found = types.find(l.name);
      if (wanted == own.end() || found == types.end()) return wanted == own.end();
      const bool end = l.layer == kOutsideBlocks;
      if (found->second->plain && !end) return true;  // what a family keeps is kept in every mix
      return found->second == &gguf_type_for(*wanted->second, end ? l.in : gguf_run(spec, l));
    });
    if (same) return &mix;
  }
  return nullptr;
}

const gguf::BlockType& gguf_type_named(std::string_view name) {
  if (const GgufMix* mix = find_gguf_mix(name)) return *mix->type;
  try {
    return gguf::block_type(name);
  } catch (const Error& e) {
    std::vector<std::string> mixes;
    for (const GgufMix& m : gguf_mixes()) mixes.emplace_back(m.name);
    fail(e.kind(), std::string(e.what()) + "; or a mix of them: " + join(mixes, ", "));
  }
}

std::map<std::string, const gguf::BlockType*> types_of_mix(const GgufMix& mix, const ModelSpec& spec) {
  const Facts f = facts_of(spec);
  const std::vector<GgufTensor> tensors = gguf_tensors(spec);
  const int64_t values =
      std::count_if(tensors.begin(), tensors.end(), [](const auto& t) { return makes_values(t.name); });
  std::map<std::string, Type> types;
  int64_t value = 0;
  for (const GgufTensor& t : tensors) {
    Type type = mix.type;
    if (t.name == "output.weight" || (f.tied && t.name == "token_embd.weight"))
      type = type_of_head(type, t.part[-1]);
    else if (makes_values(t.name))
      type = type_of_values(mix.name, type, value++, values, f);
    else if (t.name.find(".attn_k.weight") != std::string::npos && f.experts == 8)
      type = kQ8;
    else if (t.name.find(".ffn_down") != std::string::npos)
      type = type_of_down(mix.name, type, layer_of(t.name), f.layers);
    else if (t.name.find(".attn_output.weight") != std::string::npos)
      type = type_of_attention_output(mix.name, type, f);
    for (const std::string& part : t.parts) types.emplace(module_of(part), type);
  }
  return types;
}

}  // namespace fewbit
