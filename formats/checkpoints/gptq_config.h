#pragma once
// The GPTQ family's quantization_config, as several formats write it. Internal to formats/checkpoints.
#include <string>

#include "formats/checkpoint_format.h"

namespace fewbit::gptq_config {

enum class Map : uint8_t {
  always,      // the "fewbit" object is part of the format
  when_mixed,  // foreign readers first: only where linears differ
};
enum class Dynamic : uint8_t { none, when_mixed };  // GPTQModel's per-module rules

struct Options {
  std::string checkpoint_format;  // "" = the name of the most common packing
  Map map = Map::when_mixed;
  Dynamic dynamic = Dynamic::none;
};

// JSON text of quantization_config; "" when nothing was packed.
std::string write(const QuantizationSummary& summary, const Options& options);

}  // namespace fewbit::gptq_config
