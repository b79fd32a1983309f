#pragma once
// Mixed precision, `quantize auto --target-bits B [--schemes int4,nvfp4,bf16]`: the scheme of every linear, chosen from
// measured sensitivity so that the linears take at most B bits per weight, scales and zeros included.
#include <map>

#include "src/quant/search/precision_choices.h"
#include "src/text/corpus.h"

namespace fewbit {

struct OfferedScheme {
  Candidate candidate{};
  int64_t bytes = 0;
  double cost = 0;  // expected KL of this choice alone, nats per token
};

struct PrecisionChoice {
  std::vector<std::string> linears{};
  std::vector<OfferedScheme> offered{};  // all that it could have had
  size_t chosen = 0;                     // of them
  double weights = 0;
  double share = 1;  // PrecisionUnit::share
  bool end = false;  // the embedding or the head

  const OfferedScheme& scheme() const { return offered[chosen]; }
  double bits() const { return 8.0 * static_cast<double>(scheme().bytes) / weights; }
};

struct PrecisionPlan {
  double target_bits = 0, bits = 0;  // per weight, of the linears that were chosen for, as the budget counts them
  bool counts_active = false;        // of those that a token reads
  double cost = 0;                   // sum of the choices' expected KL
  int64_t calibration_windows = 0, held_out_windows = 0;
  std::vector<PrecisionChoice> choices{};  // in model order

  std::map<std::string, Recipe> recipes() const;  // by full name, for PlanOptions::chosen
  std::string summary() const;                    // one line: how often each scheme was chosen
};

// Error{memory} where the limits of the job do not hold the measurement on this device, of so many windows of so many
// tokens, with the smallest that would. Otherwise where the calibration's states may lie.
StateRoom room_to_measure(const Exec&, const Checkpoint&, const PrecisionJob&, const PrecisionChoices&, int64_t windows,
                          int64_t length);
// The recipe of every unit in the smallest of its schemes: of all choices, what a run needs the least memory for.
std::map<std::string, Recipe> smallest_recipes(const PrecisionChoices&);

// `windows` is the calibration draw: its last eighth (at most 16 windows) is held out to measure the KL. Error{usage}
// where there are fewer than two windows, Error{memory} as room_to_measure().
PrecisionPlan choose_precision(Exec&, const Checkpoint&, const Windows& windows, const PrecisionJob&,
                               const PrecisionChoices&);

}  // namespace fewbit
