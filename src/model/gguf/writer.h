#pragma once
// Writes a model as one .gguf file: names, order of rows, stacked experts, metadata.
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "formats/gguf/file.h"
#include "src/model/checkpoint.h"

namespace fewbit {

// What takes the place of a tensor of the model: blocks u8 [out, row bytes], or values of a plain type, in
// the model's own order of rows.
struct GgufContent {
  const gguf::BlockType* type = nullptr;
  std::function<Tensor()> bytes{};
};
// By the tensor's full name in the model ("model.layers.0.self_attn.q_proj.weight").
using GgufContents = std::map<std::string, GgufContent>;

// `given` for what it names; of the rest, matrices in the float type in which the checkpoint stores them,
// vectors and routers in f32. Linears that the checkpoint has in packed form must be among `given`.
// `tokenizer` is added to the metadata of the config. Error{unsupported} for an architecture or config that
// GGUF cannot say, or experts of one layer that are not of one type; Error{io}.
WrittenFile write_gguf(const Checkpoint&, const std::filesystem::path& file, const GgufContents& given,
                       const gguf::Metadata& tokenizer);

// The type a linear gets in place of `wanted` where its K inputs are no whole blocks: K-quants fall back to
// the simple blocks of the next width, those to f16, as in llama.cpp.
const gguf::BlockType& gguf_type_for(const gguf::BlockType& wanted, int64_t in);

}  // namespace fewbit
