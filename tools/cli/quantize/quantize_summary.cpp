#include "tools/cli/quantize/quantize_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "src/quant/loop/learn/learned_rounding.h"

namespace fewbit::cli {
namespace {

// Says where --minutes ended learned rounding early; "" where it did not.
std::string cut_short_line(const QuantReport& r) {
  int64_t cut = 0, learning = 0;
  int fewest = kLearningSteps;
  for (const LinearRecord& l : r.linears) {
    if (!l.learning_steps) continue;
    ++learning;
    if (*l.learning_steps < kLearningSteps) ++cut;
    fewest = std::min(fewest, *l.learning_steps);
  }
  if (cut == 0) return "";
  return fmt::format("--minutes cut the learning of {} of {} linears short: {} of {} steps where it had the least\n",
                     cut, learning, fewest, kLearningSteps);
}

// Whether a linear was to be coded by the curvature of its outputs, by its recipe as the plan prints it. To parse that
// anew would refuse some: an embedding's keeps words of the run's that its own method does not know.
bool was_to_couple(const std::string& recipe) {
  const auto has = [&](const char* word) { return recipe.find(word) != std::string::npos; };
  const bool by_itself = has("gptq int") && has("effort=best") && !has("targets=off") && !has("format=gguf");
  return has("curvature=on") || (by_itself && !has("curvature=off"));
}

// Counts the linears that were to be coded by the curvature of their outputs and could not be; "" where all were.
std::string uncoupled_line(const QuantReport& r) {
  const auto n = std::count_if(r.linears.begin(), r.linears.end(), [](const LinearRecord& l) {
    return !l.coupled && !l.lossless && was_to_couple(l.recipe);
  });
  if (n == 0) return "";
  return fmt::format(
      "curvature: the gradients at the outputs of {} linears were zero or not finite, or their sums could "
      "not be factored; each of their outputs counts by itself\n",
      n);
}

// Names the experts that saw too few tokens, as many as fit on a line; "" where there are none.
std::string starved_line(const QuantReport& r) {
  constexpr int kNamed = 8;
  int64_t starved = 0, experts = 0;
  std::string names;
  for (const ExpertRecord& layer : r.experts) {
    experts += static_cast<int64_t>(layer.tokens.size());
    for (const int e : layer.starved)
      if (++starved <= kNamed)
        names += fmt::format("{}{}.{} ({} tokens)", names.empty() ? "" : ", ", layer.layer, e,
                             layer.tokens[static_cast<size_t>(e)]);
  }
  if (starved == 0) return "";
  return fmt::format(
      "{} of {} experts saw too few tokens and borrowed statistics from their layers: layer.expert {}{}\n", starved,
      experts, names, starved > kNamed ? ", …" : "");
}

// A percentile that leaves out a few inputs may leave out most of their range: those few carry the model's sinks.
constexpr double kLittleReach = 0.5;

std::string clipped_line(const QuantReport& r) {
  int64_t clipped = 0;
  const LinearRecord* worst = nullptr;
  for (const LinearRecord& l : r.linears) {
    if (l.input_reach >= kLittleReach) continue;
    ++clipped;
    if (!worst || l.input_reach < worst->input_reach) worst = &l;
  }
  if (!worst) return "";
  return fmt::format(
      "warning: percentile= cuts off more than half of the inputs' range in {} linears, most in {} ({:.1f} % of its "
      "largest input is left): compare with percentile=100, or take acts=token\n",
      clipped, worst->name, 100 * worst->input_reach);
}

// How many tokens of each source were used; a warning where they are fewer than were asked for.
std::string calibration_lines(const QuantReport& r) {
  if (r.samples == 0) return "";
  std::string sources = r.calibration;  // "a.txt (1024 tokens)+self (1024 tokens)", or one without a count
  for (size_t at = 0; (at = sources.find(" tokens)+", at)) != std::string::npos;) sources.replace(at + 8, 1, ", ");
  return fmt::format("calibrated on {} tokens, {} windows of {}: {}\n", r.samples * r.seq_len, r.samples, r.seq_len,
                     sources) +
         (r.short_calibration.empty() ? "" : r.short_calibration + "\n");
}

}  // namespace

std::string summary_of(const QuantReport& r) {
  std::string s;
  std::map<std::string, int> rungs;
  double worst = 0;
  std::string worst_name;
  for (const LinearRecord& l : r.linears) {
    if (!l.rung.empty() && l.rung != "fp32") ++rungs[l.rung];
    if (l.rel_error >= worst) worst = l.rel_error, worst_name = l.name;
  }
  for (const auto& [rung, n] : rungs)
    s += fmt::format("{} linears needed the rung \"{}\" of the damping ladder\n", n, rung);
  s += starved_line(r);
  s += clipped_line(r);
  if (!r.kv_scales.empty())
    s += fmt::format("scales of an FP8 cache for {} layers; use it with --kv-cache fp8\n", r.kv_scales.size());
  if (const auto n = std::count_if(r.linears.begin(), r.linears.end(), [](const LinearRecord& l) { return l.learned; }))
    s += fmt::format("rounding learned in {} linears\n", n);
  s += uncoupled_line(r);
  s += cut_short_line(r);
  if (const auto n =
          std::count_if(r.linears.begin(), r.linears.end(), [](const LinearRecord& l) { return l.lossless; }))
    s += fmt::format("lossless: {} linears have the codes of the model, unchanged\n", n);
  s += calibration_lines(r);
  if (!r.dropped.empty()) s += fmt::format("left out on purpose: {} tensors\n", r.dropped.size());
  if (!r.note.empty()) s += r.note + "\n";
  s += fmt::format("{} linears, {:.3f} bits per weight, {} -> {}; worst relative error {:.4f} ({})\n", r.linears.size(),
                   r.bits_per_weight, human_bytes(r.source_bytes), human_bytes(r.out_bytes), worst, worst_name);
  if (r.perplexity)
    s += fmt::format("perplexity {}, of MODEL {}\n", with_error(r.perplexity->perplexity, r.perplexity->stderr_, 4),
                     with_error(r.perplexity->base, r.perplexity->base_stderr, 4));
  s += "memory at its peak: ";
  if (r.peak_gpu_bytes > 0)
    s += fmt::format("GPU {} ({} planned), ", human_bytes(r.peak_gpu_bytes), human_bytes(r.planned_gpu_bytes));
  s += fmt::format("host {} ({} planned){}\n", human_bytes(r.peak_host_bytes), human_bytes(r.planned_host_bytes),
                   r.scratch_bytes > 0 ? fmt::format("; {} of states on disk", human_bytes(r.scratch_bytes)) : "");
  if (r.floor_seconds > 0) {
    double hidden = 0;
    for (const auto& [phase, seconds] : r.hidden_seconds) hidden += seconds;
    s += fmt::format("{} of packing, writing and reading ahead ran beside; waited {}, above a floor of {}\n",
                     human_seconds(hidden), human_seconds(r.idle_seconds), human_seconds(r.floor_seconds));
  }
  const std::string planned =
      r.planned_total_seconds > 0 ? fmt::format(" ({} planned)", human_seconds(r.planned_total_seconds)) : "";
  s += fmt::format("{} written in {}{} on {}\n", r.out, human_seconds(r.seconds), planned, r.device);
  return s;
}

}  // namespace fewbit::cli
