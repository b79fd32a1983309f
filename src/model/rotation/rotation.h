#pragma once
// Rotations that a model's weights can take in without a change of what it computes (QuaRot: Ashkboos et al., 2024;
// R1 and R2 of SpinQuant: Liu et al., 2024): the residual stream is turned by one orthonormal matrix, and the values of
// every attention head by another. Features of a residual stream that are far larger than the others, which rounding to
// few bits cannot bear, are spread over all of it. Derived from the op list, never from names of families.
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/model/checkpoint.h"

namespace fewbit {

// What happens to one tensor of a block, by its name there ("mlp.down_proj.weight").
struct TurnedTensor {
  std::string norm{};        // whose weight multiplies the inputs first: a tensor of the block; "" = none
  float norm_offset = 0;     // 1: that norm multiplies by 1 + w
  bool reads = false;        // its inputs are the turned stream
  bool writes = false;       // its outputs are added to the turned stream
  int64_t heads_out = 0;     // values of so many features a head leave it turned …
  int64_t heads_in = 0;      // … and are what it reads
  bool becomes_one = false;  // the weight of a norm, which the readers took
  float one = 1;             // with what it then has: 1, or 0 of 1 + w
};
using TurnedTensors = std::map<std::string, TurnedTensor>;

// The tensors of a kind of block that a rotation changes. `why_not` gets the op that cannot take one in, "" otherwise:
// a norm between a branch and the stream, a norm that takes a mean away, an op that reads the stream by features.
TurnedTensors turned_tensors(const ModelSpec&, const std::vector<BlockOp>& ops, std::string& why_not);

// The checkpoint with its stream turned by a HadamardBasis of `seed`, and the values of each layer's heads by another,
// made tensor by tensor as they are asked for, in their own type or in `type`. A head that is tied to the embedding
// becomes a tensor of its own, and the config says so. Checkpoint::rotation has what people should know.
// `turns_heads` false: values stay as they are, for scales of their features and a matrix that runs with the model.
// Error{unsupported} where the family cannot take it in, with the op; where tensors besides the language model would
// read or feed the stream; and for linears that are packed.
Checkpoint with_rotation(Checkpoint, uint64_t seed, std::optional<DType> type = {}, bool turns_heads = true);

}  // namespace fewbit
