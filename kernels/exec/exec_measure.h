#pragma once
// reset_peak(): what measurements ask of an Exec and nothing else does.
#include "kernels/exec/exec.h"

namespace fewbit {

// From here on Exec::peak_bytes() is the peak since this call.
void reset_peak(Exec&);

}  // namespace fewbit
