#pragma once
// What quantizing takes besides the statistics of an input, for plans: method_bytes() of one linear, and what stands
// around it.
#include "src/quant/plan/plan.h"

namespace fewbit {

// Of a GPU besides what Exec hands out: loaded kernels, workspaces of factorisations (174 MiB on an H200 by gptq).
constexpr int64_t kDeviceLibraries = int64_t{176} << 20;
// Host memory of the program and its libraries, those of a GPU too, and what they set aside for each of their threads.
int64_t program_bytes(Device::Kind);

// Features of the slots that stand between blocks besides the residual stream, at most; and of a token's row in a table
// that a block has of its own.
int64_t kept_features(const ModelSpec&);
int64_t token_table_features(const std::vector<BlockOp>& ops);
// Features of the widest input of an op's linears, of a mixture the one that its experts share.
int64_t widest_input(const ModelSpec&);
// Of the curvature of the outputs of all linears from an op on.
int64_t curvatures_bytes(const std::vector<BlockOp>& ops, size_t from);

// The method at work and then the measure of its result, which has the weight, its new values, their difference from
// zero and the codes in two places. The factor stays in the cache of the statistics. `sibling`: a linear before this
// one left the factor of their input.
int64_t method_bytes(Device::Kind, const PlannedLinear&, bool sibling = false);

// Of the linear of a block that needs most, where nothing is calibrated.
int64_t largest_alone(Device::Kind, const QuantPlan&, int64_t layer);
// Host memory that a block needs on any device: its packed tensors until they are sealed and those of the block before
// that are on their way to the disk (but where experts come in waves), codes that wait to be packed, those of the
// linear at hand and its packed copy, and the stored weights that were read last.
int64_t host_bytes(const Checkpoint&, const QuantPlan&, int64_t layer, bool waves);

}  // namespace fewbit
