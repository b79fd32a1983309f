#pragma once
// What measurements ask of an Exec and nothing else does.
#include "kernels/exec/exec.h"

namespace fewbit {

// Exec::peak_bytes() counts from what is held now.
void reset_peak(Exec&);

}  // namespace fewbit
