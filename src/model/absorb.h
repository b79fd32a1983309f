#pragma once
// Absorb: who can take a per-feature scale of an input out of the model's function. If the input x of some
// linears becomes x / s and their columns are multiplied by s, something before must divide: a norm's weight, or the
// rows of a linear whose output reaches x by steps that are linear in it, feature by feature: a product with another
// slot, an attention's mean, a gate. Derived from the op list, never from names.
// A mixture of experts has one such input in front (gate and up of every expert, and its router) and one inside each
// expert (down, behind up).
#include <string>
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

struct Absorber {
  enum class Kind : uint8_t {
    norm,         // divide the weight of a Norm, HeadNorm or Scale (for (1 + w) norms: w becomes (1 + w) / s - 1)
    linear_rows,  // divide rows (and bias) of a linear
  };
  Kind kind = Kind::norm;
  size_t op = 0;                    // index of the norm, or of the op that holds the linear
  std::string name;                 // relative name of the norm or the linear; no two absorbers of a block share one
  std::vector<size_t> consumers;    // every op that reads the scaled activation: Linears, Moe, Project
  std::vector<LinearDef> linears;   // those of them that multiply it, by their names in the block
  std::vector<NamedDense> routers;  // of Moe and Project: scaled like the linears, but never quantized
  int expert = -1;                  // the activation is one inside this expert of the Moe `op`
  // Feature j of the input takes scale source(j): grouped-query attention repeats each kv head for the query heads of
  // its group, and a norm by heads has one weight for all of them, so those features must share one scale.
  int64_t features = 0;  // how many scales there are
  int64_t head_dim = 0, repeat = 1;
  int64_t source(int64_t j) const { return repeat == 1 ? j : (j / (head_dim * repeat)) * head_dim + j % head_dim; }
  // Scale i divides row at(i) of the linear, or value at(i) of the norm: latent attention has the value of a head in
  // the last rows of that head's `head_rows`, behind its key. 0: scale i that of row i.
  int64_t head_rows = 0;
  int64_t at(int64_t i) const {
    return head_rows == 0 ? i : i / head_dim * head_rows + (head_rows - head_dim) + i % head_dim;
  }
  bool gated = false;  // a gate for every feature stands between the absorber and the input
};

// Every absorber of a block, once each, in the order of their first consumers. An input whose scale cannot be folded
// has none: its producer is not scalable, or someone besides linears and routers reads it.
std::vector<Absorber> absorbers_of(const std::vector<BlockOp>& ops);

}  // namespace fewbit
