#pragma once
// How a run ends that does not come to its end: what it keeps, how to go on, and what may be tried before that.
#include <exception>
#include <string>

#include "src/model/model_spec.h"
#include "src/quant/journal/journal.h"
#include "src/quant/plan/memory_plan.h"

namespace fewbit {

// Throws the Error of `what` (one of the system's, or of the standard library, becomes one) with the blocks that are
// kept and the command that goes on with them.
[[noreturn]] void say_what_is_kept(std::exception_ptr what, const Journal&, const ModelSpec&);

// A plan of the same products that keeps less in memory: experts are solved one after the other, states leave the
// device, what can be computed again is, experts are looked at one after the other, states leave the host. Says in
// words what it has changed; "" where nothing is left.
std::string keep_less(MemoryPlan&);

}  // namespace fewbit
