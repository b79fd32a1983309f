#pragma once
// The parts of a layer of Gemma 4.
#include <compare>

#include "src/model/archs/decoder.h"

namespace fewbit {

// Which keys and values a layer reads, and which it leaves for later ones.
struct Gemma4Role {
  bool sliding = false;
  int64_t keys_of_layer = -1;  // -1: its own
  bool leaves_keys = false;
  bool wide = false;                           // twice the width of an MLP
  bool keeps_near = false, keeps_far = false;  // later layers read them
  auto operator<=>(const Gemma4Role&) const = default;
};

// An RMS norm of the states' width.
Norm gemma4_norm(const DecoderSizes&, Slot in, Slot out, const char* name);
// With `values`, a linear for them; else they are the keys.
std::vector<BlockOp> gemma4_attention(const ConfigView&, const DecoderSizes&, const Gemma4Role&, bool values);
std::vector<BlockOp> gemma4_mlp(const DecoderSizes&, Slot out, bool wide = false);
// The sum of an MLP and of experts, each behind a norm of its own; the router reads the states themselves.
std::vector<BlockOp> gemma4_mlp_and_experts(const ConfigView&, const DecoderSizes&);
// What the token alone adds to the states of a layer, behind a gate that reads them.
std::vector<BlockOp> gemma4_token_input(const DecoderSizes&, int64_t features);

}  // namespace fewbit
