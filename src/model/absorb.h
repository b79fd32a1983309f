#pragma once
// Absorb: who can take a per-feature scale of a Linears op's input out of the model's function. If the input x of some
// linears becomes x / s and their columns are multiplied by s, something before must divide: a norm's weight, or the
// rows of a linear whose output reaches x by elementwise steps only. Derived from the op list, never from names.
#include <optional>
#include <string>
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

struct Absorber {
  enum class Kind : uint8_t {
    norm,         // divide the norm's weight (for (1 + w) norms: w becomes (1 + w) / s - 1)
    linear_rows,  // divide rows (and bias) of a linear
  };
  Kind kind = Kind::norm;
  size_t op = 0;              // index of the Norm, or of the Linears op that holds the linear
  std::string name;           // relative name of the norm or the linear
  std::vector<size_t> consumers;  // every Linears op that reads the scaled activation
  // Feature j of the input is feature source(j) of the absorber: grouped-query attention repeats each kv head for the
  // query heads of its group, so those features must share one scale.
  int64_t features = 0;       // width of the absorber's output
  int64_t head_dim = 0, repeat = 1;
  int64_t source(int64_t j) const { return repeat == 1 ? j : (j / (head_dim * repeat)) * head_dim + j % head_dim; }
};

// The absorber of the input of ops[linears], or nothing where the scale cannot be folded (the producer is not scalable, or
// someone besides linears reads the activation).
std::optional<Absorber> absorber_of(const std::vector<BlockOp>& ops, size_t linears);

// Every absorber of a block, once each, in the order of their first consumers.
std::vector<Absorber> absorbers_of(const std::vector<BlockOp>& ops);

}  // namespace fewbit
