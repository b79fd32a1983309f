#include <algorithm>

#include "src/calib/upload_ahead.h"
#include "src/quant/loop/background.h"
#include "src/quant/plan/memory_plan.h"
#include "src/quant/plan/plan.h"
#include "src/quant/plan/plan_ends.h"

namespace fewbit {
namespace {

constexpr int64_t kSlotStep = 256;  // what a slot is a multiple of, so that all are aligned

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
  const int64_t beside = UploadAhead::kSlots * stored + codes + kWaitingBytes;
  if (m.room.device < beside + m.states) return;
  m.slot = stored;
  m.beside = beside;
  if (m.room.device != std::numeric_limits<int64_t>::max()) m.room.device -= beside;
}

}  // namespace fewbit
