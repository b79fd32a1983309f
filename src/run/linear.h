#pragma once
// A linear on a device: data plus one visit, not a class with a forward().
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "kernels/products/blocks/block_layout.h"
#include "kernels/products/bytes/quantize_rows.h"
#include "kernels/products/fp4_values.h"
#include "kernels/products/marlin/marlin_gemm.h"
#include "src/core/quantized_linear.h"
#include "src/model/parallel/linear_share.h"
#include "src/run/gguf/acts_type.h"
#include "src/run/head_type.h"
#include "src/run/kv_cache.h"

namespace fewbit {

class RankSums;  // src/run/rank_sums.h

struct DenseLinear {
  Tensor weight{};                  // [out, in]  the compute dtype; f32 where `input` asks for the exact reference
  Tensor bias{};                    // [out] of the same type, or empty
  std::optional<RowQuant> input{};  // x is rounded to codes before the product, as a packed linear would
};
struct MarlinLinear {  // the checkpoint's bytes as they lie (kernels/products/marlin/marlin_gemm.h)
  Tensor b{}, s{}, z{}, bias{};
  int bits = 4;
  int64_t out = 0, in = 0;
};
MarlinView view_of(const MarlinLinear&);
struct RowLinear {  // the CPU's own layout (kernels/products/row_gemm.h)
  Tensor codes{}, scales{}, zeros{}, group_of{}, bias{};
  Tensor order{};  // [in] i32: the columns of x in the order of the codes' (in_group_order()), or empty
  int bits = 4;
  int64_t out = 0, in = 0, group = 128;
};
// 8-bit weights: int8 (kernels/products/bytes/int8_gemm.h) or FP8 (kernels/products/bytes/fp8_gemm.h)
struct ByteLinear {
  Tensor codes{};   // [out, in] i8 | f8_e4m3
  Tensor scales{};  // [out] f32
  Tensor bias{};
  RowQuant input{};  // to 8 bits too; of FP8 also kUnrounded
};
// Blocks of a .gguf file on the CPU, or packed integers and FP8 in their layout: inputs in bf16
// (kernels/products/blocks/block_gemm.h) or rounded to int8 (kernels/products/blocks/block_int8.h)
struct GgufLinear {
  Tensor strips{}, bias{};
  Tensor order{};  // as RowLinear's
  const BlockForm* form = nullptr;
  std::string type{};  // "q4_k"; "row4", "row4 x int8" of packed integers
  int64_t out = 0, in = 0;
  ActsType acts = ActsType::bf16;
  std::optional<RowQuant> input{};  // of FP8 whose checkpoint rounds x (src/run/gguf/fp8_strips.h)
};
BlockView view_of(const GgufLinear&);
// An expert in MXFP4 on a GPU, in tiles (kernels/grids/fp4_tiles.h): few tokens multiply these
// (kernels/decode/experts/few_experts.h), many its values, which are made for each call.
struct Fp4Linear {
  Tensor tiles{}, bias{};
  int64_t in = 0;
};
Fp4View view_of(const Fp4Linear&);
using Linear = std::variant<DenseLinear, MarlinLinear, RowLinear, ByteLinear, Fp4Linear, GgufLinear>;

// How a linear with this spec rounds its input; nothing where it does not.
// `input_scale` of static ones.
std::optional<RowQuant> input_quant(const QuantSpec&, std::optional<double> input_scale);

enum class Weights : uint8_t {
  packed,     // run packed linears through their kernels
  reference,  // dequantize everything to the compute dtype when loading
  values,     // the same, and inputs are left alone: what a quantization starts from
};
struct LoadOptions {
  DType dtype = DType::bf16;  // compute dtype: f32 | bf16
  Weights weights = Weights::packed;
  KvType kv_cache = KvType::plain;
  HeadType head = HeadType::stored;
  ActsType acts = ActsType::bf16;  // int8: of packed integers whose checkpoint leaves inputs alone; see check_acts()
  bool expert = false;             // of a mixture whose few tokens are multiplied by kernels of their own
  RankSums* ranks = nullptr;  // those that share the model (src/model/parallel/tensor_parallel.h); null: it is all here
};

// A dense linear from host bytes of any float dtype, converted to `dtype` on the device.
Linear make_dense(Exec&, ConstTensorView weight, ConstTensorView bias, DType dtype);
// From the neutral form: the layout of this device's kernel (8-bit inputs, FP8: bytes; CUDA: Marlin where shape and
// group allow, 2- and 3-bit codes as nibbles about the same zero, MXFP4 experts; CPU: rows), else dense; `note` then
// says why ("" otherwise), and where FP8 codes are multiplied as wider floats. A dense linear rounds its input where
// the spec says so.
Linear make_linear(Exec&, const QuantizedLinear&, ConstTensorView bias, DType dtype, std::string* note,
                   bool expert = false);
// The same as LoadOptions say.
Linear make_linear(Exec&, const QuantizedLinear&, ConstTensorView bias, const LoadOptions&, std::string* note);
// A linear of a checkpoint. A Marlin linear on CUDA is copied as it lies, blocks of GGUF on the CPU stay such
// (src/run/gguf/gguf_linear.h); everything else goes through unpack(). float32 compute always dequantizes (there is no
// packed f32 kernel on CUDA; the contract says so).
Linear load_linear(Exec&, const Checkpoint&, const NamedLinear&, const LoadOptions&, std::string* note);
// The share of it that one of several ranks has; packed ones go through unpack().
Linear load_share(Exec&, const Checkpoint&, const NamedLinear&, const LinearShare&, const LoadOptions&,
                  std::string* note);

// The same always dense in `dtype`, of packed ones the values that their codes stand for; its input is never rounded.
Linear load_dense(Exec&, const Checkpoint&, const NamedLinear&, const LinearShare&, DType dtype);

// y = x W^T + bias.   x [tokens, in] and y [tokens, out] in the compute dtype (y may be f32).
void apply(Exec&, const Linear&, ConstTensorView x, TensorView y);
// The same for linears of one x; those with a common kernel take one launch.
void apply_all(Exec&, std::span<const Linear* const>, ConstTensorView x, std::span<const TensorView> ys);
// y += x W^T, rounded once: true where the linear's kernel does it, false where nothing was done.
bool apply_added(Exec&, const Linear&, ConstTensorView x, TensorView y);
int64_t weight_bytes(const Linear&);      // bytes a decode step reads
std::string_view kind_of(const Linear&);  // "dense", "marlin4", "row3", "int8", "fp8", "fp8a16", "mxfp4", "q4_k" …

}  // namespace fewbit
