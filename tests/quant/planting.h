#pragma once
// Planting: a copy of a model with the same function and a few outlier channels at the output of every norm, as large
// models grow them by themselves: the norm's weight times a factor, the columns of its consumers divided by it.
#include <filesystem>
#include <map>
#include <string>

#include "src/quant/loop/block_f32.h"

namespace fewbit::test {

struct Planting {
  // A channel whose weights fall below half a step is lost whole, and no more than that: a random one carries little.
  enum class Where : uint8_t {
    salient,  // those that carry most of the consumers' outputs on the built-in text (needs a tokenizer)
    drawn,    // without replacement by (seed, name of the norm)
  };
  int64_t channels = 4;  // per norm
  float factor = 50;
  Where where = Where::salient;
  uint64_t seed = 0;
};

// Writes the planted copy of `c` to `dir`, a new folder. Norms stay in the type that the checkpoint stores them in;
// the rewritten linears and routers are written in f32, because a division by the factor is not exact in bf16.
void plant_outliers(const Checkpoint& c, const Planting&, const std::filesystem::path& dir);

// A copy of the checkpoint in `dir`, a new folder, with the tensors of `changed` in place of those of the same name.
void write_changed(const Checkpoint& c, const std::map<std::string, Tensor>& changed, const std::filesystem::path& dir);

// Adds the tensors of a rewritten block to `out` under their full names, the linears in f32.
void collect(Exec&, const BlockF32&, const std::string& prefix, std::map<std::string, Tensor>& out);

}  // namespace fewbit::test
