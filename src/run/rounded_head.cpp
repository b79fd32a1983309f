#include "src/run/rounded_head.h"

#include <algorithm>
#include <array>

#include "formats/packing.h"
#include "kernels/model/cast.h"
#include "kernels/products/marlin/marlin_pack.h"
#include "kernels/quantize/choose_f8_scales.h"
#include "kernels/quantize/choose_scales.h"
#include "kernels/quantize/round_to_grid.h"
#include "src/core/names.h"
#include "src/run/gguf/fp8_strips.h"

namespace fewbit {
namespace {

constexpr std::array<std::pair<HeadType, std::string_view>, 4> kNames{
    {{HeadType::stored, "stored"}, {HeadType::dense, "bf16"}, {HeadType::fp8, "fp8"}, {HeadType::int4, "int4"}}};

constexpr QuantSpec kInt4{.bits = 4, .group = 128};
constexpr int64_t kRowsAtOnce = 8192;  // of the weight in f32; a multiple of Marlin's 64

// Calls f(first output, the weight's rows from there in f32 on the device) for all of it.
template <class F>
void for_rows(Exec& ex, const Checkpoint& c, const NamedLinear& l, const F& f) {
  const ConstTensorView weight =
      c.store.expect(l.name + ".weight", {DType::f32, DType::f16, DType::bf16}, {l.out, l.in});
  for (int64_t first = 0; first < l.out; first += kRowsAtOnce) {
    const Tensor raw = ex.to_device(weight.row_range(first, std::min(l.out, first + kRowsAtOnce)));
    const Tensor w = ex.alloc(DType::f32, raw.shape());
    cast(ex, raw, w);
    f(first, w);
  }
}

Linear fp8_head(Exec& ex, const Checkpoint& c, const NamedLinear& l, const LoadOptions& o) {
  ByteLinear h{.codes = ex.alloc(DType::f8_e4m3, {l.out, l.in}),
               .scales = ex.alloc(DType::f32, {l.out}),
               .bias = {},
               .input = kUnrounded};
  const TensorView bytes{h.codes.view().data, DType::u8, h.codes.shape(), h.codes.device()};
  for_rows(ex, c, l, [&](int64_t first, const Tensor& w) {
    const int64_t end = first + w.rows();
    const TensorView scales = h.scales.view().reshaped({l.out, 1}).row_range(first, end);
    choose_f8_scales(ex, {.w = w, .group = l.in}, scales);
    round_to_grid(
        ex, w,
        {.codes = bytes.row_range(first, end), .scales = scales, .grid = Grid::f8_e4m3, .bits = 8, .group = l.in});
  });
  return fp8_linear(ex, std::move(h), o);
}

// Calls f(first output, codes, scales) for runs of rows, all on the device.
template <class F>
void for_int4_rows(Exec& ex, const Checkpoint& c, const NamedLinear& l, const F& f) {
  for_rows(ex, c, l, [&](int64_t first, const Tensor& w) {
    const Tensor codes = ex.alloc(DType::u8, w.shape()), scales = ex.alloc(DType::f32, {w.rows(), kInt4.groups(l.in)});
    choose_scales(ex, w, {}, kInt4.group, default_search(kInt4.bits, true, ScaleRule::diag_grid), scales, {});
    round_to_grid(ex, w, {.codes = codes, .scales = scales, .bits = kInt4.bits, .group = kInt4.group});
    f(first, codes, scales);
  });
}

Linear int4_head(Exec& ex, const Checkpoint& c, const NamedLinear& l, const LoadOptions& o) {
  if (ex.on_cuda()) {
    MarlinLinear m{.b = ex.alloc(DType::i32, {l.in / 16, l.out * 16 * kInt4.bits / 32}),
                   .s = ex.alloc(DType::f16, {kInt4.groups(l.in), l.out}),
                   .bits = kInt4.bits,
                   .out = l.out,
                   .in = l.in};
    for_int4_rows(ex, c, l, [&](int64_t first, const Tensor& codes, const Tensor& scales) {
      marlin_pack(ex, {.codes = codes, .scales = scales, .bits = kInt4.bits, .first = first}, m.b, m.s);
    });
    return m;
  }
  QuantizedLinear q{.spec = kInt4,
                    .codes = Tensor::host(DType::u8, {l.out, l.in}),
                    .scales = Tensor::host(DType::f32, {l.out, kInt4.groups(l.in)})};
  for_int4_rows(ex, c, l, [&](int64_t first, const Tensor& codes, const Tensor& scales) {
    ex.copy(codes, q.codes.view().row_range(first, first + codes.rows()));
    ex.copy(scales, q.scales.view().row_range(first, first + scales.rows()));
  });
  return make_linear(ex, q, {}, o, nullptr);
}

}  // namespace

std::string_view name_of(HeadType type) { return to_name(kNames, type); }

HeadType head_type_from(std::string_view name) { return from_name(kNames, "--head", name); }

std::string refuses_head(const Exec& ex, const Checkpoint& c, const NamedLinear& l, const LoadOptions& o) {
  if (o.head != HeadType::fp8 && o.head != HeadType::int4) return "";
  if (c.packed(l.name))
    return "the checkpoint has it packed already (" + c.quantization.linears.at(l.name).spec.str() + ")";
  if (o.dtype != DType::bf16) return "float32 arithmetic multiplies floats alone";
  if (o.head == HeadType::int4 && ex.on_cuda()) return packing_marlin.refuses(kInt4, l.out, l.in, false);
  return "";
}

Linear rounded_head(Exec& ex, const Checkpoint& c, const NamedLinear& l, const LoadOptions& o) {
  return o.head == HeadType::fp8 ? fp8_head(ex, c, l, o) : int4_head(ex, c, l, o);
}

}  // namespace fewbit
