#pragma once
// What a model's tensors are called in a GGUF file and how they lie there. Derived from the op list; the
// names of both sides stand in gguf/names.cpp, once.
#include <string>
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

struct GgufFamily;

// Where something of the model lies in the file: at place i lies number order[i]. Empty: where it lies in the model.
using GgufOrder = std::vector<int64_t>;

// One tensor of the file and the tensors of the model that it holds.
struct GgufTensor {
  std::string name;                // "blk.0.attn_q.weight"
  std::vector<std::string> parts;  // full names in the model; several: one per expert, stacked
  Shape part{};                    // of each in the model: [out, in] or [n]
  bool linear = false;             // parts are weights of linears, which may be quantized
  GgufOrder rows{};                // of a single part
  float added = 0;   // to every value in the file: Gemma's norms scale by 1 + w, which is what the file holds
  Shape stored{};    // of a single part in the file where that is another: [n] of [1, n]
  GgufOrder runs{};  // of the columns of a single part, in runs of `run` of them
  int64_t run = 0;
  bool decay = false;  // the file has -exp(value)
  // The file has some rows of a single part alone, those that `rows` lists, of `of` in all; others have the rest. With
  // turned > 0 they are so many blocks, of each of which inputs and outputs are exchanged: numbers, no blocks of codes.
  int64_t of = 0, turned = 0;

  Shape shape() const;  // of the whole: [experts, out, in] where stacked
  // Whether values are other numbers in the file.
  bool computed() const { return added != 0 || decay; }
};

// The module that a tensor of the model is of: "model.layers.0.mlp.up_proj.weight" without its last word.
inline std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

// For a file of so many bytes, before gguf_tensors(): the order of a linear's rows takes memory for each of them, how
// many there are is a claim of the metadata, and a row has at least a byte in the file. Error{checkpoint} naming
// `file`.
void check_gguf_rows(const ModelSpec&, int64_t bytes, const std::string& file);
// All tensors of the model in the order of the file. Error{unsupported} for an architecture that has no place
// in one.
std::vector<GgufTensor> gguf_tensors(const ModelSpec&);
// The MLP's down projection of a block, by its name in the file; null where it has none.
const LinearDef* gguf_mlp_down(const GgufFamily&, const std::vector<BlockOp>& block);

// Of a linear, how many of its inputs lie together in a file: all but where runs of them have another order, and one
// where a part of it is turned over.
int64_t gguf_run(const ModelSpec&, const NamedLinear&);

enum class GgufDirection : uint8_t { to_gguf, from_gguf };
// The values of a tensor that is computed(), in f32.
Tensor computed_values(const GgufTensor&, ConstTensorView values, GgufDirection);
// Rows of any content, and runs of columns of `run_bytes` each, in the order of the other side. Empty orders change
// nothing.
Tensor reordered(ConstTensorView rows, const GgufOrder& order, GgufDirection);
Tensor reordered_runs(ConstTensorView rows, const GgufOrder& order, int64_t run_bytes, GgufDirection);

// The rows of `all` that an order lists; and those put back where they belong.
Tensor picked_rows(ConstTensorView all, const GgufOrder& order, int64_t of);
void put_rows(TensorView all, ConstTensorView rows, const GgufOrder& order, int64_t of);
// [blocks, rows, cols] as [blocks, cols, rows].
Tensor turned_blocks(ConstTensorView values, int64_t blocks, int64_t rows, int64_t cols);

// llama.cpp rotates neighbouring features of a llama's heads, the model's own code the halves of a head: row
// 2j + c of a head in the file is row c d/2 + j in the model.
GgufOrder paired_rows(int64_t heads, int64_t head_dim);

}  // namespace fewbit
