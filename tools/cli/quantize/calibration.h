#pragma once
// The calibration text as flags: what `quantize` and `evaluate sweep` have in common.
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "src/quant/plan/memory_plan.h"
#include "src/text/corpus.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

struct CalibrationArgs {
  std::vector<std::string> calib;  // empty = not given: builtin, and what that lacks from the model if it is quick
  std::string field;               // of the records of a .jsonl file
  int64_t samples = 128;
  int64_t seq_len = 0;  // 0 = not given: 2048, or the length of the windows that a file holds
  uint64_t seed = 0;
};
void add_calibration_arguments(CLI::App& app, CalibrationArgs& a);

// Tokens of a window and windows of the calibration, as far as flags, the model's positions and the header of a file of
// windows tell. Error{usage} where such a file's windows are too short, or are mixed with other sources.
int64_t calibration_length(const CalibrationArgs& a, const ModelSpec& spec);
int64_t calibration_samples(const CalibrationArgs& a);
// Error{memory} where --calib self is asked for and the limits do not hold the whole model.
void refuse_sampling(const CalibrationArgs& a, const Checkpoint& c, DType dtype, const MemoryLimits&, bool on_gpu);

// What texts give of the windows, drawn by a thread of its own while a GPU is made ready: a tokenizer of 128,000 tokens
// takes some tenths of a second to be read alone. `note` as that of draw_windows().
struct DrawnText {
  Windows windows{};
  std::string note{};
};
// On the first rank, where there are texts to draw from; else not valid. Both arguments must stay.
std::future<DrawnText> draw_text_beside(const CalibrationArgs& a, const Checkpoint& c);

// Where ids that the model wrote are kept for --resume; nowhere without a file. With `model` they are kept for other
// runs too, in the user's cache.
struct KeptSample {
  std::filesystem::path file{};
  std::string model{};                   // what tells this model from others
  std::optional<MemoryLimits> limits{};  // where the run has some: what may be sampled without being asked for
};
// Tokenizes and draws, samples, or takes the windows of a file. Of several ranks the first does so, for all; `note` of
// the first says where there is less text than asked for. `text`, where it is valid, is drawing them.
Windows draw_windows(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, Progress& progress,
                     std::string* note, const KeptSample& kept = {}, std::future<DrawnText> text = {});

}  // namespace fewbit::cli
