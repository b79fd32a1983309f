#pragma once
// Which tensors of a checkpoint are what, for those who copy or compare it whole.
#include <string>
#include <vector>

#include "src/model/checkpoint.h"

namespace fewbit {

// Modules with a matrix that the architecture's op list does not know (heads of another purpose, vision
// towers): they stay as they are, and configs list them among what is not quantized.
std::vector<std::string> unknown_matrices(const Checkpoint&);

// Modules that stay dense whatever the recipe, as configs list them: routers, and unknown_matrices(), the latter also
// by the names that loaders give them which keep what stands around a language model below "model.".
std::vector<std::string> always_dense(const Checkpoint&);

// Whether a tensor is one of those that hold a packed linear (not its bias, nor scales of a key/value cache
// that stand below it).
bool holds_codes(const Checkpoint&, const std::string& tensor);

// Frees what reading the weights of a linear has made, so that a pass over a model holds one at a time.
void release_linear(const Checkpoint&, const std::string& linear);

}  // namespace fewbit
