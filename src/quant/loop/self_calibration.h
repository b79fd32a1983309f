#pragma once
// Calibration text sampled from the model itself: no text is needed, and the statistics are those of what the
// model says.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "src/quant/plan/memory_plan.h"
#include "src/run/engine.h"
#include "src/text/corpus.h"

namespace fewbit {

// `samples` windows of `length` tokens, each begun with BOS (or a drawn id where the model has none) and
// continued by sampling at temperature 1 without truncation; an end-of-sequence token does not end a window.
// Deterministic in seed. The whole model is on the device meanwhile.
Windows sample_calibration(Exec&, const Checkpoint&, DType dtype, int64_t samples, int64_t length, uint64_t seed,
                           const std::function<void(double)>& progress = {});

// Seconds that this would take: of 16 steps that are timed, with the model loaded for it. At least `limit` where
// already reading the weights once a step at a rate that no device reaches takes longer; nothing is loaded then.
double price_of_sampling(Exec&, const Checkpoint&, DType dtype, int64_t samples, int64_t length, double limit);

// "" where the model and the cache of its samples fit the limits; else one line that says what to do instead.
std::string refuse_to_sample(const Checkpoint&, DType dtype, int64_t samples, int64_t length, const MemoryLimits&,
                             bool on_gpu);

// Sampling takes long, so its ids are kept with the run: in `file`, for a sampling that `of` describes (model, seed,
// type …). What the file holds for another one, or damaged, is not taken.
std::optional<Windows> kept_sample(const std::filesystem::path& file, const std::string& of);
// Down to the disk.
void keep_sample(const std::filesystem::path& file, const std::string& of, const Windows&);

}  // namespace fewbit
