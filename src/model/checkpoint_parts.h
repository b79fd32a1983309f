#pragma once
// Which tensors of a checkpoint are what, for those who copy or compare it whole.
#include <string>
#include <vector>

#include "src/model/checkpoint.h"

namespace fewbit {

// The Projects of all blocks, with layer kOutsideModel: no recipe touches them, but a model may have them packed. They
// are Checkpoint::others then.
std::vector<NamedLinear> projects_of(const ModelSpec&);

// Modules with a matrix that the architecture's op list does not know (heads of another purpose, vision
// towers): they stay as they are, and configs list them among what is not quantized.
std::vector<std::string> unknown_matrices(const Checkpoint&);

// Experts outside the op list (of MTP layers) that lie in one tensor [experts, outputs, inputs]: its name.
std::vector<std::string> unknown_stacks(const Checkpoint&);

// Modules that stay dense whatever the recipe, as configs list them: routers, unknown_matrices(), and of
// unknown_stacks() the module of all experts and every expert's linears, for loaders differ in which they ask about;
// what is unknown also by the names that loaders give it which keep what stands around a language model below "model.".
std::vector<std::string> always_dense(const Checkpoint&);

// Whether a tensor is one of those that hold a packed linear (not its bias, nor scales of a key/value cache
// that stand below it).
bool holds_codes(const Checkpoint&, const std::string& tensor);

// Whether a tensor is one of those that hold the weights of a linear, packed or not.
bool holds_weights(const Checkpoint&, const std::string& tensor);
// Bytes of the tensors that hold the weights of a linear [out, in].
int64_t stored_weight_bytes(const Checkpoint&, const NamedLinear&);

// The checkpoint without the tensors whose name, or that of their module, one of `globs` matches: a tower or MTP layers
// that are left out on purpose; `dropped` gets their names. Error{usage} where a glob matches nothing, or something
// that the language model needs.
Checkpoint without_tensors(Checkpoint, const std::vector<std::string>& globs, std::vector<std::string>& dropped);

// The checkpoint as what `format` is written from: of projects_of(), those stay packed whose packing the format knows;
// the others are read as bf16, made when they are asked for.
Checkpoint as_source_of(Checkpoint, const CheckpointFormat& format);

// Frees what reading the weights of a linear has made, so that a pass over a model holds one at a time.
void release_linear(const Checkpoint&, const std::string& linear);

}  // namespace fewbit
