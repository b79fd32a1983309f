#include "src/quant/convert/convert_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "formats/kv_scales.h"
#include "formats/same_codes.h"
#include "src/core/files/command_line.h"
#include "src/core/half.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/foreign/foreign.h"
#include "src/model/stacked_experts.h"
#include "src/quant/output/companions.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr float kLargestF16 = 65504;

// Reasons, each with the linears that it holds for.
class Refusals {
 public:
  void add(const std::string& name, const std::string& reason) {
    auto& names = names_[reason];
    if (names.empty()) reasons_.push_back(reason);
    names.push_back(name);
    ++count_;
  }
  void fail_if_any(const std::string& format) const {
    if (count_ == 0) return;
    std::string s =
        fmt::format("format {} does not hold this checkpoint ({} refused); nothing was written", format, count_);
    for (const std::string& reason : reasons_) {
      const auto& names = names_.at(reason);
      s += fmt::format("\n  {}{}: {}", names[0],
                       names.size() > 1 ? fmt::format(" and {} others", names.size() - 1) : "", reason);
    }
    fail(ErrorKind::unsupported, s);
  }

 private:
  std::vector<std::string> reasons_;  // in the order in which they came up
  std::map<std::string, std::vector<std::string>> names_;
  int64_t count_ = 0;
};

void plan_packed(const Checkpoint& c, const ConvertJob& job, const NamedLinear& l, ConvertPlan& plan,
                 Refusals& refusals) {
  QuantizedLinear q = c.unpack(l.name, l.out, l.in);
  if (const std::string what = check(q); !what.empty()) return refusals.add(l.name, "is damaged: " + what);
  std::string why;
  const LinearFormat f = same_codes(*job.target.format, q, &why);
  if (!f.packing) return refusals.add(l.name, why);
  plan.summary.linears[l.name] = f;
  plan.hashes[l.name] = content_hash(on_grid(std::move(q), f.spec));
}

// Codes of one linear, or the reason why it stays as it is.
void plan_codes(const Checkpoint& c, const ConvertJob& job, const NamedLinear& l, ConvertPlan& plan,
                Refusals& refusals) {
  if (c.packed(l.name)) return plan_packed(c, job, l, plan, refusals);
  const TensorInfo* weight = c.store.find(l.name + ".weight");
  if (weight && !weight->stored.empty())
    return refusals.add(l.name, fmt::format("blocks of {} are no codes of one grid; convert to bf16, or to "
                                            "gguf:TYPE, which stores values anew",
                                            weight->stored));
  plan.summary.dense.push_back(l.name);
}

bool beyond_f16(ConstTensorView v) {
  const Tensor values = float_values(v);
  const float* x = values.as<float>();
  return std::any_of(x, x + values.numel(), [](float a) { return std::fabs(a) > kLargestF16; });
}

// Only f16 has less range than what is converted to it.
void plan_dense(const Checkpoint& c, const ConvertJob& job, Refusals& refusals) {
  if (job.target.dense != DType::f16) return;
  constexpr const char* kReason = "has values beyond the range of f16; use bf16 or f32";
  for (const NamedDense& t : dense_tensors_of(c.spec)) {
    if (t.below > 0 || !c.store.has(t.name)) continue;  // integers, packed
    if (beyond_f16(c.store.get(t.name))) refusals.add(t.name, kReason);
    c.store.release(t.name);
  }
  for (const NamedLinear& l : c.linears()) {
    if (beyond_f16(c.values(l))) refusals.add(l.name, kReason);
    release_linear(c, l.name);
  }
}

void add_notes(const Checkpoint& c, const ConvertJob& job, ConvertPlan& plan) {
  const ConvertTarget& t = job.target;
  const auto any = [](const QuantizationSummary& s, auto&& holds) {
    return std::any_of(s.linears.begin(), s.linears.end(), [&](const auto& l) { return holds(l.second.spec); });
  };
  if (c.quantization.fp8_kv_cache && !plan.summary.fp8_kv_cache)
    plan.notes.push_back(fmt::format("the scales of the FP8 cache are left out: {} has no place for them",
                                     t.dense ? "a dense checkpoint" : "format " + std::string(t.format->name)));
  const auto rounds_inputs = [](const QuantSpec& s) { return s.activations != ActQuant::none; };
  if ((t.dense || t.blocks) && any(c.quantization, rounds_inputs))
    plan.notes.push_back("MODEL quantizes the inputs of its linears; OUT does not");
  if (std::string note = unrounded_inputs_note(c.config.text()); !note.empty()) plan.notes.push_back(std::move(note));
  if (t.format->gguf && any(plan.summary, [](const QuantSpec& s) { return !s.symmetric; }))
    plan.notes.push_back(
        "GGUF stores f16(-zero * scale) in the place of a zero point: other readers' values differ from "
        "MODEL's "
        "by at most 2^-11 of that");
  if (const auto outside = unknown_matrices(c); t.format->gguf && !outside.empty())
    plan.notes.push_back(
        fmt::format("{} matrices outside of the language model are left out ({} first): a .gguf of it "
                    "has no place for them",
                    outside.size(), outside.front()));
  std::string no_tokenizer;
  const bool beside = fs::exists(job.model / "tokenizer.json");
  if (!t.format->gguf && !beside && !gguf_tokenizer_files(c, &no_tokenizer) && !no_tokenizer.empty())
    plan.notes.push_back("OUT gets no tokenizer files: " + no_tokenizer);
  const auto& tensors = c.store.index().tensors;
  const auto decoded = std::count_if(tensors.begin(), tensors.end(), [](const auto& entry) {
    return !entry.second.stored.empty() && entry.second.dtype == DType::f32;
  });
  if (decoded > 0 && !t.dense && !t.format->gguf)
    plan.notes.push_back(fmt::format("{} tensors that were blocks of GGUF are written as f32", decoded));
}

}  // namespace

ConvertPlan plan_conversion(const Checkpoint& c, const ConvertJob& job) {
  const CheckpointFormat& format = *job.target.format;
  ConvertPlan plan;
  Refusals refusals;
  plan.summary.dense = always_dense(c);
  plan.summary.fp8_kv_cache = c.quantization.fp8_kv_cache && format.fp8_kv_cache;
  const bool codes = !job.target.dense && !job.target.blocks;
  // A .gguf file's ends are decoded when it is opened, so codes gain nothing there.
  const std::vector<NamedLinear> linears = format.gguf ? linears_of(c.spec) : c.linears();
  for (size_t i = 0; codes && i < linears.size(); ++i) {
    convert_step(job, "checking", i, linears.size());
    if (linears[i].layer == kOutsideBlocks && !format.packed_ends) {
      refusals.add(linears[i].name, fmt::format("format {} has no word for a packed head or embedding", format.name));
      continue;
    }
    plan_codes(c, job, linears[i], plan, refusals);
    release_linear(c, linears[i].name);
  }
  plan_dense(c, job, refusals);
  refusals.fail_if_any(std::string(format.name));
  if (codes && !format.gguf && plan.summary.linears.empty())
    fail(ErrorKind::unsupported,
         fmt::format("{}: no linear is packed, so there are no codes to convert; `quantize` makes them",
                     c.dir.string()));
  if (codes && format.stacked) {
    const auto packed = [&](const std::string& linear) { return plan.summary.linears.count(linear) > 0; };
    if (const std::string why = refuses_stacks(c.spec, packed); !why.empty())
      refusals.add(std::string("format ") += format.name, why);
  }
  if (codes && format.cannot_describe)
    if (const std::string why = format.cannot_describe(plan.summary); !why.empty())
      refusals.add(std::string("format ") += format.name, why);
  refusals.fail_if_any(std::string(format.name));
  add_notes(c, job, plan);
  return plan;
}

void convert_step(const ConvertJob& job, const char* phase, size_t done, size_t total) {
  if (job.stop_requested && job.stop_requested())
    fail(ErrorKind::stopped,
         fmt::format("stopped; nothing was written to {}: start it again by: {}", job.out.string(), this_command()));
  if (job.progress) job.progress(phase, static_cast<double>(done) / static_cast<double>(std::max<size_t>(total, 1)));
}

Replaced::Replaced(const Checkpoint& from) : from_(from) {
  if (!from.quantization.fp8_kv_cache) return;
  for (int64_t layer = 0; layer < from.spec.layers; ++layer)
    for (std::string& name : own_attention_of(from.spec.block(layer))
                                 ? kv_scale_names(from.spec.prefix(layer) + attention_module(from.spec.block(layer)))
                                 : std::vector<std::string>{})
      kv_.push_back(std::move(name));
  std::sort(kv_.begin(), kv_.end());
}

bool Replaced::has(const std::string& tensor) const {
  return holds_codes(from_, tensor) || std::binary_search(kv_.begin(), kv_.end(), tensor);
}

Tensor float_tensor(ConstTensorView from, DType type) {
  if (from.dtype == type) return clone_host(from);
  Tensor values = float_values(from);
  if (type == DType::f32) return values;
  Tensor out = Tensor::host(type, values.shape());
  parallel_for(values.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (type == DType::f16)
        out.as<f16>()[i] = values.as<float>()[i];
      else
        out.as<bf16>()[i] = values.as<float>()[i];
    }
  });
  return out;
}

}  // namespace fewbit
