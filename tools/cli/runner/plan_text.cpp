// What `runner plan` prints.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "tools/cli/runner/plan_args.h"
#include "tools/cli/table.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string bytes(double n) { return human_bytes(static_cast<int64_t>(n)); }

std::string gpus_of(const ServingJob& job) {
  const GpuModel& g = *job.gpu;
  std::string s = fmt::format("{} ({:g} GiB, {:g} GB/s, sm_{})", g.title, g.memory_gib, g.read_gbs, g.capability);
  if (job.tp * job.pp == 1) return s;
  return fmt::format("{} x {}, tensor parallel {}, {} stage{}, over {} ({:g} GB/s a direction)", job.tp * job.pp, s,
                     job.tp, job.pp, job.pp == 1 ? "" : "s", g.link, g.link_gbs);
}

std::string memory_line(const DevicePlan& d) {
  const ServingMemory& m = d.plan.memory;
  return fmt::format("  memory of a GPU    weights {} + cache {} + activations {} + reserve {} = {} of {}: {}\n",
                     human_bytes(m.weights), human_bytes(m.cache), human_bytes(m.activations), human_bytes(m.reserve),
                     human_bytes(m.total()), human_bytes(m.capacity), d.plan.fits ? "fits" : "does not fit");
}

// Parts of a floor beside reading and products.
std::string others(const ServingFloor& f) {
  std::string s;
  if (f.all_reduce_ms > 0) s += fmt::format(", all-reduces {:.3f} ms", f.all_reduce_ms);
  if (f.hop_ms > 0) s += fmt::format(", from stage to stage {:.3f} ms, pipeline idle {:.0f} %", f.hop_ms, 100 * f.idle);
  return s;
}

std::string step_lines(const DevicePlan& d) {
  const ServingPlan& p = d.plan;
  std::string s = fmt::format(
      "  decode step        at least {:.3f} ms: {} of weights and {} of cache read in {:.3f} ms, products {:.3f} "
      "ms{}\n",
      p.step.ms, bytes(p.step.weight_bytes), bytes(p.step.cache_bytes), p.step.read_ms, p.step.product_ms,
      others(p.step));
  if (p.stored_step_ms < 0.99 * p.step.ms)
    s += fmt::format("                     {:.3f} ms where every code is multiplied as it is stored\n",
                     p.stored_step_ms);
  if (p.expected_step_ms > 0)
    s += fmt::format("                     about {:.2f} ms by this runner (fitted to one sequence on an H200)\n",
                     p.expected_step_ms);
  return s;
}

std::string kernel_table(const ServingPlan& p) {
  std::vector<std::vector<std::string>> rows = {{"linears", "as", "spec", "kernel of a step", "kernel of a prompt"}};
  std::string notes;
  for (const ServedKernel& k : p.kernels) {
    rows.push_back({fmt::format("{}", k.linears), k.form, k.spec, k.step, k.prompt});
    if (!k.why.empty()) notes += fmt::format("{} x {}: {}\n", k.linears, k.spec, k.why);
  }
  return table(rows, false, rows[0].size()) + notes;
}

std::string cost_line(const DevicePlan& d) {
  if (d.job.price == 0) return "";
  return fmt::format(
      "  cost               at least {:.4f} USD a million tokens, {:.4f} a million of prompt, at {:g} USD/h a GPU\n",
      d.plan.usd_per_million_tokens, d.plan.usd_per_million_prompt, d.job.price);
}

Json json_of(const ServingFloor& f) {
  return {{"ms", f.ms},
          {"weight_bytes", f.weight_bytes},
          {"cache_bytes", f.cache_bytes},
          {"flop", f.flop},
          {"read_ms", f.read_ms},
          {"product_ms", f.product_ms},
          {"all_reduce_ms", f.all_reduce_ms},
          {"hop_ms", f.hop_ms},
          {"idle", f.idle}};
}

Json json_of(const GpuModel& g) {
  return {{"name", g.name},
          {"title", g.title},
          {"memory_gib", g.memory_gib},
          {"read_gb_per_s", g.read_gbs},
          {"compute_capability", g.capability},
          {"bf16_tflop_per_s", g.bf16_tflops},
          {"fp8_tflop_per_s", g.fp8_tflops},
          {"int8_top_per_s", g.int8_tops},
          {"fp4_tflop_per_s", g.fp4_tflops},
          {"link", g.link},
          {"link_gb_per_s", g.link_gbs},
          {"source", g.source}};
}

Json json_of(const DevicePlan& d) {
  const ServingPlan& p = d.plan;
  const ServingMemory& m = p.memory;
  Json j = {{"gpu", json_of(*d.job.gpu)},
            {"memory",
             {{"weights", m.weights},
              {"cache", m.cache},
              {"activations", m.activations},
              {"reserve", m.reserve},
              {"total", m.total()},
              {"capacity", m.capacity}}},
            {"fits", p.fits},
            {"most_sequences", p.most_sequences},
            {"step", json_of(p.step)},
            {"stored_step_ms", p.stored_step_ms},
            {"expected_step_ms", p.expected_step_ms > 0 ? Json(p.expected_step_ms) : Json()},
            {"prefill", json_of(p.prefill)},
            {"tokens_per_s", p.tokens_per_s},
            {"prompt_tokens_per_s", p.prompt_tokens_per_s},
            {"usd_per_million_tokens", d.job.price > 0 ? Json(p.usd_per_million_tokens) : Json()},
            {"usd_per_million_prompt_tokens", d.job.price > 0 ? Json(p.usd_per_million_prompt) : Json()},
            {"kernels", Json::array()}};
  for (const ServedKernel& k : p.kernels)
    j["kernels"].push_back({{"linears", k.linears},
                            {"form", k.form},
                            {"spec", k.spec},
                            {"step", k.step},
                            {"prompt", k.prompt},
                            {"why", k.why}});
  return j;
}

Json json_of(const Measured& m) {
  Json j = {{"device", m.device}, {"steps", Json::array()}};
  for (const MeasuredStep& s : m.steps)
    j["steps"].push_back({{"batch", s.batch},
                          {"context", s.context},
                          {"ms", s.ms},
                          {"bytes", s.bytes},
                          {"plan_bytes", s.plan_bytes},
                          {"floor_ms", s.floor_ms},
                          {"over_floor", s.ms / s.floor_ms},
                          {"read_floor_ms", s.read_floor_ms},
                          {"over_read_floor", s.ms / s.read_floor_ms},
                          {"expected_ms", s.expected_ms > 0 ? Json(s.expected_ms) : Json()},
                          {"over_expected", s.expected_ms > 0 ? Json(s.ms / s.expected_ms) : Json()}});
  return j;
}

}  // namespace

std::string plan_lines(const std::string& model, const PlanArgs& a, const DevicePlan& d) {
  const ServingPlan& p = d.plan;
  const ServingJob& job = d.job;
  std::string s = fmt::format("{}{} on {}: {} sequence{} of {} positions, {} cache, {} head\n", model,
                              a.recipe.empty() ? "" : " as " + a.recipe, gpus_of(job), job.concurrency,
                              job.concurrency == 1 ? "" : "s", job.context, a.kv_cache, a.head);
  s += fmt::format("  parameters         {}, {} of them met by a token\n", human_count(p.parameters),
                   human_count(p.active_parameters));
  s += fmt::format("  checkpoint         {}; a step of one token reads {} of weights\n", human_bytes(p.stored_bytes),
                   human_bytes(p.active_bytes));
  s += fmt::format("  cache              {} a sequence, {} B a token{}\n", human_bytes(p.cache_bytes_per_sequence),
                   p.cache_bytes_per_token,
                   p.contiguous_cache_bytes > p.cache_bytes_per_sequence
                       ? fmt::format(" ({} in `runner bench`, which keeps all of a window's positions)",
                                     human_bytes(p.contiguous_cache_bytes))
                       : "");
  s += memory_line(d);
  s += fmt::format("  sequences          at most {} of {} positions\n", p.most_sequences, job.context);
  s += step_lines(d);
  s += fmt::format("  decode             at most {:.0f} tokens/s\n", p.tokens_per_s);
  s += fmt::format(
      "  prompt of {:<8} at least {:.2f} ms: products {:.2f} ms, reading {:.2f} ms{}; at most {:.0f} tokens/s\n",
      job.prompt, p.prefill.ms, p.prefill.product_ms, p.prefill.read_ms, others(p.prefill), p.prompt_tokens_per_s);
  return s + cost_line(d) + kernel_table(p);
}

std::string plan_table(const std::vector<DevicePlan>& plans, bool markdown) {
  std::vector<std::vector<std::string>> rows = {{"GPU", "weights", "cache", "fits", "sequences", "step, at least",
                                                 "tokens/s, at most", "prompt, at least", "USD / M tokens, at least"}};
  for (const DevicePlan& d : plans) {
    const ServingPlan& p = d.plan;
    rows.push_back({std::string(d.job.gpu->title), human_bytes(p.memory.weights), human_bytes(p.memory.cache),
                    p.fits ? "yes" : "no", fmt::format("{}", p.most_sequences), fmt::format("{:.2f} ms", p.step.ms),
                    fmt::format("{:.0f}", p.tokens_per_s), fmt::format("{:.1f} ms", p.prefill.ms),
                    d.job.price > 0 ? fmt::format("{:.4f}", p.usd_per_million_tokens) : "-"});
  }
  return table(rows, markdown, 1);
}

std::string measured_table(const Measured& m, bool markdown) {
  std::vector<std::vector<std::string>> rows = {{"batch", "context", "measured ms", "floor ms", "ratio",
                                                 "floor at the measured rate", "ratio", "expected ms", "ratio"}};
  bool same = true;
  for (const MeasuredStep& s : m.steps) {
    const bool expected = s.expected_ms > 0;
    rows.push_back({fmt::format("{}", s.batch), fmt::format("{}", s.context), fmt::format("{:.3f}", s.ms),
                    fmt::format("{:.3f}", s.floor_ms), fmt::format("{:.2f}", s.ms / s.floor_ms),
                    fmt::format("{:.3f}", s.read_floor_ms), fmt::format("{:.2f}", s.ms / s.read_floor_ms),
                    expected ? fmt::format("{:.3f}", s.expected_ms) : "-",
                    expected ? fmt::format("{:.2f}", s.ms / s.expected_ms) : "-"});
    same = same && std::abs(s.bytes / s.plan_bytes - 1) < 0.01;
  }
  std::string text = fmt::format("measured on {}:\n{}{}", m.device, markdown ? "\n" : "", table(rows, markdown));
  if (!same) text += "the bench read other bytes a step than the plan says: another model, cache, head or layout\n";
  return text;
}

std::string plan_json(const std::string& model, const PlanArgs& a, const std::vector<DevicePlan>& plans,
                      const Measured* measured) {
  const ServingPlan& p = plans.front().plan;
  const ServingJob& job = plans.front().job;
  Json j = {{"model", model},
            {"recipe", a.recipe},
            {"context", job.context},
            {"concurrency", job.concurrency},
            {"prompt_tokens", job.prompt},
            {"tp", job.tp},
            {"pp", job.pp},
            {"kv_cache", a.kv_cache},
            {"head", a.head},
            {"price", job.price},
            {"parameters", p.parameters},
            {"active_parameters", p.active_parameters},
            {"checkpoint_bytes", p.stored_bytes},
            {"active_bytes", p.active_bytes},
            {"cache_bytes_per_sequence", p.cache_bytes_per_sequence},
            {"cache_bytes_per_token", p.cache_bytes_per_token},
            {"contiguous_cache_bytes", p.contiguous_cache_bytes},
            {"devices", Json::array()}};
  for (const DevicePlan& d : plans) j["devices"].push_back(json_of(d));
  if (measured) j["measured"] = json_of(*measured);
  return j.dump(1) + "\n";
}

}  // namespace fewbit::cli
