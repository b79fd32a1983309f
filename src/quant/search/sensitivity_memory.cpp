#include "src/quant/search/sensitivity_memory.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "src/model/checkpoint_parts.h"
#include "src/quant/plan/memory_refusal.h"
#include "src/quant/plan/method_bytes.h"
#include "src/quant/search/mean_divergence.h"
#include "src/run/moe.h"
#include "src/run/plan/step_bytes.h"

namespace fewbit {
namespace {

constexpr int64_t kMostCalibrationWindows = 64, kMostHeldOutWindows = 16;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Quick GPTQ of a linear: the sums of its input and their factor, the weight and what stands for it in f32, codes.
int64_t solving_bytes(int64_t out, int64_t in) { return 3 * in * in * 4 + out * in * 20; }

// Of the blocks' linears that are measured, the one whose turn needs most, with the sums of the experts beside it.
int64_t largest_turn(const ModelSpec& spec, const std::set<std::string>& measured, int64_t elem) {
  int64_t most = 0;
  for (const NamedLinear& l : linears_of(spec))
    if (measured.count(l.name) > 0) most = std::max(most, solving_bytes(l.out, l.in) + l.out * l.in * elem);
  for (const std::vector<BlockOp>& ops : spec.kinds)
    for (const BlockOp& op : ops)
      if (const Moe* m = std::get_if<Moe>(&op)) {
        const int64_t in = std::max(m->hidden, m->down.in_features), beside = std::min(kExpertsAtOnce, m->experts) + 1;
        // Of all experts the changed weights are held until their distance is measured.
        most = std::max(most, solving_bytes(m->up.out_features, in) + beside * in * in * 4 +
                                  m->experts * m->up.out_features * m->hidden * elem);
      }
  return most;
}

int64_t ends_turn(const ModelSpec& spec, const std::set<std::string>& measured, int64_t elem) {
  int64_t most = 0, all = 0;
  for (const NamedLinear& l : ends_of(spec)) {
    all += l.out * l.in * elem;  // loaded once more, to be changed
    if (measured.count(l.name) > 0) most = std::max(most, solving_bytes(l.out, l.in) + l.out * l.in * elem);
  }
  return most > 0 ? most + all : 0;
}

}  // namespace

MeasuredWindows measured_windows(int64_t drawn) {
  const int64_t held = std::clamp<int64_t>(drawn / 8, 1, kMostHeldOutWindows);
  return {.calibration = std::min(kMostCalibrationWindows, drawn - held), .held_out = held};
}

MemoryPlan sensitivity_memory(const Checkpoint& c, const std::vector<TiedLinears>& linears, MeasuredWindows windows,
                              int64_t length, DType dtype, Device::Kind kind, const MemoryLimits& limits) {
  const ModelSpec& spec = c.spec;
  const int64_t elem = bytes_of(dtype), rows = windows.held_out * length;
  std::set<std::string> measured;
  for (const TiedLinears& t : linears)
    for (const std::string& name : t.names()) measured.insert(name);
  const auto slots = widest_slots(spec);
  const int64_t features = std::accumulate(slots.begin(), slots.end(), int64_t{0});
  const Chunks chunks{.windows = windows.calibration, .length = length, .at_once = chunk_tokens(kind)};
  // The model, the held-out states in front of the block, behind the last and in between, and their slots.
  const int64_t always = parameter_count(spec) * elem + rows * (3 * spec.width() + features) * elem;
  const int64_t chunk = chunks.most_rows() * (spec.width() + features) * elem;
  const int64_t logits = divergence_rows(rows, spec.vocab) * (spec.vocab * 8 + 2 * spec.hidden * elem);
  MemoryPlan m;
  const int64_t program = program_bytes(kind);
  m.phases = {{"measure", 0, always + largest_turn(spec, measured, elem) + chunk, program},
              {"compare", 0, always + logits, program},
              {"ends", spec.layers, always + ends_turn(spec, measured, elem), program}};
  if (kind == Device::cpu) on_one_machine(m.phases);
  m.least_device = kind == Device::cuda ? largest(m.phases, true).device + kDeviceLibraries : 0;
  m.least_host = largest(m.phases, false).host;
  m.smallest_device = m.least_device, m.smallest_host = m.least_host;
  m.refusal = memory_refusal(m, {.on_gpu = kind == Device::cuda, .limits = limits});
  const auto left = [](int64_t limit, int64_t used) {
    return limit == kUnlimited ? limit : std::max<int64_t>(0, limit - used);
  };
  m.states = chunks.tokens() * spec.width() * elem;
  m.room = {.device = kind == Device::cuda ? left(limits.device, m.least_device) : 0,
            .host = left(limits.host, m.least_host),
            .scratch = limits.scratch};
  return m;
}

}  // namespace fewbit
