#pragma once
// Mixes of GGUF's types: names of llama.cpp's file types (Q4_K_M …) under which each tensor gets a type of its own. The
// rule is that of llama_tensor_get_type_impl() in llama.cpp's src/llama-quant.cpp (September 2026), embedding and head
// included.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf/block_type.h"
#include "src/model/model_spec.h"

namespace fewbit {

struct GgufMix {
  std::string_view name;        // "q4_k_m", as in --format gguf:q4_k_m
  const gguf::BlockType* type;  // of tensors that no rule names
  uint32_t file_type;           // general.file_type
  std::string_view there;       // what llama-quantize calls it
};

const std::vector<GgufMix>& gguf_mixes();
// In upper case or lower case; null where none has the name.
const GgufMix* find_gguf_mix(std::string_view name);
// Of a recipe's format, "gguf:q4_k_m"; null where that is no mix.
const GgufMix* mix_of_format(std::string_view format);
// The mix whose types a file's linears and ends have, each by its full name; null where they are of none.
const GgufMix* mix_of_types(const std::map<std::string, const gguf::BlockType*>& types, const ModelSpec&);
// The type, or that of most tensors of a mix. Error{usage} listing types and mixes.
const gguf::BlockType& gguf_type_named(std::string_view name);

// The type of every linear and end, by its full name, as if all widths were whole blocks: gguf_type_for() has what
// takes its place. Error{unsupported} for an architecture that has no place in a file.
std::map<std::string, const gguf::BlockType*> types_of_mix(const GgufMix&, const ModelSpec&);

}  // namespace fewbit
