#pragma once
// The mixture of experts on a device: who goes where, and one expert at a time on its own tokens, where the routing is
// read by the host. A few tokens whose experts are prepared for it leave the routing on the device
// (kernels/decode/experts/few_experts.h): only so can an op list with a Moe be recorded.
#include <functional>
#include <string>
#include <vector>

#include "src/run/block.h"

namespace fewbit {

struct RowNorm;  // kernels/products/normed_gemms.h

// The tokens of every expert, side by side: expert e has the entries begin[e] … begin[e + 1], tokens
// ascending.
struct Routing {
  Tensor rows{};                 // i32 [tokens * top_k] on the device: rows of the op's input
  Tensor weights{};              // f32 [tokens * top_k]: of what the experts answer
  Tensor input_weights{};        // the same of what they read; empty: they read rows as they are
  Tensor places{};               // i32 [tokens, top_k]: which entry a token's choice is
  std::vector<int64_t> begin{};  // [experts + 1]
  int64_t tokens(int expert) const {
    return begin[static_cast<size_t>(expert) + 1] - begin[static_cast<size_t>(expert)];
  }
  ConstTensorView rows_of(int expert) const;
};
// Asks the router about x [tokens, hidden], that of the slot Moe::routed(); several ranks take rank 0's answer.
Routing route_tokens(Exec&, const Moe&, const BlockWeights&, ConstTensorView x, RankSums* ranks = nullptr);

// What an expert reads of x [tokens, hidden]: its tokens' rows in a new tensor.
Tensor expert_rows(Exec&, const Routing&, int expert, ConstTensorView x);
// act(gate) * up of an expert: x [n, hidden] of its tokens -> [n, intermediate]. `of`: linears by names in the block.
using LinearByName = std::function<const Linear&(const std::string&)>;
Tensor expert_activation(Exec&, const Moe&, int expert, const LinearByName& of, ConstTensorView x);
// Rows of x [tokens, features] that stand in `rows`, in a new tensor.
Tensor gather_rows(Exec&, ConstTensorView x, ConstTensorView rows);

// Adds what experts [first, last) make of x [tokens, hidden], weighted, to `sum` [tokens, hidden] f32, in the order of
// their numbers. Experts by and by give the bits of all at once.
void add_experts(Exec&, const Moe&, const BlockWeights&, const Routing&, ConstTensorView x, int first, int last,
                 TensorView sum);
// out = the weighted sum of the experts; out may be x. Summed in f32 in the order of the experts' numbers.
// `routed` is what the router reads. Of several ranks each sums its own, then those sums are summed in their order.
void run_moe(Exec&, const Moe&, const BlockWeights&, ConstTensorView x, ConstTensorView routed, TensorView out,
             RankSums* ranks = nullptr);
// The same sum, rounded, added to `sum`, where the experts of x are prepared for a few tokens; false: nothing was done.
bool run_moe_added(Exec&, const Moe&, const BlockWeights&, ConstTensorView x, ConstTensorView routed, TensorView sum,
                   RankSums* ranks = nullptr);
// The same of rms_norm(x), which the router reads too; it comes to `normed`.
bool run_normed_moe_added(Exec&, const RowNorm&, const Moe&, const BlockWeights&, ConstTensorView x, TensorView normed,
                          TensorView sum, RankSums* ranks = nullptr);
bool has_moe(const ModelSpec&);

// Prepares the mixtures of all blocks for a few tokens at a time; `blocks`: their weights on a GPU, by layer, which
// may then no longer be replaced. Why the first one that cannot be is left as it was; "" = none.
std::string prepare_few_experts(Exec&, const ModelSpec&, std::vector<BlockWeights>& blocks, DType dtype);

}  // namespace fewbit
