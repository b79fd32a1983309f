#include "src/quant/plan/source_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "formats/finer_grid.h"
#include "src/core/half.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/stacked_experts.h"
#include "src/quant/rule_match.h"

namespace fewbit {
namespace {

const LinearFormat& source_of(const Checkpoint& c, const NamedLinear& l) { return c.quantization.linears.at(l.name); }

// The same codes and values on `spec` in `format`: the plan of it, where a packing takes it.
bool pass(const Checkpoint& c, const CheckpointFormat& format, const QuantSpec& spec, PlannedLinear& p,
          std::string* why_not) {
  const NamedLinear& l = p.linear;
  const LinearFormat& from = source_of(c, l);
  const auto candidates = format.candidates(spec);
  const bool same =
      from.spec == spec && std::find(candidates.begin(), candidates.end(), from.packing) != candidates.end();
  const Packing* packing = same ? from.packing : choose_packing(format, spec, l.out, l.in, from.act_order, why_not);
  if (packing && packing->two_of_four && !from.packing->two_of_four) {
    if (why_not) *why_not = fmt::format("{} holds two weights of every four inputs alone", format.name);
    return false;
  }
  if (!packing) return false;
  p.lossless = true;
  p.keep = false;
  p.packing = packing;
  p.recipe = {};
  p.recipe.method = spec.grid == Grid::f8_e4m3 ? &method_fp8 : &method_rtn;  // whose name nothing asks for
  p.recipe.spec = spec;
  p.recipe.act_order = from.act_order ? ActOrder::full : ActOrder::off;
  p.recipe.format = format.name;
  if (format.gguf) p.recipe.blocks = &gguf::block_type(packing->tensors(spec, l.out, l.in, false)[0].suffix);
  p.out_bytes = packed_bytes(*packing, spec, l.out, l.in, from.act_order);
  p.calibrates_input = spec.activations == ActQuant::tensor && from.spec.activations != ActQuant::tensor;
  p.note = packing->note ? packing->note(spec, l.out, l.in) : "";
  return true;
}

bool knows(const CheckpointFormat& format, const LinearFormat& f) {
  const auto candidates = format.candidates(f.spec);
  return std::find(candidates.begin(), candidates.end(), f.packing) != candidates.end();
}

// The tensor of the scales: one byte a group.
ConstTensorView byte_scales(const Checkpoint& c, const NamedLinear& l) {
  const LinearFormat& f = source_of(c, l);
  const Shape groups{l.out, f.spec.groups(l.in)};
  for (const TensorPlan& t : f.packing->tensors(f.spec, l.out, l.in, false))
    if (bytes_of(t.dtype) == 1 && t.shape == groups) return c.store.get(l.name + '.' + t.suffix);
  bug("a packing of MXFP4 without scales of one byte");
}

bool may_pass_as_nvfp4(const Checkpoint& c, const PlannedLinear& p) {
  if (p.keep || p.lossless || !p.packing || !c.packed(p.linear.name)) return false;
  const QuantSpec &from = source_of(c, p.linear).spec, &to = p.recipe.spec;
  return from.grid == Grid::f4_e2m1 && from.scale_dtype == DType::f8_e8m0 && to.two_level() &&
         to.grid == Grid::f4_e2m1 && from.group % to.group == 0;
}

// One global scale for linears that share their input; 0 where it would not be exact.
double shared_global(const Checkpoint& c, const std::vector<PlannedLinear*>& group) {
  uint8_t least = 255, largest = 0;
  for (const PlannedLinear* p : group) {
    const ConstTensorView scales = byte_scales(c, p->linear);
    const auto* s = static_cast<const uint8_t*>(scales.data);
    const auto [low, high] = std::minmax_element(s, s + scales.numel());
    least = std::min(least, *low);
    largest = std::max(largest, *high);
    release_linear(c, p->linear.name);
  }
  return largest == 255 ? 0 : exact_global(f8_e8m0_to_f32(least), f8_e8m0_to_f32(largest));
}

// Linears of a block that engines run as one, by their names in it.
std::vector<std::vector<std::string>> shared_inputs(const BlockOp& op) {
  std::vector<std::vector<std::string>> groups;
  const auto* m = std::get_if<Moe>(&op);
  if (!m) {
    if (const auto all = linears_of(op); !all.empty()) groups.emplace_back();
    for (const LinearDef& l : linears_of(op)) groups.back().push_back(l.name);
    return groups;
  }
  for (int e = 0; e < m->experts; ++e) {
    groups.push_back({m->of_expert(m->gate, e).name, m->of_expert(m->up, e).name});
    groups.push_back({m->of_expert(m->down, e).name});
  }
  return groups;
}

}  // namespace

std::string refuses_source(const Checkpoint& c, const NamedLinear& l) {
  const CheckpointFormat* format = find_checkpoint_format(c.format);
  if (!format || !format->published)
    return fmt::format(
        "is already quantized ({}); start from the bf16 checkpoint, or from what `convert to bf16` makes of it",
        c.format);
  if (l.layer == kOutsideBlocks)
    return "is packed in the model, and a quantization starts from floats there; `convert to bf16` makes them";
  return "";
}

bool pass_as_it_came(const Checkpoint& c, const CheckpointFormat& format, PlannedLinear& p, std::string* why_not) {
  QuantSpec spec = source_of(c, p.linear).spec;
  if (pass(c, format, spec, p, why_not)) return true;
  for (const DType wider : {DType::bf16, DType::f32}) {
    QuantSpec other = spec;
    other.scale_dtype = wider;
    if (has_grid(other, spec, p.linear.out, p.linear.in) && pass(c, format, other, p, nullptr)) return true;
  }
  return false;
}

bool pass_on_grid(const Checkpoint& c, const CheckpointFormat& format, PlannedLinear& p) {
  const NamedLinear& l = p.linear;
  const LinearFormat& from = source_of(c, l);
  const QuantSpec to = p.recipe.spec;
  if (from.act_order || p.recipe.act_order == ActOrder::full) return false;
  // The model's own type of scales goes before the recipe's: its bytes stay.
  QuantSpec own = to;
  own.scale_dtype = from.spec.scale_dtype;
  for (const QuantSpec& spec : {own, to})
    if (spec.two_level() == from.spec.two_level() && has_grid(spec, from.spec, l.out, l.in) &&
        pass(c, format, spec, p, nullptr))
      return true;
  return false;
}

void pass_powers_of_two(const Checkpoint& c, QuantPlan& plan) {
  if (!plan.transforms.empty()) return;
  std::map<std::string, PlannedLinear*> wanted;
  for (PlannedLinear& p : plan.linears)
    if (may_pass_as_nvfp4(c, p)) wanted[p.linear.name] = &p;
  if (wanted.empty()) return;
  for (int64_t layer = 0; layer < c.spec.layers; ++layer)
    for (const BlockOp& op : c.spec.block(layer))
      for (const std::vector<std::string>& names : shared_inputs(op)) {
        std::vector<PlannedLinear*> group;
        for (const std::string& name : names)
          if (const auto it = wanted.find(c.spec.prefix(layer) + name); it != wanted.end()) group.push_back(it->second);
        const double global = group.empty() ? 0 : shared_global(c, group);
        if (global > 0)
          for (PlannedLinear* p : group)
            if (const QuantSpec spec = p->recipe.spec; pass(c, *plan.format, spec, *p, nullptr))
              p->global_scale = global;
      }
}

std::vector<NamedLinear> carried(const Checkpoint& c, const QuantPlan& plan) {
  std::vector<NamedLinear> all = c.others;
  for (const NamedLinear& end : ends_of(c.spec))
    if (c.packed(end.name) && !plan.find(end.name)) all.push_back(end);
  return all;
}

void plan_others(const Checkpoint& c, QuantPlan& plan) {
  const CheckpointFormat& format = *plan.format;
  std::set<std::string> untouched;
  for (const NamedLinear& l : projects_of(c.spec)) untouched.insert(l.name);
  for (const NamedLinear& l : carried(c, plan)) {
    const LinearFormat& f = source_of(c, l);
    const bool known = knows(format, f);
    const bool of_model = l.layer == kOutsideBlocks || untouched.count(l.name) > 0;
    if ((l.layer == kOutsideBlocks && !format.packed_ends) || (of_model && !known))
      plan.refusals.push_back(
          {l.name, fmt::format("is packed in the model ({} as {}), which format {} has no words for; "
                               "`convert to bf16` dequantizes it",
                               f.spec.str(), f.packing->name, format.name)});
    else if (!known)
      plan.refusals.push_back(
          {l.name, fmt::format("lies outside the language model and is {} as {}, which format {} has no words for; "
                               "--drop GLOB leaves it out, `convert to bf16` dequantizes it",
                               f.spec.str(), f.packing->name, format.name)});
  }
  if (c.quantization.fp8_kv_cache && !plan.fp8_kv_cache && !format.fp8_kv_cache)
    plan.refusals.push_back(
        {c.spec.arch, fmt::format("the model has scales of an FP8 cache, and format {} has no place "
                                  "for them; --drop '*.?_scale' leaves them out",
                                  format.name)});
}

void refuse_unstacked(const Checkpoint& c, QuantPlan& plan) {
  if (!plan.format->stacked) return;
  const auto packed = [&](const std::string& linear) {
    const PlannedLinear* p = plan.find(linear);
    return p && !p->layout().empty();
  };
  if (std::string why = refuses_stacks(c.spec, packed); !why.empty())
    plan.refusals.push_back({fmt::format("format {}", plan.format->name), std::move(why)});
}

void require_sources(const Checkpoint& c, const std::vector<Rule>& rules) {
  for (const Rule& rule : rules) {
    if (!rule.recipe.source_grid) continue;
    const auto linears = c.linears();
    const bool some = std::any_of(linears.begin(), linears.end(), [&](const NamedLinear& l) {
      return l.layer >= 0 && c.packed(l.name) && means(rule, c.spec, l);
    });
    if (!some)
      fail(ErrorKind::usage,
           fmt::format("--keep-source-grid {}: no linear of that name is low-bit in {}", rule.glob, c.dir.string()));
  }
}

}  // namespace fewbit
