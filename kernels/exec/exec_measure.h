#pragma once
// reset_peak(), forget_marks(): what measurements ask of an Exec and nothing else does.
#include "kernels/exec/exec.h"

namespace fewbit {

// From here on Exec::peak_bytes() is the peak since this call.
void reset_peak(Exec&);

// Exec::mark() counts from 0 again; the marks before are not asked for any more, and their events are used again.
void forget_marks(Exec&);

}  // namespace fewbit
