#pragma once
// Synthetic checkpoints: random weights in the shape of a real model, for measuring and for tests. The config
// is the public model's; no tokenizer is written, so such a checkpoint runs on token ids only. One tensor is
// in memory at a time.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fewbit {

struct Checkpoint;  // src/model/checkpoint.h

struct SynthPreset {
  std::string_view name;     // "llama3-8b"
  std::string_view summary;  // the public model whose shape it is
};
std::vector<SynthPreset> synth_presets();

struct SynthOptions {
  std::string preset{};
  std::string config{};         // instead of a preset: the text of a config.json, of any family
  std::string format = "bf16";  // a checkpoint format; formats that pack get int4 g128 sym in every linear
  int64_t layers = 0;           // 0 = as many as the model has
  int64_t experts = 0;          // of a mixture; 0 = as many as it has
  uint64_t seed = 0;
  int64_t shard_bytes = int64_t{5} << 30;
  int64_t tokens = 0;   // > 0: also calibration.safetensors, so many random ids as input_ids [windows, seq_len] i32
  int64_t seq_len = 0;  // of its windows; 0 = 2048, at most the model's positions. What fills no window is left out
};

// The checkpoint that synthesize() would write of a preset in bf16, without its bytes: names, types and shapes, for
// what asks for sizes alone. Reading a tensor of it stops the process.
Checkpoint shape_only(const SynthOptions&);

// The config.json of a preset, cut to `layers` and `experts`, as JSON text. Error{usage} for an unknown preset, for
// experts of a model that has none, and for more of them than it has.
std::string synth_preset_config(const SynthOptions& options);

// Writes config.json, generation_config.json and safetensors shards into `dir` and returns the bytes of all
// tensors. Every value is a function of (seed, tensor name, element). Dense weights are bf16 of standard
// deviation 0.02 (norms 1 + that); packed ones have codes and scales that give the same. `progress` (may be
// empty) receives bytes done and in all. Error{usage} for an unknown preset or format, Error{unsupported} for
// a format that cannot take a linear.
int64_t synthesize(const std::filesystem::path& dir, const SynthOptions& options,
                   const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace fewbit
