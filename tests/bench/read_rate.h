#pragma once
// The rate at which this GPU reads its memory: the ceiling of everything that streams weights.
#include "kernels/exec.h"

namespace fewbit::bench {
// Reads all of `data` once, with nothing written.
void read_all(Exec& ex, ConstTensorView data);
}  // namespace fewbit::bench
