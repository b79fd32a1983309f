#pragma once
// Calibration text sampled from the model itself: no text is needed, and the statistics are those of what the
// model says.
#include <functional>

#include "src/run/engine.h"
#include "src/text/corpus.h"

namespace fewbit {

// `samples` windows of `length` tokens, each begun with BOS (or a drawn id where the model has none) and
// continued by sampling at temperature 1 without truncation; an end-of-sequence token does not end a window.
// Deterministic in seed.
Windows sample_calibration(Exec&, const Checkpoint&, DType dtype, int64_t samples, int64_t length, uint64_t seed,
                           const std::function<void(double)>& progress = {});

}  // namespace fewbit
