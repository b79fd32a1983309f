#include <algorithm>

#include "src/calib/chunks.h"
#include "src/calib/upload_ahead.h"
#include "src/quant/loop/background.h"
#include "src/quant/plan/memory_plan.h"
#include "src/quant/plan/plan.h"
#include "src/quant/plan/plan_ends.h"

namespace fewbit {
namespace {

constexpr int64_t kSlotStep = 256;  // what a slot is a multiple of, so that all are aligned

// Stored experts of a block at their most, which calibration runs in the type in which they lie.
int64_t experts_of_a_block(const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o, const MemoryPlan& m) {
  if (!plan.calibrates() || !plan.transforms.empty() || m.experts_in_waves) return 0;
  int64_t most = 0;
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    int64_t bytes = 0;
    for (const BlockOp& op : c.spec.block(layer))
      if (std::holds_alternative<Moe>(op))
        for (const LinearDef& l : linears_of(op))
          if (const TensorInfo* w = c.store.find(c.spec.prefix(layer) + l.name + ".weight"); w && w->dtype == o.dtype)
            bytes += w->bytes;
    most = std::max(most, bytes);
  }
  return most;
}

// States of a chunk: the part of all that its tokens are.
int64_t states_of_a_chunk(const MemoryPlan& m, const PlanOptions& o) {
  const Chunks chunks{
      .windows = o.seq_len > 0 ? o.tokens / o.seq_len : 0, .length = o.seq_len, .at_once = chunk_tokens(Device::cuda)};
  if (chunks.count() == 0) return 0;
  const double share = static_cast<double>(chunks.most_rows()) / static_cast<double>(chunks.tokens());
  return static_cast<int64_t>(share * static_cast<double>(m.states)) + kSlotStep;
}

}  // namespace

void copy_beside(MemoryPlan& m, const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o) {
  if (!o.on_gpu) return;
  int64_t stored = 0, codes = 0;
  for (const PlannedLinear& p : plan.linears) {
    const TensorInfo* w = c.store.find(p.linear.name + ".weight");
    if (is_end(p.linear) || !w) continue;
    if (plan.transforms.empty()) stored = std::max(stored, (w->bytes + kSlotStep - 1) / kSlotStep * kSlotStep);
    if (!p.keep) codes = std::max(codes, p.linear.out * p.linear.in);
  }
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  // States may have to leave the device for it, as long as they need not go to the disk.
  const auto take = [&](int64_t bytes) {
    if (m.room.device < bytes) return false;
    const bool kept = m.room.device == kUnlimited || m.room.host == kUnlimited;
    if (!kept && m.room.device - bytes + m.room.host < m.states) return false;
    m.beside += bytes;
    if (m.room.device != kUnlimited) m.room.device -= bytes;
    return true;
  };
  // From host memory states come back while the device computes; weights would not without their slots.
  if (!take(UploadAhead::kSlots * stored + std::max(codes, kWaitingBytes))) return;
  m.slot = stored;
  const int64_t experts = stored > 0 ? experts_of_a_block(c, plan, o, m) : 0;
  if (m.room.device >= m.states + experts && take(experts)) m.experts_ahead = experts;
  // A chunk on its way in, another on its way out: both while passes run, which need less than a linear's method may.
  int64_t passes = 0, most = 0;
  for (const PhaseMemory& p : m.phases) {
    most = std::max(most, p.device);
    if (p.phase == "forward" || p.phase == "observe") passes = std::max(passes, p.device);
  }
  if (m.room.device < m.states && take(std::max<int64_t>(0, passes + 2 * states_of_a_chunk(m, o) - most)))
    m.room.ahead = true;
}

}  // namespace fewbit
