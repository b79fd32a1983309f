#pragma once
// What a model's tensors are called in a GGUF file, how they lie there, and which architectures have a place
// in it. Derived from the op list; the names of both sides stand in gguf_names.cpp, once.
#include <string>
#include <string_view>
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

// One tensor of the file and the tensors of the model that it holds.
struct GgufTensor {
  std::string name;                // "blk.0.attn_q.weight"
  std::vector<std::string> parts;  // full names in the model; several: one per expert, stacked
  Shape part{};                    // of each: [out, in] or [n]
  bool linear = false;             // parts are weights of linears, which may be quantized
  int64_t paired_heads = 0;        // above 0: the rows of so many heads are interleaved (see below)

  Shape shape() const;  // of the whole: [experts, out, in] where stacked
};

// Name of the architecture in the file ("llama"). Error{unsupported} with the list of those that have one.
std::string_view gguf_architecture(const ModelSpec&);
// The class name that an architecture of a file stands for; a mixture of experts has its own.
// Error{unsupported}.
std::string_view class_of_gguf(const std::string& architecture, bool experts);

// All tensors of the model in the order of the file.
std::vector<GgufTensor> gguf_tensors(const ModelSpec&);

// llama.cpp rotates neighbouring features of a llama's heads, the model's own code the halves of a head: row
// 2j + c of a head in the file is row c d/2 + j in the model. Both ways, for rows of any content.
Tensor rows_to_gguf(ConstTensorView rows, int64_t heads);
Tensor rows_from_gguf(ConstTensorView rows, int64_t heads);

}  // namespace fewbit
