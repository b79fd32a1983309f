// The registry of checkpoint formats (one entry per line of formats.def) and the choice of a packing.
#include "formats/checkpoint_format.h"

#include "src/core/error.h"
#include "src/core/registry.h"

namespace fewbit {

const std::vector<const CheckpointFormat*>& checkpoint_formats() {
  static const std::vector<const CheckpointFormat*> all = {
#define FEWBIT_FORMAT(id) &format_##id,
#include "formats/formats.def"
#undef FEWBIT_FORMAT
  };
  return all;
}

const CheckpointFormat* find_checkpoint_format(std::string_view name) { return find_named(checkpoint_formats(), name); }

const CheckpointFormat& checkpoint_format(std::string_view name) {
  return expect_named(checkpoint_formats(), name, "FORMAT of a checkpoint (format=, --format)");
}

const CheckpointFormat& default_checkpoint_format(const QuantSpec& spec, bool fp8_kv_cache) {
  for (const CheckpointFormat* f : checkpoint_formats())
    if (f->is_default && f->is_default(spec, fp8_kv_cache)) return *f;
  bug("no checkpoint format is the default of " + spec.str());
}

std::string formats_with(bool CheckpointFormat::*flag) {
  std::vector<std::string_view> names;
  for (const CheckpointFormat* f : checkpoint_formats())
    if (f->*flag) names.push_back(f->name);
  std::string s;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) s += i + 1 < names.size() ? ", " : " and ";
    s += names[i];
  }
  return s;
}

const Packing* choose_packing(const CheckpointFormat& format, const QuantSpec& spec, int64_t out, int64_t in,
                              bool act_order, std::string* why_not) {
  std::string reasons;
  for (const Packing* p : format.candidates(spec)) {
    const std::string reason = p->refuses(spec, out, in, act_order);
    if (reason.empty()) return p;
    if (!reasons.empty()) reasons += "; ";
    reasons += std::string(p->name) + ": " + reason;
  }
  if (reasons.empty()) reasons = "format " + std::string(format.name) + " holds dense weights only";
  if (why_not) *why_not = reasons;
  return nullptr;
}

}  // namespace fewbit
