#include "src/quant/advice/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "src/core/names.h"
#include "src/core/strings.h"
#include "src/quant/plan/engines.h"
#include "src/quant/plan/refusals.h"
#include "src/run/plan/step_bytes.h"

namespace fewbit {
namespace {

constexpr std::array<std::pair<AdviceGoal, std::string_view>, 3> kGoals{
    {{AdviceGoal::memory, "memory"}, {AdviceGoal::latency, "latency"}, {AdviceGoal::quality, "quality"}}};

// Of candidates of one kind the first that the engine takes stands in the table.
struct Candidate {
  enum class Numbers : uint8_t { weights, int8, fp8, fp4 };  // what the products multiply
  std::string_view kind, recipe;
  Numbers numbers;
  // Perplexity over bf16's less 1, in %, of a Qwen3 of 9.4 M parameters; docs/guide.md has the protocol.
  double lab_gap;
};
using Numbers = Candidate::Numbers;
constexpr Candidate kCandidates[] = {
    {"gptq4", "gptq int4 g128 format=compressed-tensors", Numbers::weights, 1.84},
    {"gptq4", "gptq int4 g128 format=gptq", Numbers::weights, 1.84},
    {"gptq4", "gptq int4 g128", Numbers::weights, 1.84},
    {"awq4", "awq int4 g128 format=awq", Numbers::weights, 2.61},
    {"gptq8", "gptq int8 g128 format=compressed-tensors", Numbers::weights, 0.01},
    {"gptq8", "gptq int8 g128 format=gptq", Numbers::weights, 0.01},
    {"gptq8", "gptq int8 g128", Numbers::weights, 0.01},
    {"w8a8", "smoothquant+gptq", Numbers::int8, 0.10},
    {"w8a8", "rtn w8a8", Numbers::int8, 0.19},
    {"fp8", "gptq fp8", Numbers::fp8, 0.37},
    {"fp8block", "fp8 block128 format=fp8", Numbers::fp8, 0.37},
    {"nvfp4", "rtn nvfp4", Numbers::fp4, 2.70},
    {"mxfp4", "rtn mxfp4", Numbers::fp4, 4.50},
    {"q4_k", "rtn format=gguf:q4_k", Numbers::weights, 1.40},
    {"q6_k", "rtn format=gguf:q6_k", Numbers::weights, 0.02},
    {"q8_0", "rtn format=gguf:q8_0", Numbers::weights, 0.01},
};

// Tensor cores multiply E4M3 from 8.9 on and 4-bit floats from 10.0 on; engines widen the codes before that. They have
// no int8 products from 10.0 on (vLLM's page of INT8 W8A8 says so of its own).
std::string note_of(Numbers numbers, const GpuModel& gpu) {
  if (numbers == Numbers::fp8 && gpu.capability < 89) return "widened: no FP8 products before 8.9";
  if (numbers == Numbers::fp4 && gpu.capability < 100) return "widened: no FP4 products before 10.0";
  if (numbers == Numbers::int8 && gpu.capability >= 100) return "engines have no int8 products from 10.0 on: take FP8";
  return "";
}

// Of the linears of experts, the share of tokens that visit them; the others are not in it.
std::map<std::string, double> visited(const ModelSpec& spec) {
  std::map<std::string, double> shares;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const BlockOp& op : spec.block(layer))
      if (const auto* m = std::get_if<Moe>(&op))
        for (int e = 0; e < m->experts; ++e)
          for (const LinearDef* def : {&m->gate, &m->up, &m->down})
            shares[spec.prefix(layer) + m->of_expert(*def, e).name] =
                static_cast<double>(m->top_k) / static_cast<double>(m->experts);
  return shares;
}

// What the rows of all candidates have in common.
struct Model {
  const Checkpoint& c;
  const AdviceJob& job;
  std::map<std::string, double> shares;
  int64_t cache = 0, unread = 0;  // bytes of keys and values; of an embedding whose rows are looked up

  Model(const Checkpoint& checkpoint, const AdviceJob& j)
      : c(checkpoint),
        job(j),
        shares(visited(c.spec)),
        cache(cache_bytes(c.spec, {0, c.spec.layers}, KvType::plain, DType::bf16, j.context, false)) {
    if (const TensorInfo* e = c.store.find(c.spec.embed); e && !c.spec.tied()) unread = e->bytes;
  }

  // `bytes`: of the checkpoint; `of`: of a linear in it.
  template <class Of>
  void fill(Advice& a, int64_t bytes, const QuantPlan& plan, Of of) const {
    double read = static_cast<double>(bytes - unread);
    for (const PlannedLinear& p : plan.linears)
      if (const auto share = shares.find(p.linear.name); share != shares.end())
        read -= (1 - share->second) * static_cast<double>(of(p));
    const double memory = job.gpu->memory_gib * 0x1p30;
    a.checkpoint_bytes = bytes;
    a.cache_bytes = cache;
    a.fits = static_cast<double>(bytes + cache) + memory / 12 <= memory;
    a.step_ms = (read + static_cast<double>(cache)) / (job.gpu->read_gbs * 1e9) * 1e3;
  }
};

QuantPlan plan_of(const Model& m, const Candidate& candidate) {
  const int64_t length = std::min<int64_t>(2048, m.c.spec.max_positions);
  return make_plan(m.c, {.base = parse_recipe(candidate.recipe),
                         .tokens = 128 * length,
                         .seq_len = length,
                         .dtype = DType::bf16,
                         .on_gpu = true,
                         .engine = m.job.engine == "fewbit" ? "" : m.job.engine});
}

double key_of(const Advice& a, AdviceGoal goal) {
  return goal == AdviceGoal::memory    ? static_cast<double>(a.checkpoint_bytes)
         : goal == AdviceGoal::latency ? a.step_ms
                                       : a.lab_gap;
}

void rank(std::vector<Advice>& all, AdviceGoal goal) {
  std::stable_sort(all.begin(), all.end(), [&](const Advice& a, const Advice& b) {
    if (a.fits != b.fits) return a.fits;
    if (key_of(a, goal) != key_of(b, goal)) return key_of(a, goal) < key_of(b, goal);
    return a.lab_gap < b.lab_gap;
  });
}

}  // namespace

AdviceGoal advice_goal_from(std::string_view name) { return from_name(kGoals, "--goal", name); }
std::string_view name_of(AdviceGoal goal) { return to_name(kGoals, goal); }

AdviceTable advise(const Checkpoint& c, const AdviceJob& job) {
  const Model model(c, job);
  AdviceTable table;
  std::set<std::string_view> found;
  std::map<std::string_view, std::string> refused;  // by kind: the last reason
  std::optional<QuantPlan> any;
  for (const Candidate& candidate : kCandidates) {
    if (found.count(candidate.kind)) continue;
    try {
      QuantPlan plan = plan_of(model, candidate);
      if (plan.refusals.empty()) {
        Advice a{.recipe = std::string(candidate.recipe),
                 .note = note_of(candidate.numbers, *job.gpu),
                 .bits_per_weight = plan.bits_per_weight,
                 .lab_gap = candidate.lab_gap};
        model.fill(a, plan.out_bytes, plan, [](const PlannedLinear& p) { return p.out_bytes; });
        table.ranked.push_back(std::move(a));
        found.insert(candidate.kind);
      } else {
        refused[candidate.kind] = fmt::format("{}: {}", candidate.recipe, grouped_refusals(plan.refusals).front());
      }
      any = std::move(plan);
    } catch (const Error& e) {
      refused[candidate.kind] = fmt::format("{}: {}", candidate.recipe, e.what());
    }
  }
  for (auto& [kind, reason] : refused)
    if (!found.count(kind)) table.refused.push_back(std::move(reason));
  if (any && c.quantization.linears.empty()) {
    Advice dense{.bits_per_weight = 16};
    model.fill(dense, any->source_bytes, *any, [](const PlannedLinear& p) { return p.source_bytes; });
    table.ranked.push_back(std::move(dense));
  }
  if (found.empty())
    fail(ErrorKind::unsupported,
         fmt::format("{}: no recipe of those that are advised on fits {}: {}", c.dir.string(), job.engine,
                     table.refused.empty() ? "none was planned" : table.refused.front()));
  rank(table.ranked, job.goal);
  return table;
}

}  // namespace fewbit
