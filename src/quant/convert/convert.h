#pragma once
// Converts a checkpoint to another format. Codes and scales move unchanged into the packings of that format, or every
// weight is dequantized; whatever else the model directory holds travels along. A conversion that would lose something
// is refused: docs/formats/README.md has the table.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf/block_type.h"
#include "src/model/checkpoint.h"
#include "src/model/gguf/mixes.h"

namespace fewbit {

struct ConvertTarget {
  const CheckpointFormat* format = nullptr;
  std::optional<DType> dense{};             // bf16, f16, f32: dequantized
  const gguf::BlockType* blocks = nullptr;  // gguf:TYPE: values, stored anew in blocks of this type
  const GgufMix* mix = nullptr;             // gguf:q4_k_m …: or in those of a mix, most of which are that type
};
// "marlin", "gptq", "awq", "compressed-tensors", "fp8", "modelopt", "gguf", "gguf:q8_0", "bf16", "f16",
// "f32". Error{usage} listing the known ones.
ConvertTarget convert_target(const std::string& name);

struct ConvertJob {
  ConvertTarget target{};
  std::filesystem::path model{};           // as the user gave it: the folder whose files travel along
  std::filesystem::path out{};             // a folder; of gguf also a .gguf file
  std::filesystem::path user{};            // folder of the records of read models (sources.h), or ""
  std::string command{};                   // for the model card
  bool force = false;                      // replace an OUT that exists, when the new one is whole
  int64_t shard_bytes = 0;                 // a new shard begins before this would be exceeded
  std::function<bool()> stop_requested{};  // asked between linears
  std::function<void(const std::string& phase, double)> progress{};  // phase and fraction done
};

struct ConvertReport {
  std::string out;                 // what was written
  int64_t linears = 0;             // packed ones of the model that were converted
  int64_t bytes = 0;               // of all tensors written
  std::vector<std::string> notes;  // what a user should know, a line each
};

// Reads every linear once and refuses what cannot be held, all at once with the reasons (Error{unsupported}),
// before anything is written; OUT then appears by one rename. One linear is in memory at a time.
ConvertReport convert(const Checkpoint&, const ConvertJob&);

}  // namespace fewbit
