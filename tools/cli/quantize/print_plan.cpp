#include "tools/cli/quantize/print_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/strings.h"
#include "src/quant/output/report.h"
#include "src/quant/plan/refusals.h"
#include "tools/cli/quantize/limits.h"
#include "tools/cli/quantize/times.h"

namespace fewbit::cli {
namespace {

std::string plan_table(const QuantPlan& plan, const Checkpoint& c, const PlanOptions& o) {
  size_t width = 6;
  for (const PlannedLinear& p : plan.linears) width = std::max(width, p.linear.name.size());
  std::string s = fmt::format("{:<{}}  {:>13}  {:<34}  {:<8}  {:>10}  {:>10}\n", "linear", width, "out x in", "recipe",
                              "packing", "now", "then");
  std::vector<std::string> notes;
  for (const PlannedLinear& p : plan.linears) {
    s += fmt::format("{:<{}}  {:>6} x {:<5}  {:<34}  {:<8}  {:>10}  {:>10}\n", p.linear.name, width, p.linear.out,
                     p.linear.in, p.recipe_str(), !p.layout().empty() ? p.layout() : (p.keep ? "-" : "refused"),
                     human_bytes(p.source_bytes), human_bytes(p.out_bytes));
    if (!p.note.empty() && std::find(notes.begin(), notes.end(), p.note) == notes.end()) notes.push_back(p.note);
  }
  for (const std::string& n : notes)
    s += fmt::format(
        "note: {} ({} linears)\n", n,
        std::count_if(plan.linears.begin(), plan.linears.end(), [&](const PlannedLinear& p) { return p.note == n; }));
  if (!c.rotation.empty()) s += fmt::format("note: {}\n", c.rotation);
  if (!plan.engine_note.empty()) s += fmt::format("note: {}\n", plan.engine_note);
  for (const KeptGroup& k : plan.kept)
    s += fmt::format("kept: {} ({} matri{}, {}): {}\n", k.first, k.matrices, k.matrices == 1 ? "x" : "ces",
                     human_bytes(k.bytes), k.reason);
  for (const std::string& line : grouped_refusals(plan.refusals)) s += fmt::format("refused: {}\n", line);
  s += fmt::format("{}: {} linears, {:.3f} bits per weight with scales; checkpoint {} -> {}\n", c.spec.arch,
                   plan.linears.size(), plan.bits_per_weight, human_bytes(plan.source_bytes),
                   human_bytes(plan.out_bytes));
  s += memory_table(plan.memory, o.limits, o.on_gpu);
  return plan.memory.refusal.empty() ? s : s + fmt::format("refused: {}\n", plan.memory.refusal);
}

// "model.layers.0.self_attn.q_proj, k_proj, v_proj"; of experts the first and how many more.
std::string named_together(const std::vector<std::string>& linears) {
  constexpr size_t kNamed = 3;
  const std::string& first = linears.front();
  const size_t parent = first.rfind('.') + 1;
  std::string s = first;
  for (size_t i = 1; i < linears.size(); ++i) {
    if (i == kNamed || linears[i].compare(0, parent, first, 0, parent) != 0)
      return s + fmt::format(" and {} more", linears.size() - i);
    s += ", " + linears[i].substr(parent);
  }
  return s;
}

// What `auto` chose, one line for linears that have one scheme; "" where it was not asked.
std::string choice_table(const QuantJob& job) {
  if (!job.precision) return "";
  size_t width = 6, scheme = 6;
  for (const PrecisionChoice& c : job.precision->choices) {
    width = std::max(width, named_together(c.linears).size());
    scheme = std::max(scheme, c.scheme().candidate.name().size());
  }
  std::string s = fmt::format("{:<{}}  {:<{}}  {:>6}  {:>10}  {:>11}\n", "chosen", width, "scheme", scheme, "bits",
                              "bytes", "expected KL");
  for (const PrecisionChoice& c : job.precision->choices)
    s += fmt::format("{:<{}}  {:<{}}  {:>6.3f}  {:>10}  {:>11.6f}\n", named_together(c.linears), width,
                     c.scheme().candidate.name(), scheme, c.bits(), human_bytes(c.scheme().bytes), c.scheme().cost);
  return s + "\n";
}

}  // namespace

void print_plan(const Common& common, const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o,
                const DiskPlan& disk, const QuantJob& job, bool without_gpu) {
  say(common,
      choice_table(job) + plan_table(plan, c, o) + disk_lines(disk) + time_table(plan, o.on_gpu && without_gpu));
  write_json(common, to_json(plan, job.precision, disk, job.recipe, c.dir.string(), job.out.string()));
  // As a run would, which says no more than the first of these.
  const std::vector<std::string> reasons = grouped_refusals(plan.refusals);
  if (!reasons.empty())
    fail(ErrorKind::unsupported,
         fmt::format("a run would be refused: {}{}", reasons[0],
                     reasons.size() == 1 ? "" : fmt::format("; and {} more reasons above", reasons.size() - 1)));
  if (!plan.memory.refusal.empty()) fail(ErrorKind::memory, plan.memory.refusal);
  if (!disk.refusal.empty()) fail(ErrorKind::io, disk.refusal);
}

}  // namespace fewbit::cli
