// Linears on a device: which layout a linear gets, and the product. The only place that chooses by device.
#include "src/run/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "formats/packing.h"
#include "formats/stored_bytes.h"
#include "kernels/model/cast.h"
#include "kernels/model/copy_columns.h"
#include "kernels/model/norm.h"
#include "kernels/products/blocks/block_gemm.h"
#include "kernels/products/blocks/block_int8.h"
#include "kernels/products/bytes/byte_gemms.h"
#include "kernels/products/bytes/fp8_gemm.h"
#include "kernels/products/bytes/int8_gemm.h"
#include "kernels/products/gated_gemms.h"
#include "kernels/products/gemm.h"
#include "kernels/products/marlin/marlin_gemm.h"
#include "kernels/products/row_gemm.h"
#include "src/core/half.h"
#include "src/core/overloaded.h"
#include "src/run/fused.h"
#include "src/run/gguf/fp8_strips.h"
#include "src/run/gguf/gguf_linear.h"
#include "src/run/gguf/int8_inputs.h"
#include "src/run/plan/linear_form.h"
#include "src/run/upload_as.h"
#include "src/run/values_of.h"

namespace fewbit {
namespace {

// The same values in the width that a Marlin kernel reads: codes of a symmetric grid move with its zero.
QuantizedLinear widened(const QuantizedLinear& q) {
  QuantizedLinear w = clone(q);
  w.spec = spec_on_device(true, q.spec);
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
    if (t.name == "w.B")
      m.b = std::move(device);
    else if (t.name == "w.s")
      m.s = std::move(device);
    else if (t.name == "w.z")
      m.z = std::move(device);
  }
  FEWBIT_ASSERT(!m.b.empty() && !m.s.empty());
  m.bias = upload_as(ex, bias, dtype);
  return m;
}

ByteProduct product_of(const ByteLinear& l, TensorView y) {
  return {.w = {.codes = l.codes, .scales = l.scales}, .bias = l.bias, .y = y};
}

Linear row_linear(Exec& ex, const QuantizedLinear& linear, ConstTensorView bias, DType dtype) {
  std::optional<OrderedLinear> ordered = in_group_order(linear);
  const QuantizedLinear& q = ordered ? ordered->linear : linear;
  RowLinear r;
  if (ordered) r.order = std::move(ordered->order);
  r.bits = q.spec.bits;
  r.out = q.out();
  r.in = q.in();
  r.group = q.spec.group_size(q.in());
  r.codes = q.spec.bits <= 4 ? ex.to_device(nibbles_of(q)) : ex.to_device(q.codes);
  r.scales = ex.to_device(q.scales);
  if (q.zeros) r.zeros = ex.to_device(*q.zeros);
  if (q.group_of) r.group_of = ex.to_device(*q.group_of);
  r.bias = upload_as(ex, bias, dtype);
  return r;
}

// Scales by output: [out] f32 on the device. `scales` [ceil(out / out_group), 1].
Tensor output_scales(Exec& ex, const Tensor& scales, int64_t out_group, int64_t out) {
  Tensor s = Tensor::host(DType::f32, {out});
  for (int64_t o = 0; o < out; ++o) s.as<float>()[o] = scales.as<float>()[o / out_group];
  return ex.to_device(s);
}

// What meets the codes of a linear whose kernel multiplies bytes: its input rounded to 8 bits, of weight-only FP8 as it
// is. Nothing for all others.
std::optional<RowQuant> byte_input(const QuantSpec& spec, int64_t in, std::optional<double> input_scale) {
  if (spec.grid == Grid::f8_e4m3 && spec.activations == ActQuant::none) return kUnrounded;
  std::optional<RowQuant> input = input_quant(spec, input_scale);
  if (input && input->group >= in) input->group = 0;  // one block is the row, which is what the kernels take
  return input;
}

Linear byte_linear(Exec& ex, const QuantizedLinear& q, ConstTensorView bias, DType dtype) {
  const bool integer = q.spec.grid == Grid::integer;
  const uint8_t flip = integer ? 0x80 : 0;  // code - 128 in two's complement
  Tensor codes = Tensor::host(integer ? DType::i8 : DType::f8_e4m3, q.codes.shape());
  for (int64_t i = 0; i < codes.numel(); ++i) codes.as<uint8_t>()[i] = q.codes.as<uint8_t>()[i] ^ flip;
  return ByteLinear{.codes = ex.to_device(codes),
                    .scales = output_scales(ex, q.scales, q.spec.out_group, q.out()),
                    .bias = upload_as(ex, bias, dtype),
                    .input = *byte_input(q.spec, q.in(), q.input_scale)};
}

// What a run says of a linear whose codes this device does not multiply as they are.
std::string note_of_codes(const Exec& ex, DType codes) {
  if (codes != DType::f8_e4m3 || has_fp8_products(ex)) return "";
  return "this device has no FP8 products: the codes are multiplied as wider floats";
}

// Whether integers that this device multiplies as Marlin has them are to be brought into its widths.
bool takes_marlin(const Exec& ex, const QuantSpec& spec) {
  return ex.on_cuda() && spec.grid == Grid::integer && spec.activations == ActQuant::none;
}

// x with its columns as a linear in act-order has them; nothing where there is no order.
Tensor in_order(Exec& ex, ConstTensorView x, const Tensor& order) {
  if (order.empty()) return {};
  Tensor y = ex.alloc(x.dtype, x.shape);
  cpu::order_columns(ex, x, order, y);
  return y;
}

// The values of the codes; in f32 where the input is rounded to 8 bits, as form_of() has it.
Linear dequantized(Exec& ex, const QuantizedLinear& q, ConstTensorView bias, DType dtype) {
  const std::optional<RowQuant> input = input_quant(q.spec, q.input_scale);
  if (input && q.spec.grid != Grid::f4_e2m1) dtype = DType::f32;
  return DenseLinear{
      .weight = upload_as(ex, dequantize_reference(q), dtype),
      .bias = upload_as(ex, bias, dtype),
      .input = input,
  };
}

}  // namespace

BlockView view_of(const GgufLinear& l) { return {.strips = l.strips, .form = l.form, .out = l.out, .in = l.in}; }

Fp4View view_of(const Fp4Linear& l) { return {.tiles = l.tiles, .in = l.in}; }
MarlinView view_of(const MarlinLinear& l) {
  return {.b = l.b, .s = l.s, .z = l.z, .bits = l.bits, .out = l.out, .in = l.in};
}

Linear make_dense(Exec& ex, ConstTensorView weight, ConstTensorView bias, DType dtype) {
  return DenseLinear{.weight = upload_as(ex, weight, dtype), .bias = upload_as(ex, bias, dtype), .input = {}};
}

std::optional<RowQuant> input_quant(const QuantSpec& spec, std::optional<double> input_scale) {
  if (spec.activations == ActQuant::none) return std::nullopt;
  if (spec.grid == Grid::f4_e2m1)
    return RowQuant{.codes = DType::u8,
                    .fixed = spec.two_level() ? static_cast<float>(input_scale.value()) : 0,
                    .group = spec.group,
                    .scales = spec.scale_dtype};
  const DType codes = spec.grid == Grid::integer ? DType::i8 : DType::f8_e4m3;
  if (spec.activations == ActQuant::tensor)
    return RowQuant{.codes = codes, .fixed = static_cast<float>(input_scale.value())};
  // Block weights come with one scale per token and block of inputs.
  const bool block = spec.out_group > 1 && spec.group != -1;
  return RowQuant{.codes = codes,
                  .group = block ? spec.group : 0,
                  .reach = spec.act_clip,
                  .bits = spec.act_bits,
                  .turn = spec.turn};
}

Linear make_linear(Exec& ex, const QuantizedLinear& q, ConstTensorView bias, DType dtype, std::string* note,
                   bool expert) {
  std::optional<QuantizedLinear> wide;
  if (dtype == DType::bf16 && takes_marlin(ex, q.spec)) wide = widened(q);
  const QuantizedLinear& as = wide ? *wide : q;
  const LinearForm form = form_of(ex.on_cuda(), as.spec, q.out(), q.in(), q.group_of.has_value(), dtype, expert);
  if (note) *note = form.kind == LinearForm::Kind::bytes ? note_of_codes(ex, form.input) : form.why;
  switch (form.kind) {
    case LinearForm::Kind::bytes:
      return byte_linear(ex, q, bias, dtype);
    case LinearForm::Kind::rows:
      return row_linear(ex, q, bias, dtype);
    case LinearForm::Kind::marlin:
      return marlin_linear(ex, as, bias, dtype);
    case LinearForm::Kind::fp4:
      if (const std::optional<Tensor> tiles = fp4_tiles(q.codes, q.scales))
        return Fp4Linear{.tiles = ex.to_device(*tiles), .bias = upload_as(ex, bias, dtype), .in = q.in()};
      if (note) *note = "MXFP4 scales above 2: the weights are dequantized and multiplied densely";
      break;
    case LinearForm::Kind::dense:
      break;
  }
  return dequantized(ex, q, bias, dtype);
}

Linear make_linear(Exec& ex, const QuantizedLinear& q, ConstTensorView bias, const LoadOptions& o, std::string* note) {
  if (o.weights == Weights::values)
    return DenseLinear{.weight = values_of(ex, q, o.dtype), .bias = upload_as(ex, bias, o.dtype), .input = {}};
  if (lies_in_strips(ex, q, o)) {
    if (note) note->clear();
    return strip_linear(ex, q, upload_as(ex, bias, o.dtype), o.acts);
  }
  if (o.weights == Weights::reference) return dequantized(ex, q, bias, o.dtype);
  Linear linear = make_linear(ex, q, bias, o.dtype, note, o.expert);
  ByteLinear* bytes = std::get_if<ByteLinear>(&linear);
  return bytes ? fp8_linear(ex, std::move(*bytes), o) : std::move(linear);
}

Linear load_linear(Exec& ex, const Checkpoint& c, const NamedLinear& l, const LoadOptions& o, std::string* note) {
  if (note) note->clear();
  const std::initializer_list<DType> floats = {DType::f32, DType::f16, DType::bf16};
  const ConstTensorView bias = l.bias ? c.store.expect(l.name + ".bias", floats, {l.out}) : ConstTensorView{};
  if (runs_as_blocks(ex, c, l.name, o)) return gguf_linear(ex, c, l, upload_as(ex, bias, o.dtype), o.acts);
  if (!c.packed(l.name))
    return DenseLinear{.weight = upload_stored(ex, c.store, l.name + ".weight", {l.out, l.in}, o.dtype),
                       .bias = upload_as(ex, bias, o.dtype),
                       .input = {}};
  const LinearFormat& format = c.quantization.linears.at(l.name);
  const bool nibbles_or_bytes = format.spec.grid == Grid::integer && (format.spec.bits == 4 || format.spec.bits == 8);
  if (ex.on_cuda() && o.weights == Weights::packed && o.dtype == DType::bf16 && format.packing == &packing_marlin &&
      nibbles_or_bytes) {
    MarlinLinear m;
    m.b = ex.to_device(c.store.get(l.name + ".B"));
    m.s = ex.to_device(c.store.get(l.name + ".s"));
    if (c.store.has(l.name + ".z")) m.z = ex.to_device(c.store.get(l.name + ".z"));
    m.bias = upload_as(ex, bias, o.dtype);
    m.bits = format.spec.bits;
    m.out = l.out;
    m.in = l.in;
    return m;
  }
  if (o.weights == Weights::packed &&
      form_of(ex.on_cuda(), format.spec, l.out, l.in, format.act_order, o.dtype).kind == LinearForm::Kind::bytes) {
    if (const auto stored = stored_bytes(*format.packing, l.name, format.spec, l.out, l.in, c.source())) {
      const RowQuant input = *byte_input(format.spec, l.in, stored->input_scale);
      if (note) *note = note_of_codes(ex, input.codes);
      return fp8_linear(ex,
                        {.codes = ex.to_device(stored->codes),
                         .scales = output_scales(ex, stored->scales, format.spec.out_group, l.out),
                         .bias = upload_as(ex, bias, o.dtype),
                         .input = input},
                        o);
    }
  }
  return make_linear(ex, c.unpack(l.name, l.out, l.in), bias, o, note);
}

void apply(Exec& ex, const Linear& linear, ConstTensorView x, TensorView y) {
  std::visit(Overloaded{
                 [&](const DenseLinear& l) {
                   if (l.input) return rounded_gemm(ex, x, *l.input, l.weight, l.bias, y);
                   const GemmProduct product{.w = l.weight, .bias = l.bias, .y = y};
                   gemms(ex, x, std::span(&product, 1));
                 },
                 [&](const MarlinLinear& l) { marlin_gemm(ex, x, view_of(l), l.bias, y); },
                 [&](const RowLinear& l) {
                   const Tensor ordered = in_order(ex, x, l.order);
                   cpu::row_gemm(ex, l.order.empty() ? x : ordered.view(),
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
                   const ByteProduct product = product_of(l, y);
                   byte_gemms(ex, x, l.input, std::span(&product, 1));
                 },
                 [&](const GgufLinear& l) {
                   const GgufLinear* const one = &l;
                   if (l.input) return fp8_strip_gemms(ex, x, std::span(&one, 1), std::span(&y, 1));
                   const Tensor ordered = in_order(ex, x, l.order);
                   const ConstTensorView columns = l.order.empty() ? x : ordered.view();
                   if (l.acts == ActsType::int8) return cpu::block_int8_gemm(ex, columns, view_of(l), l.bias, y);
                   cpu::block_gemm(ex, columns, view_of(l), l.bias, y);
                 },
                 [&](const Fp4Linear& l) {
                   const Fp4View view = view_of(l);
                   const Tensor values = ex.alloc(DType::bf16, {view.out(), view.in});
                   fp4_values(ex, view, values);
                   const GemmProduct product{.w = values, .bias = l.bias, .y = y};
                   gemms(ex, x, std::span(&product, 1));
                 },
             },
             linear);
}

namespace {

// Linears of one x by the kernel that takes them together.
struct Siblings {
  std::vector<MarlinProduct> packed;
  std::vector<GemmProduct> dense;
  std::vector<ByteProduct> bytes;
  RowQuant rounding;  // of `bytes`
  std::vector<const GgufLinear*> strips;
  std::vector<TensorView> of_strips;
  std::vector<size_t> alone;  // the rest

  Siblings(std::span<const Linear* const> linears, std::span<const TensorView> ys) {
    FEWBIT_ASSERT(linears.size() == ys.size());
    for (size_t i = 0; i < linears.size(); ++i) {
      const DenseLinear* d = std::get_if<DenseLinear>(linears[i]);
      const ByteLinear* b = std::get_if<ByteLinear>(linears[i]);
      const GgufLinear* g = std::get_if<GgufLinear>(linears[i]);
      if (const MarlinLinear* m = std::get_if<MarlinLinear>(linears[i])) {
        packed.push_back({.w = view_of(*m), .bias = m->bias, .y = ys[i]});
      } else if (d && !d->input) {
        dense.push_back({.w = d->weight, .bias = d->bias, .y = ys[i]});
      } else if (b && (bytes.empty() || b->input == rounding)) {
        rounding = b->input;
        bytes.push_back(product_of(*b, ys[i]));
      } else if (g && g->input && (strips.empty() || g->input == strips[0]->input)) {
        strips.push_back(g);
        of_strips.push_back(ys[i]);
      } else {
        alone.push_back(i);
      }
    }
  }
};

}  // namespace

void apply_all(Exec& ex, std::span<const Linear* const> linears, ConstTensorView x, std::span<const TensorView> ys) {
  const Siblings s(linears, ys);
  for (const size_t i : s.alone) apply(ex, *linears[i], x, ys[i]);
  marlin_gemms(ex, x, s.packed);
  gemms(ex, x, s.dense);
  byte_gemms(ex, x, s.rounding, s.bytes);
  fp8_strip_gemms(ex, x, s.strips, s.of_strips);
}

void apply_all_normed(Exec& ex, std::span<const Linear* const> linears, ConstTensorView x, const RowNorm& norm,
                      TensorView normed, std::span<const TensorView> ys) {
  const Siblings s(linears, ys);
  if (s.dense.size() == linears.size()) return normed_gemms(ex, x, norm, normed, s.dense);
  if (s.bytes.size() == linears.size()) return normed_byte_gemms(ex, x, norm, normed, s.rounding, s.bytes);
  rms_norm(ex, x, norm.weight, norm.eps, norm.offset, normed);
  apply_all(ex, linears, normed, ys);
}

bool take_norm(std::span<const Linear* const> linears) {
  return std::all_of(linears.begin(), linears.end(), [&](const Linear* l) {
    const ByteLinear *b = std::get_if<ByteLinear>(l), *first = std::get_if<ByteLinear>(linears[0]);
    return b && b->input.codes != DType::f16 && b->input == first->input;
  });
}

bool apply_gated(Exec& ex, const Linear& linear, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView room,
                 TensorView y, bool add) {
  const ByteLinear* b = std::get_if<ByteLinear>(&linear);
  if (!b || !ex.on_cuda() || (add && !b->bias.empty())) return false;
  ByteProduct product = product_of(*b, y);
  product.add = add;
  gated_byte_gemms(ex, gate, up, act, room, b->input, std::span(&product, 1));
  return true;
}

bool apply_added(Exec& ex, const Linear& linear, ConstTensorView x, TensorView y) {
  if (const MarlinLinear* m = std::get_if<MarlinLinear>(&linear); m && m->bias.empty()) {
    const MarlinProduct product{.w = view_of(*m), .y = y, .add = true};
    marlin_gemms(ex, x, std::span(&product, 1));
    return true;
  }
  if (!ex.on_cuda()) return false;
  if (const DenseLinear* d = std::get_if<DenseLinear>(&linear); d && !d->input && x.dtype == DType::bf16) {
    const GemmProduct product{.w = d->weight, .bias = d->bias, .y = y, .add = true};
    gemms(ex, x, std::span(&product, 1));
    return true;
  }
  if (const ByteLinear* b = std::get_if<ByteLinear>(&linear); b && b->bias.empty()) {
    ByteProduct product = product_of(*b, y);
    product.add = true;
    byte_gemms(ex, x, b->input, std::span(&product, 1));
    return true;
  }
  return false;
}

}  // namespace fewbit
