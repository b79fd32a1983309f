#pragma once
// Sensitivity: what it costs the model to store some of its linears in this spec or that. Measured, not guessed:
//
//   cost(u, spec) = sum over the linears l of u of  KL_l / loss_l(probe) * loss_l(spec)
//
// loss_l(spec) = tr(D H D^T), D the change of the weight under quick GPTQ and H the Gram matrix of the linear's input
// (the output error on the calibration text); KL_l = mean KL(bf16 || model with l alone in the probe spec) per token of
// held-out windows. The first factor carries how much the model minds an error at that place (the sensitivity of HAWQ,
// Dong et al., 2019, section 3, with a measured distance in place of the Hessian's trace), the second how large it is.
#include <functional>
#include <string>
#include <vector>

#include "src/calib/states.h"
#include "src/quant/method.h"
#include "src/run/runner.h"
#include "src/text/corpus.h"

namespace fewbit {

// Linears that must share a spec, because engines run them as one product: q, k, v; gate, up; the experts of a layer.
// An end (ends_of) is one by itself.
struct TiedLinears {
  int64_t layer = 0;  // kOutsideBlocks of an end
  size_t op = 0;      // index of their op in the block
  // Probed one by one: a linear each, or in a mixture the same linear of all experts.
  std::vector<std::vector<std::string>> probes{};  // full names
  std::vector<std::string> names() const;
};
// In model order; linears for which `skip` is true are left out, and groups without any other. `experts_together`: all
// linears of a mixture are one group, else those in front of the activation and those behind it are two.
std::vector<TiedLinears> tied_linears(const ModelSpec&, const std::function<bool(const std::string&)>& skip,
                                      bool experts_together = false);

// What is compared for them. No spec at all: nothing is measured.
struct UnitSpecs {
  TiedLinears linears{};
  std::vector<QuantSpec> specs{};
  size_t probe = 0;  // index of the spec whose KL is measured
};

// Experts of a mixture whose statistics are held side by side.
constexpr int kExpertsAtOnce = 32;

struct SensitivityJob {
  const Windows* calibration = nullptr;  // for the Gram matrices
  const Windows* held_out = nullptr;     // for the KL
  DType dtype = DType::f32;              // compute dtype of both
  uint64_t seed = 0;
  StateRoom state_room{};  // where the calibration's states may lie
  std::function<void(double)> progress{};
};

// cost[u][s] of unit u in spec s, in nats per token. The whole model must fit the device: Error{memory} otherwise.
std::vector<std::vector<double>> measure_sensitivity(Exec&, const Checkpoint&, const std::vector<UnitSpecs>&,
                                                     const SensitivityJob&);

}  // namespace fewbit
