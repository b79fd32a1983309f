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
//
// Experts are looked at in waves: as many at a time as their sums have room for. Every wave sees all chunks of the
// input once; an expert's rows are cut at kExpertPiece of its own, so that the sums do not depend on the waves. Who
// goes where is asked once.
//
// Where the weights of all experts have no room either, those of a wave come with it.
//
// Of several ranks each looks at experts of its own, dealt in turn; all are shown all rows.
#include <functional>
#include <optional>
#include <vector>

#include "src/calib/expert_pieces.h"
#include "src/calib/observe.h"

namespace fewbit {

class ExpertInputs {
 public:
  // A linear by its name in the block.
  using LinearOf = std::function<const Linear&(const std::string&)>;
  // Shows every chunk of the op's input in the quantized stream and, where there is one, in the unquantized one (else
  // data == nullptr), and what the router reads of it in the quantized one. As EachChunk, it can be asked again.
  using Show = std::function<void(ConstTensorView x, ConstTensorView x_full, ConstTensorView routed)>;
  using EachRouted = std::function<void(const Show&)>;
  // Has gate and up of experts [first, last) that this rank owns in memory, in all streams, and lets go of all others.
  using Hold = std::function<void(int first, int last)>;

  // `each` shows the op's input [.., hidden], of both streams where `cross`.
  // `weights`: the router, and where activations are asked for the linears of the unquantized stream. Both must stay
  // while this lives. `at_once`: experts of a wave that a rank looks at. `hold`: where weights come with the waves;
  // called by all ranks.
  ExpertInputs(Exec&, const Moe&, const BlockWeights& weights, EachRouted each, bool cross, int at_once,
               const Ranks& = one_process(), Hold hold = {});

  std::vector<int64_t> tokens() const { return tokens_; }  // seen by each expert
  std::vector<int> starved() const;                        // experts that borrow for one of their linears

  // Whether this rank can be asked for the expert's statistics.
  bool owns(int expert) const { return expert % ranks_.size() == ranks_.rank(); }
  // Of several ranks, all call these with the first of as many experts as there are ranks, before each asks for its
  // own.
  void look_at_inputs(int expert, const InputRounding&);
  void look_at_activations(int expert, const InputRounding&, const LinearOf& quantized);

  // What gate and up multiply, rounded as they round it. To be asked in the order of the experts: an answer is given
  // once.
  InputStats of_input(int expert, const InputRounding&);
  // What down multiplies, when gate and up of all experts are those of `quantized`.
  InputStats of_activation(int expert, const InputRounding&, const LinearOf& quantized);

 private:
  struct Layer {  // sums of the whole layer, made when first asked for
    InputRounding rounding{};
    InputStats stats{};
  };
  struct Wave {  // statistics of experts first, first + 1 … that nobody took yet
    int first = 0;
    InputRounding rounding{};
    std::vector<std::optional<InputStats>> stats{};
  };
  // Rows that reach the linear which is looked at: those of an expert, in pieces.
  using RowsOf = std::function<void(int expert, ConstTensorView x, ConstTensorView x_full)>;
  void show_inputs(int first, int last, const RowsOf&);
  void show_activations(int first, int last, const LinearOf& quantized, const RowsOf&);
  Wave observe(int first, int last, int64_t in, const InputRounding&, const std::function<void(const RowsOf&)>& show);
  bool holds(const std::optional<Wave>&, int expert, const InputRounding&) const;
  void look(std::optional<Wave>&, int expert, const InputRounding&, const std::function<Wave(int, int)>& make) const;
  static InputStats taken(Wave&, int expert);
  void from_owner(std::optional<InputStats>&, int expert, int64_t in);
  Wave activations(int first, int last, const InputRounding&, const LinearOf& quantized);
  Layer all_activations(const InputRounding&, const LinearOf& quantized);
  bool any_below(int64_t in) const;  // some expert must borrow for a linear of this width
  void borrow(InputStats& own, const InputStats& all);

  Exec& ex_;
  const Moe& op_;
  const BlockWeights& weights_;
  EachRouted each_;
  bool cross_;
  int at_once_;
  const Ranks& ranks_;
  Hold hold_;
  std::vector<int64_t> tokens_{};
  std::vector<Routing> routings_{};  // by chunk, without the weights of what experts answer
  std::optional<Wave> inputs_{}, activations_{};
  std::optional<Layer> all_inputs_{}, all_activations_{};
};

// Tokens that the router sends to each expert, added to `tokens`.
void count_tokens(Exec&, const Moe&, const BlockWeights&, ConstTensorView x, std::vector<int64_t>& tokens);
// Experts with fewer tokens than their statistics need.
std::vector<int> starved_of(const Moe&, const std::vector<int64_t>& tokens);

}  // namespace fewbit
