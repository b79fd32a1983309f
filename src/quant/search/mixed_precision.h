#pragma once
// Mixed precision, `quantize auto --target-bits B`: bits and group size of every linear, chosen from measured
// sensitivity so that the packed linears take at most B bits per weight, scales and zeros included.
#include <functional>
#include <map>

#include "src/quant/plan/plan.h"
#include "src/text/corpus.h"

namespace fewbit {

struct PrecisionJob {
  Recipe base{};              // the recipe; its chain is "auto"
  std::vector<Rule> rules{};  // the user's: linears they match are theirs, neither chosen nor counted
  DType dtype = DType::f32;   // compute dtype of the measurement
  uint64_t seed = 0;
  std::function<void(double)> progress{};
};

struct PrecisionChoice {
  std::vector<std::string> linears{};
  QuantSpec spec{};
  int64_t bytes = 0;
  double cost = 0;  // expected KL of this choice alone, nats per token
};

struct PrecisionPlan {
  double target_bits = 0, bits = 0;  // per weight, of the linears that were chosen for
  double cost = 0;                   // sum of the choices' expected KL
  int64_t calibration_windows = 0, held_out_windows = 0;
  std::vector<PrecisionChoice> choices{};  // in model order

  std::map<std::string, Recipe> recipes() const;  // by full name, for PlanOptions::chosen
  std::string summary() const;                    // one line: how often each spec was chosen
};

// The specs that are compared: 2, 3, 4, 5, 6 and 8 bits in groups of 32, 64 and 128, as far as the format takes them
// for these linears and the target could use them.
std::vector<QuantSpec> precision_candidates(const CheckpointFormat&, const std::vector<NamedLinear>&,
                                            const QuantSpec& base, double target_bits);

// `windows` is the calibration draw: its last eighth (at most 16 windows) is held out to measure the KL. Error{usage}
// where no candidate fits, the target is below the smallest, or there are fewer than two windows.
PrecisionPlan choose_precision(Exec&, const Checkpoint&, const Windows& windows, const PrecisionJob&);

}  // namespace fewbit
