#pragma once
// The element types of GGUF: plain numbers, and blocks of consecutive inputs of one output that share scales.
// docs/formats/gguf.md draws the blocks. A type is one entry here and one line in types.def.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/core/quantized_linear.h"

namespace fewbit::gguf {

struct OpenForm;  // open_block.h

struct BlockType {
  uint32_t id;                   // ggml's number of the type
  std::string_view name;         // "q4_k", as in --format gguf:q4_k
  int64_t elements = 1, bytes;   // of a block
  std::optional<DType> plain{};  // set: one number, no block
  // Bits, symmetry and the width that shares a scale: what the type looks like as a recipe. Unset for plain
  // types.
  std::optional<QuantSpec> grid{};
  void (*decode)(const uint8_t* block, float* values) = nullptr;  // null for plain types
  // values -> block. `weight` is the importance of every value's square error, all positive. Null: read only.
  void (*encode)(const float* values, const float* weight, uint8_t* block) = nullptr;
  // The published rule without a search: bit for bit gguf-py's where gguf-py has one.
  void (*encode_plain)(const float* values, uint8_t* block) = nullptr;
  // Consecutive blocks as encode() makes them, byte for byte, in vector instructions. Null: one at a time.
  void (*encode_many)(const float* values, const float* weight, int64_t blocks, uint8_t* to) = nullptr;
  const OpenForm* open = nullptr;  // of types with scales of their own: codes and scales, to and from the bytes
};

const std::vector<const BlockType*>& block_types();
const BlockType* find_block_type(uint32_t id);       // null where unknown
const BlockType& block_type(std::string_view name);  // Error{usage} listing those that weights can be written in
// The one that bits and symmetry ask for where none is named. Error{usage} where no type has so many bits.
const BlockType& usual_type(const QuantSpec&);
const BlockType& block_type_of(DType plain);  // Error{unsupported} for a dtype that GGUF lacks
// Bytes of `cols` values of one row; cols is a multiple of the type's elements.
int64_t row_bytes(const BlockType&, int64_t cols);

// Blocks u8 [rows, row_bytes] to f32 [rows, cols].
Tensor decode(const BlockType&, ConstTensorView blocks, int64_t cols);

// `importance` as encode() below uses it: over its mean, with a trace for dead inputs.
std::vector<float> input_weights(ConstTensorView importance);

enum class Encoder : uint8_t { searched, plain };
// f32, f16 or bf16 [rows, cols], at any address, to blocks u8 [rows, row_bytes]. `importance` f32 [cols]: what an
// input's square is worth, for instance the diagonal of the Gram matrix; data == nullptr: a value counts by its own
// square plus the mean square of its row, since large weights are the ones that mattered in training. The plain encoder
// ignores it.
Tensor encode(const BlockType&, ConstTensorView values, ConstTensorView importance, Encoder);

#define FEWBIT_GGUF_TYPE(id) extern const BlockType type_##id;
#include "formats/gguf/types.def"
#undef FEWBIT_GGUF_TYPE

}  // namespace fewbit::gguf
