#pragma once
// What calibration sees at the inputs of a mixture's experts. The router of the quantized stream decides
// which tokens an expert gets; of the unquantized stream the same tokens are taken, so that the two can be
// compared row by row.
//
// A starved expert, one with fewer tokens n than n_min = 2 * in, borrows the missing m = n_min - n tokens
// from its layer: with H the expert's raw sum and H_all that of all n_all tokens at the same place (of all
// experts' down inputs together for down), its Gram matrix becomes
//     H + m / n_all * c * H_all        c = (tr H / n) / (tr H_all / n_all), or 1 where the expert saw nothing
// so that the layer's share of the trace is m / n_min. The cross sums are lent in the same proportion.
#include <functional>
#include <optional>

#include "src/calib/observe.h"
#include "src/run/moe.h"

namespace fewbit {

class ExpertInputs {
 public:
  // A linear of the quantized stream by its name in the block.
  using LinearOf = std::function<const Linear&(const std::string&)>;

  // x, x_full [tokens, hidden]: the op's input in the quantized stream and in the unquantized one (data ==
  // nullptr: no cross sums). `weights`: the block before quantization; both must stay while this lives.
  ExpertInputs(Exec&, const Moe&, const BlockWeights& weights, ConstTensorView x, ConstTensorView x_full);

  std::vector<int64_t> tokens() const;  // seen by each expert
  std::vector<int> starved() const;     // experts that borrow for one of their linears

  // What gate and up multiply, rounded as they round it.
  InputStats of_input(int expert, const InputRounding&);
  // What down multiplies, when gate and up of all experts are those of `quantized`.
  InputStats of_activation(int expert, const InputRounding&, const LinearOf& quantized);

 private:
  struct Layer {  // sums of the whole layer, made when first asked for
    InputRounding rounding{};
    InputStats stats{};
  };
  InputStats own_activation(int expert, const InputRounding&, const LinearOf& quantized);
  void borrow(InputStats& own, const InputStats& all);

  Exec& ex_;
  const Moe& op_;
  const BlockWeights& weights_;
  ConstTensorView x_, x_full_;
  Routing routing_;
  std::optional<Layer> all_inputs_, all_activations_;
};

}  // namespace fewbit
