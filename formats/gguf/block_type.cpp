// The registry of GGUF's types, and whole tensors to and from blocks.
#include "formats/gguf/block_type.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "formats/bits.h"
#include "src/core/half.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"
#include "src/core/text/lower_case.h"
#include "src/core/text/nearest.h"

namespace fewbit::gguf {
namespace {

constexpr int64_t kRowsAtOnce = 8;

// So many rows of floats that lie anywhere as f32.
FEWBIT_HOT void widen(const uint8_t* from, DType dtype, int64_t count, float* to) {
  if (dtype == DType::f32)
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  else if (dtype == DType::bf16)
    for (int64_t i = 0; i < count; ++i) to[i] = bf16(bits::load<uint16_t>(from, i), 0);
  else
    for (int64_t i = 0; i < count; ++i) to[i] = f16_to_f32(bits::load<uint16_t>(from, i));
}

// The sums of the squares of at most kRowsAtOnce rows, each in the order of its values. The rows' sums go side by side,
// since each waits for its last addition; the squares, which are exact, are made before them in vectors.
FEWBIT_HOT void sums_of_squares(const float* x, int64_t rows, int64_t cols, double* sums) {
  constexpr int64_t kTile = 64;
  double squares[kRowsAtOnce][kTile] = {}, sum[kRowsAtOnce] = {};
  for (int64_t at = 0; at < cols; at += kTile) {
    const int64_t n = std::min(kTile, cols - at);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < n; ++i) {
        const double v = x[r * cols + at + i];
        squares[r][i] = v * v;
      }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t r = 0; r < kRowsAtOnce; ++r) sum[r] += squares[r][i];
  }
  std::copy_n(sum, kRowsAtOnce, sums);
}

FEWBIT_HOT void add_squares(const float* x, int64_t count, float mean, float* weight) {
  for (int64_t i = 0; i < count; ++i) weight[i] = mean + x[i] * x[i];
}

// Importance of every value of at most kRowsAtOnce rows where nothing is known of the inputs.
void weights_from_values(const float* x, int64_t rows, int64_t cols, float* weight) {
  double squares[kRowsAtOnce];
  sums_of_squares(x, rows, cols, squares);
  for (int64_t r = 0; r < rows; ++r, x += cols, weight += cols) {
    const auto mean = static_cast<float>(squares[r] / static_cast<double>(cols));
    if (mean > 0)
      add_squares(x, cols, mean, weight);
    else
      std::fill_n(weight, cols, 1.f);
  }
}

void encode_row_blocks(const BlockType& t, Encoder encoder, const float* x, const float* weight, int64_t blocks,
                       uint8_t* to) {
  if (encoder == Encoder::searched && t.encode_many) return t.encode_many(x, weight, blocks, to);
  for (; blocks > 0; --blocks, x += t.elements, weight += t.elements, to += t.bytes) {
    if (encoder == Encoder::plain)
      t.encode_plain(x, to);
    else
      t.encode(x, weight, to);
  }
}

}  // namespace

const std::vector<const BlockType*>& block_types() {
  static const std::vector<const BlockType*> all = {
#define FEWBIT_GGUF_TYPE(id) &type_##id,
#include "formats/gguf/types.def"
#undef FEWBIT_GGUF_TYPE
  };
  return all;
}

const BlockType* find_block_type(uint32_t id) {
  for (const BlockType* t : block_types())
    if (t->id == id) return t;
  return nullptr;
}

const BlockType& block_type(std::string_view name) {
  std::vector<std::string_view> known;
  const std::string lower = lower_case(name);  // llama.cpp prints Q4_K, its tools take both
  for (const BlockType* t : block_types()) {
    if (!t->encode && t->plain != DType::f32 && t->plain != DType::f16 && t->plain != DType::bf16) continue;
    if (t->name == lower) return *t;
    known.push_back(t->name);
  }
  fail(ErrorKind::usage, unknown_name("TYPE of gguf:TYPE", name, std::span<const std::string_view>(known)));
}

const BlockType& usual_type(const QuantSpec& spec) {
  if (spec.grid == Grid::f4_e2m1 && spec.scale_dtype == DType::f8_e8m0) return type_mxfp4;
  if (spec.grid != Grid::integer)
    fail(ErrorKind::usage, "gguf: no type of " + spec.str() + " is written; mxfp4, or integers of 2 to 6 or 8 bits");
  if (spec.bits == 2 && !spec.symmetric) return type_q2_k;
  if (spec.bits == 3 && spec.symmetric) return type_q3_k;
  if (spec.bits == 4) return spec.symmetric ? type_q4_0 : type_q4_1;
  if (spec.bits == 5) return spec.symmetric ? type_q5_0 : type_q5_1;
  if (spec.bits == 6) return type_q6_k;
  if (spec.bits == 8) return type_q8_0;
  fail(ErrorKind::usage, "gguf: no type of " + spec.str() + " is written; int2 asym, int3 sym, or 4, 5, 6 or 8 bits");
}

const BlockType& block_type_of(DType plain) {
  for (const BlockType* t : block_types())
    if (t->plain == plain) return *t;
  fail(ErrorKind::unsupported, "GGUF has no tensors of type " + std::string(name_of(plain)));
}

int64_t row_bytes(const BlockType& t, int64_t cols) {
  FEWBIT_ASSERT(cols % t.elements == 0);
  return cols / t.elements * t.bytes;
}

Tensor decode(const BlockType& t, ConstTensorView blocks, int64_t cols) {
  FEWBIT_ASSERT(t.decode && blocks.dtype == DType::u8 && blocks.cols() == row_bytes(t, cols));
  Tensor values = Tensor::host(DType::f32, {blocks.rows(), cols});
  parallel_for(blocks.rows(), kRowsAtOnce, [&](int64_t begin, int64_t end) {
    const uint8_t* from = blocks.as<uint8_t>() + begin * blocks.cols();
    for (float* to = values.as<float>() + begin * cols; to < values.as<float>() + end * cols;
         to += t.elements, from += t.bytes)
      t.decode(from, to);
  });
  return values;
}

std::vector<float> input_weights(ConstTensorView importance) {
  const float* h = importance.as<float>();
  double sum = 0;
  for (int64_t i = 0; i < importance.numel(); ++i) sum += h[i];
  const auto mean = static_cast<float>(sum / static_cast<double>(importance.numel()));
  std::vector<float> weight(static_cast<size_t>(importance.numel()), 1.f);
  if (mean > 0)
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = std::max(h[i] / mean, 1e-6f);
  return weight;
}

Tensor encode(const BlockType& t, ConstTensorView values, ConstTensorView importance, Encoder encoder) {
  const int64_t cols = values.cols();
  FEWBIT_ASSERT(t.encode && (values.dtype == DType::f32 || values.dtype == DType::f16 || values.dtype == DType::bf16));
  FEWBIT_ASSERT(!importance.data || (importance.dtype == DType::f32 && importance.numel() == cols));
  const std::vector<float> given = importance.data ? input_weights(importance) : std::vector<float>();
  Tensor blocks = Tensor::host(DType::u8, {values.rows(), row_bytes(t, cols)});
  const int64_t bytes = cols * bytes_of(values.dtype);
  parallel_for(values.rows(), kRowsAtOnce, [&](int64_t begin, int64_t end) {
    const int64_t count = (end - begin) * cols;
    const auto buffer = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(2 * count));
    float *const x = buffer.get(), *const weight = x + count;
    widen(static_cast<const uint8_t*>(values.data) + begin * bytes, values.dtype, count, x);
    if (given.empty()) weights_from_values(x, end - begin, cols, weight);
    for (int64_t at = 0; at < count && !given.empty(); at += cols) std::copy(given.begin(), given.end(), weight + at);
    encode_row_blocks(t, encoder, x, weight, count / t.elements, blocks.as<uint8_t>() + begin * blocks.cols());
  });
  return blocks;
}

}  // namespace fewbit::gguf
