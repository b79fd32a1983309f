#include "src/run/gguf/int8_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>

#include "kernels/products/blocks/block_gemm.h"
#include "kernels/products/blocks/block_int8.h"
#include "src/core/names.h"
#include "src/core/parallel.h"
#include "src/model/checkpoint_parts.h"
#include "src/run/gguf/gguf_linear.h"
#include "src/run/gguf/strips.h"
#include "src/run/plan/linear_form.h"

namespace fewbit {
namespace {

constexpr std::array<std::pair<ActsType, std::string_view>, 2> kNames{
    {{ActsType::bf16, "bf16"}, {ActsType::int8, "int8"}}};

// The form of packed integers; it lives as long as the program. Inputs in int8 have scales of 32 columns, so
// that sums end there; others run on over 128 where the group does.
const BlockForm* form_of(int bits, int64_t group, bool minima, ActsType acts) {
  static std::mutex mutex;
  static std::map<std::tuple<int, int64_t, bool, ActsType>, BlockForm> forms;
  const std::lock_guard lock(mutex);
  const auto [it, missing] = forms.try_emplace({bits, group, minima, acts});
  BlockForm& f = it->second;
  if (!missing) return &f;  // and others may read it
  f.bits = bits;
  f.columns = static_cast<int>(group);
  f.group = acts == ActsType::bf16 && group % 128 == 0 ? 128 : static_cast<int>(kChunkCols);
  f.scale = BlockScale::wide;
  f.minima = minima;
  for (size_t i = 0; bits < 8 && i < size_t{1} << bits; ++i)
    f.levels[i] = static_cast<float>(static_cast<int>(i) - (1 << (bits - 1)));
  return &f;
}

// Why a linear or an end is refused; "" = it is not. `takes`: that its inputs will be rounded.
std::string refuses(const Exec& ex, const Checkpoint& c, const NamedLinear& l, const LoadOptions& o, bool* takes) {
  *takes = false;
  if (const BlockForm* form = block_form(c, l.name)) {
    *takes = true;
    return cpu::refuses_int8(*form);
  }
  if (!c.packed(l.name)) return "";
  const LinearFormat& format = c.quantization.linears.at(l.name);
  if (format.spec.activations != ActQuant::none) return "";
  const LinearForm form = form_of(ex.on_cuda(), format.spec, l.out, l.in, format.act_order, o.dtype);
  if (form.kind == LinearForm::Kind::dense) return form.why;
  if (form.kind == LinearForm::Kind::bytes) return "int8 has no product with FP8 codes";
  *takes = true;
  return refuses_int8_inputs(format.spec, l.in, format.act_order);
}

}  // namespace

std::string_view name_of(ActsType type) { return to_name(kNames, type); }

ActsType acts_type_from(std::string_view name) { return from_name(kNames, "--acts", name); }

void check_acts(const Exec& ex, const Checkpoint& c, const LoadOptions& o) {
  if (o.acts != ActsType::int8) return;
  const auto no = [](const std::string& what) { fail(ErrorKind::usage, "--acts int8: " + what); };
  if (ex.on_cuda()) no("inputs are rounded on the CPU alone; add --device cpu or leave it out");
  if (o.dtype != DType::bf16) no("float32 arithmetic dequantizes the weights; use --dtype bf16");
  if (o.ranks) no("runs in one process; leave --tp out");
  if (o.weights != Weights::packed) return;
  if (o.head == HeadType::fp8) no("--head fp8: int8 has no product with FP8 codes; use --head int4 or bf16");
  bool any = o.head == HeadType::int4;
  const auto check = [&](const NamedLinear& l) {
    bool takes = false;
    if (const std::string why = refuses(ex, c, l, o, &takes); !why.empty()) no(l.name + ": " + why);
    any |= takes;
  };
  for (const NamedLinear& l : c.linears()) check(l);
  for (const NamedLinear& l : ends_of(c.spec))  // an embedding alone is not multiplied, nor is a head that is floats
    if (o.head != HeadType::dense && (c.spec.tied() || l.name + ".weight" != c.spec.embed)) check(l);
  if (!any) no(c.dir.string() + " has no linear of packed integers; leave it out");
}

std::string refuses_int8_inputs(const QuantSpec& s, int64_t in, bool act_order) {
  if (s.grid != Grid::integer || s.bits > 8) return "int8 has no product with " + s.str();
  if (act_order) return "columns in act-order have no product with int8";
  const int64_t group = s.group_size(in);
  if (group % kChunkCols != 0 || in % group != 0)
    return fmt::format("int8 inputs want groups of a multiple of {} columns that divide {}, found {}", kChunkCols, in,
                       group);
  return "";
}

bool lies_in_strips(const Exec& ex, const QuantizedLinear& q, const LoadOptions& o) {
  if (ex.on_cuda() || o.weights != Weights::packed || o.dtype != DType::bf16 || o.ranks) return false;
  if (q.spec.activations != ActQuant::none) return false;
  if (o.acts != ActsType::int8 && best_over_strips() == cpu::BlockLoops::plain) return false;
  return refuses_int8_inputs(q.spec, q.in(), false).empty() && (!q.group_of || group_order(q));
}

Linear strip_linear(Exec& ex, const QuantizedLinear& linear, Tensor bias, ActsType acts) {
  std::optional<OrderedLinear> ordered = in_group_order(linear);
  const QuantizedLinear& q = ordered ? ordered->linear : linear;
  const int64_t out = q.out(), in = q.in(), group = q.spec.group_size(in), groups = in / group;
  FEWBIT_ASSERT(refuses_int8_inputs(q.spec, in, q.group_of.has_value()).empty());
  const int bits = q.spec.bits <= 4 ? 4 : 8, mid = 1 << (q.spec.bits - 1);
  const BlockForm* form = form_of(bits, group, q.zeros.has_value(), acts);
  GgufLinear g{.bias = std::move(bias),
               .form = form,
               .type = with_acts(fmt::format("row{}", acts == ActsType::int8 ? bits : q.spec.bits), acts),
               .out = out,
               .in = in,
               .acts = acts};
  if (ordered) g.order = std::move(ordered->order);
  // A code of 4 bits is its level + 8, one of 8 bits the level's bits.
  const int shift = bits == 4 ? 8 - mid : -mid;
  g.strips = strips_of(ex, *form, out, in, [&](int64_t o, uint8_t* strip) {
    for (int64_t t = 0; t < groups; ++t) {
      const float scale = q.scales.as<float>()[o * groups + t];
      const int zero = q.zeros ? q.zeros->as<uint8_t>()[o * groups + t] : mid;
      put_wide(*form, in, scale, scale * static_cast<float>(mid - zero), t, o % kStripOuts, strip);
    }
    for (int64_t c = 0; c < in / kChunkCols; ++c) {
      std::array<uint8_t, kChunkCols> codes{};
      const uint8_t* from = q.codes.as<uint8_t>() + o * in + c * kChunkCols;
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(from[i] + shift);
      put_chunk(*form, in, codes.data(), c, o % kStripOuts, strip);
    }
  });
  return g;
}

}  // namespace fewbit
