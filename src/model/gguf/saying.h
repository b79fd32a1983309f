#pragma once
// What is known while a model's config becomes the metadata of a file, part by part (config.cpp and its neighbours).
#include <algorithm>
#include <string>
#include <vector>

#include "formats/gguf/metadata.h"
#include "src/model/config_view.h"
#include "src/model/gguf/family.h"
#include "src/model/model_spec.h"

namespace fewbit {

template <class Op>
const Op* op_of(const std::vector<BlockOp>& block) {
  for (const BlockOp& op : block)
    if (const Op* found = std::get_if<Op>(&op)) return found;
  return nullptr;
}
// The first of any layer.
template <class Op>
const Op* op_of(const ModelSpec& spec) {
  for (const auto& block : spec.kinds)
    if (const Op* found = op_of<Op>(block)) return found;
  return nullptr;
}

struct GgufSaying {
  const ConfigView& c;  // of the language model
  const ModelSpec& spec;
  const GgufFamily& family;
  std::string arch;
  gguf::Metadata& out;

  void set(const std::string& key, gguf::Value v) const { out.set(arch + "." + key, std::move(v)); }
  void put(const std::string& key, int64_t v) const { set(key, static_cast<uint32_t>(v)); }
  // One number for all layers where they have the same, else a list.
  void put_layers(const std::string& key, const std::vector<int64_t>& values) const {
    if (std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values.front(); }))
      return put(key, values.front());
    set(key, gguf::Array(std::vector<uint32_t>(values.begin(), values.end())));
  }
  [[noreturn]] void cannot_say(const std::string& what) const;  // Error{unsupported}
};

// The parts. Each fails, as above, for what the file's architecture cannot say.
void say_rotation(const GgufSaying&);
void say_experts(const GgufSaying&);
void say_mixers(const GgufSaying&);  // recurrent layers, latent attention, what a token alone gives

}  // namespace fewbit
