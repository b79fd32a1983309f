#pragma once
// A .gguf file as a Checkpoint. Its config is made from the metadata; its tensors carry the model's own names
// and row order. Linears in simple blocks on an integer grid are packed (gguf_q4_0 …); other blocks are
// decoded to f32 when they are first asked for.
#include <filesystem>

#include "formats/gguf/block_type.h"
#include "src/model/checkpoint.h"

namespace fewbit {

// Error{checkpoint} carries all complaints about tensors, one a line; Error{unsupported} names what the file
// has and this version does not read.
Checkpoint open_gguf(const std::filesystem::path& file);

// The packing whose integer grid all of these blocks lie on, u8 [out, row bytes]; null where there is none
// and a reader decodes them.
const Packing* gguf_packing_of(const gguf::BlockType&, ConstTensorView blocks);

}  // namespace fewbit
