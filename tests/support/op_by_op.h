#pragma once
// A model's pass op by op: what its routers and indexers chose, what lies between its blocks, and what of it two passes
// have in common.
#include <set>
#include <span>
#include <vector>

#include "src/run/engine.h"

namespace fewbit::test {

// The goldens of low-bit models are of code times scale, and no input is rounded.
LoadOptions exact_inputs(DType dtype);

inline std::span<const int32_t> values(const Tensor& t) { return {t.as<int32_t>(), static_cast<size_t>(t.numel())}; }

// The experts of every token in every layer that has some; nothing where none has.
using Choices = std::vector<std::vector<std::set<int32_t>>>;

// A pass op by op: what its routers and indexers chose, and its states in front of every block and behind the last.
struct OpByOp {
  Choices choices;
  std::vector<Tensor> states{};
  std::vector<Tensor> keys{};  // of every layer that chose some [tokens, top_k]
  double other_keys = 0;       // the largest share of them, in a layer, that the pass that was imposed did not choose
};

// With `rounds` everything that an op writes is rounded to bf16, while the op itself computes in `dtype`. Attention
// looks at the keys that were chosen in `imposed`, where there is one.
OpByOp op_by_op(Exec& ex, const Checkpoint& c, std::span<const int32_t> ids, int64_t seqs, DType dtype, bool rounds,
                const OpByOp* imposed);

// Tokens whose experts in the first `layers` layers are the same in both.
std::vector<bool> same_choices(const Choices& a, const Choices& b, int64_t layers);
// Of every sequence the tokens in front of its first that went elsewhere: attention and recurrent states hand what
// became of that one on to all behind it.
std::vector<bool> before_the_first(std::vector<bool> same, int64_t seqs);
// Those rows of a host tensor, one below the other.
Tensor rows_where(ConstTensorView x, const std::vector<bool>& take);

}  // namespace fewbit::test
