// Linears on a device: which layout a linear gets, and the product. The only place that chooses by device.
#include "src/run/linear.h"

#include <fmt/format.h>

#include <cstring>

#include "formats/packing.h"
#include "kernels/cast.h"
#include "kernels/fp8_gemm.h"
#include "kernels/gemm.h"
#include "kernels/int8_gemm.h"
#include "kernels/marlin_gemm.h"
#include "kernels/row_gemm.h"
#include "src/core/half.h"

namespace fewbit {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

Tensor upload(Exec& ex, ConstTensorView host, DType dtype) {
  if (!host.data) return {};
  Tensor raw = ex.to_device(host);
  if (host.dtype == dtype) return raw;
  Tensor t = ex.alloc(dtype, host.shape);
  cast(ex, raw, t);
  return t;
}

// The same values in the width that a Marlin kernel reads: codes of a symmetric grid move with its zero.
QuantizedLinear widened(const QuantizedLinear& q) {
  QuantizedLinear w = clone(q);
  w.spec.bits = q.spec.bits <= 4 ? 4 : 8;
  if (q.spec.symmetric) {
    const int shift = w.spec.mid_code() - q.spec.mid_code();
    uint8_t* codes = w.codes.as<uint8_t>();
    for (int64_t i = 0; i < w.codes.numel(); ++i) codes[i] = static_cast<uint8_t>(codes[i] + shift);
  }
  bool exact = true;  // scales that f16 holds exactly may be stored as such, whatever they came in
  for (int64_t i = 0; i < w.scales.numel(); ++i)
    exact = exact && round_to_f16(w.scales.as<float>()[i]) == w.scales.as<float>()[i];
  if (exact) w.spec.scale_dtype = DType::f16;
  return w;
}

Linear marlin_linear(Exec& ex, const QuantizedLinear& q, ConstTensorView bias, DType dtype) {
  const PackedLinear packed = packing_marlin.pack("w", q);
  MarlinLinear m;
  m.bits = q.spec.bits;
  m.out = q.out();
  m.in = q.in();
  for (const NamedTensor& t : packed.tensors) {
    Tensor device = ex.to_device(t.tensor);
    if (t.name == "w.B") m.b = std::move(device);
    if (t.name == "w.s") m.s = std::move(device);
    if (t.name == "w.z") m.z = std::move(device);
  }
  FEWBIT_ASSERT(!m.b.empty() && !m.s.empty());
  m.bias = upload(ex, bias, dtype);
  return m;
}

MarlinView view_of(const MarlinLinear& l) {
  return {.b = l.b, .s = l.s, .z = l.z, .bits = l.bits, .out = l.out, .in = l.in};
}

Tensor pack_nibbles(const QuantizedLinear& q) {
  const int64_t out = q.out(), in = q.in(), bytes = (in + 1) / 2;
  Tensor t = Tensor::host_zeros(DType::u8, {out, bytes});
  for (int64_t o = 0; o < out; ++o)
    for (int64_t i = 0; i < in; ++i)
      t.as<uint8_t>()[o * bytes + i / 2] |=
          static_cast<uint8_t>(q.codes.as<uint8_t>()[o * in + i] << (i % 2 * 4));
  return t;
}

Linear row_linear(Exec& ex, const QuantizedLinear& q, ConstTensorView bias, DType dtype) {
  RowLinear r;
  r.bits = q.spec.bits;
  r.out = q.out();
  r.in = q.in();
  r.group = q.spec.group_size(q.in());
  r.codes = q.spec.bits <= 4 ? ex.to_device(pack_nibbles(q)) : ex.to_device(q.codes);
  r.scales = ex.to_device(q.scales);
  if (q.zeros) r.zeros = ex.to_device(*q.zeros);
  if (q.group_of) r.group_of = ex.to_device(*q.group_of);
  r.bias = upload(ex, bias, dtype);
  return r;
}

// Scales by output: [out] f32 on the device.
Tensor output_scales(Exec& ex, const QuantizedLinear& q) {
  Tensor s = Tensor::host(DType::f32, {q.out()});
  for (int64_t o = 0; o < q.out(); ++o) s.as<float>()[o] = q.scales.as<float>()[o / q.spec.out_group];
  return ex.to_device(s);
}

Linear byte_linear(Exec& ex, const QuantizedLinear& q, ConstTensorView bias, DType dtype) {
  const bool integer = q.spec.grid == Grid::integer;
  const uint8_t flip = integer ? 0x80 : 0;  // code - 128 in two's complement
  Tensor codes = Tensor::host(integer ? DType::i8 : DType::f8_e4m3, q.codes.shape());
  for (int64_t i = 0; i < codes.numel(); ++i) codes.as<uint8_t>()[i] = q.codes.as<uint8_t>()[i] ^ flip;
  return ByteLinear{.codes = ex.to_device(codes),
                    .scales = output_scales(ex, q),
                    .bias = upload(ex, bias, dtype),
                    .input = *input_quant(q.spec, q.input_scale)};
}

// Why a linear that quantizes its input has no kernel of its codes; "" = it has.
std::string no_byte_kernel(const QuantizedLinear& q) {
  if (q.spec.bits == 8 && q.spec.symmetric && q.groups() == 1 && q.in() < 1 << 17) return "";
  return "products of bytes want 8 bits, symmetric, a scale per output or one of all, not " + q.spec.str() +
         ": it runs dequantized, with its input rounded";
}

// Why this device has no packed kernel for the linear; "" = it has.
std::string no_kernel(const Exec& ex, const QuantizedLinear& q) {
  if (q.spec.grid == Grid::f8_e4m3) return "weight-only FP8 is dequantized and multiplied densely";
  if (q.spec.grid == Grid::f4_e2m1) return "FP4 weights are dequantized and multiplied densely; inputs stay as they are";
  if (q.spec.out_group != 1) return "scales shared by several outputs are multiplied densely";
  if (!ex.on_cuda()) return "";
  return packing_marlin.refuses(q.spec, q.out(), q.in(), q.group_of.has_value());
}

// The values of the codes. Where the input is rounded too they stay f32: one step of x then weighs more than a
// rounding of the weight to bf16, and a reference must not take other steps than the packed linear.
Linear dequantized(Exec& ex, const QuantizedLinear& q, ConstTensorView bias, DType dtype) {
  const std::optional<RowQuant> input = input_quant(q.spec, q.input_scale);
  if (input) dtype = DType::f32;
  return DenseLinear{.weight = upload(ex, dequantize_reference(q), dtype),
                     .bias = upload(ex, bias, dtype),
                     .input = input};
}

}  // namespace

Linear make_dense(Exec& ex, ConstTensorView weight, ConstTensorView bias, DType dtype) {
  return DenseLinear{.weight = upload(ex, weight, dtype), .bias = upload(ex, bias, dtype), .input = {}};
}

std::optional<RowQuant> input_quant(const QuantSpec& spec, std::optional<double> input_scale) {
  if (spec.activations == ActQuant::none || spec.grid == Grid::f4_e2m1) return std::nullopt;
  const DType codes = spec.grid == Grid::integer ? DType::i8 : DType::f8_e4m3;
  if (spec.activations == ActQuant::tensor)
    return RowQuant{.codes = codes, .fixed = static_cast<float>(input_scale.value())};
  // Block weights come with one scale per token and block of inputs.
  const bool block = spec.out_group > 1 && spec.group != -1;
  return RowQuant{.codes = codes, .group = block ? spec.group : 0};
}

Linear make_linear(Exec& ex, const QuantizedLinear& q, ConstTensorView bias, DType dtype, std::string* note) {
  if (note) note->clear();
  std::string reason;
  const std::optional<RowQuant> input = input_quant(q.spec, q.input_scale);
  if (dtype == DType::bf16) {
    if (input) {
      reason = no_byte_kernel(q);
      if (reason.empty() && note && input->codes == DType::f8_e4m3 && !has_fp8_products(ex))
        *note = "this device has no FP8 products: the codes are multiplied as wider floats";
      if (reason.empty()) return byte_linear(ex, q, bias, dtype);
    } else if (!ex.on_cuda()) {
      reason = no_kernel(ex, q);
      if (reason.empty()) return row_linear(ex, q, bias, dtype);
    } else {
      const bool integer = q.spec.grid == Grid::integer;
      const QuantizedLinear w = integer ? widened(q) : clone(q);
      reason = no_kernel(ex, w);
      if (reason.empty()) return marlin_linear(ex, w, bias, dtype);
    }
  } else {
    reason = "float32 compute multiplies densely";
  }
  if (note) *note = reason;
  return dequantized(ex, q, bias, dtype);
}

Linear load_linear(Exec& ex, const Checkpoint& c, const NamedLinear& l, const LoadOptions& o,
                   std::string* note) {
  if (note) note->clear();
  const std::initializer_list<DType> floats = {DType::f32, DType::f16, DType::bf16};
  const ConstTensorView bias = l.bias ? c.store.expect(l.name + ".bias", floats, {l.out}) : ConstTensorView{};
  if (!c.packed(l.name))
    return make_dense(ex, c.store.expect(l.name + ".weight", floats, {l.out, l.in}), bias, o.dtype);
  const LinearFormat& format = c.quantization.linears.at(l.name);
  const bool nibbles_or_bytes =
      format.spec.grid == Grid::integer && (format.spec.bits == 4 || format.spec.bits == 8);
  if (ex.on_cuda() && o.weights == Weights::packed && o.dtype == DType::bf16 &&
      format.packing == &packing_marlin && nibbles_or_bytes) {
    MarlinLinear m;
    m.b = ex.to_device(c.store.get(l.name + ".B"));
    m.s = ex.to_device(c.store.get(l.name + ".s"));
    if (c.store.has(l.name + ".z")) m.z = ex.to_device(c.store.get(l.name + ".z"));
    m.bias = upload(ex, bias, o.dtype);
    m.bits = format.spec.bits;
    m.out = l.out;
    m.in = l.in;
    return m;
  }
  const QuantizedLinear q = c.unpack(l.name, l.out, l.in);
  if (o.weights == Weights::reference) return dequantized(ex, q, bias, o.dtype);
  return make_linear(ex, q, bias, o.dtype, note);
}

void apply(Exec& ex, const Linear& linear, ConstTensorView x, TensorView y) {
  std::visit(Overloaded{
                 [&](const DenseLinear& l) {
                   if (l.input) return rounded_gemm(ex, x, *l.input, l.weight, l.bias, y);
                   gemm(ex, x, l.weight, l.bias, y);
                 },
                 [&](const MarlinLinear& l) { marlin_gemm(ex, x, view_of(l), l.bias, y); },
                 [&](const RowLinear& l) {
                   cpu::row_gemm(ex, x,
                                 {.codes = l.codes,
                                  .scales = l.scales,
                                  .zeros = l.zeros,
                                  .group_of = l.group_of,
                                  .bits = l.bits,
                                  .in = l.in,
                                  .group = l.group},
                                 l.bias, y);
                 },
                 [&](const ByteLinear& l) {
                   const ByteWeightView w{.codes = l.codes, .scales = l.scales};
                   if (l.codes.dtype() == DType::i8) return int8_gemm(ex, x, l.input, w, l.bias, y);
                   fp8_gemm(ex, x, l.input, w, l.bias, y);
                 },
             },
             linear);
}

void apply_all(Exec& ex, std::span<const Linear* const> linears, ConstTensorView x,
               std::span<const TensorView> ys) {
  FEWBIT_ASSERT(linears.size() == ys.size());
  std::vector<MarlinProduct> products;
  for (size_t i = 0; i < linears.size(); ++i) {
    if (const MarlinLinear* m = std::get_if<MarlinLinear>(linears[i]))
      products.push_back({.w = view_of(*m), .bias = m->bias, .y = ys[i]});
    else
      apply(ex, *linears[i], x, ys[i]);
  }
  marlin_gemms(ex, x, products);
}

bool apply_added(Exec& ex, const Linear& linear, ConstTensorView x, TensorView y) {
  const MarlinLinear* m = std::get_if<MarlinLinear>(&linear);
  if (!m || !m->bias.empty()) return false;
  const MarlinProduct product{.w = view_of(*m), .y = y, .add = true};
  marlin_gemms(ex, x, std::span(&product, 1));
  return true;
}

int64_t weight_bytes(const Linear& linear) {
  // An empty tensor has one element by its rank-0 shape.
  const auto sum = [](std::initializer_list<const Tensor*> tensors) {
    int64_t n = 0;
    for (const Tensor* t : tensors) n += t->empty() ? 0 : t->bytes();
    return n;
  };
  return std::visit(Overloaded{
                        [&](const DenseLinear& l) {
                          return sum({&l.weight, &l.bias});
                        },
                        [&](const MarlinLinear& l) {
                          return sum({&l.b, &l.s, &l.z, &l.bias});
                        },
                        [&](const RowLinear& l) {
                          return sum({&l.codes, &l.scales, &l.zeros, &l.group_of, &l.bias});
                        },
                        [&](const ByteLinear& l) {
                          return sum({&l.codes, &l.scales, &l.bias});
                        },
                    },
                    linear);
}

std::string_view kind_of(const Linear& linear) {
  static constexpr std::string_view kRows[] = {"row0", "row1", "row2", "row3", "row4",
                                               "row5", "row6", "row7", "row8"};
  return std::visit(
      Overloaded{
          [](const DenseLinear&) -> std::string_view { return "dense"; },
          [](const MarlinLinear& l) -> std::string_view { return l.bits == 4 ? "marlin4" : "marlin8"; },
          [](const RowLinear& l) -> std::string_view { return kRows[l.bits]; },
          [](const ByteLinear& l) -> std::string_view { return l.codes.dtype() == DType::i8 ? "int8" : "fp8"; },
      },
      linear);
}

}  // namespace fewbit
