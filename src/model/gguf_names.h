#pragma once
// What a model's tensors are called in a GGUF file and how they lie there. Derived from the op list; the
// names of both sides stand in gguf_names.cpp, once.
#include <string>
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

// One tensor of the file and the tensors of the model that it holds.
struct GgufTensor {
  std::string name;                // "blk.0.attn_q.weight"
  std::vector<std::string> parts;  // full names in the model; several: one per expert, stacked
  Shape part{};                    // of each in the model: [out, in] or [n]
  bool linear = false;             // parts are weights of linears, which may be quantized
  int64_t paired_heads = 0;        // above 0: the rows of so many heads are interleaved (see below)
  float added = 0;  // to every value in the file: Gemma's norms scale by 1 + w, which is what the file holds
  Shape stored{};   // of a single part in the file where that is another: [n] of [1, n]

  Shape shape() const;  // of the whole: [experts, out, in] where stacked
};

// All tensors of the model in the order of the file. Error{unsupported} for an architecture that has no place
// in one.
std::vector<GgufTensor> gguf_tensors(const ModelSpec&);

// f32 values with `added` on top of each.
Tensor plus(ConstTensorView values, float added);

// llama.cpp rotates neighbouring features of a llama's heads, the model's own code the halves of a head: row
// 2j + c of a head in the file is row c d/2 + j in the model. Both ways, for rows of any content.
Tensor rows_to_gguf(ConstTensorView rows, int64_t heads);
Tensor rows_from_gguf(ConstTensorView rows, int64_t heads);

}  // namespace fewbit
