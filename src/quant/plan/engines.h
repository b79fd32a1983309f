#pragma once
// Engines: whether vLLM, SGLang, TensorRT-LLM, transformers or llama.cpp would load what a plan will write, on
// so many GPUs, decided before any work. What they accept is data (engine_rules.cpp); docs/engines.md explains it.
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/quant/plan/plan.h"

namespace fewbit {

struct EngineRules {
  std::string_view name{};     // of --for
  std::string_view version{};  // the release that the rules were read in
  bool fuses = false;          // linears of one input run as one, and the experts of a layer too: one scheme each
  bool splits_heads = false;   // tensor parallelism gives every GPU whole heads
  std::string_view source{};   // of these two
  std::string_view recurrent_source{};  // of its whole heads of delta nets and state spaces; "" = not known
  std::string_view kv_scales{};  // what becomes of the scales of an FP8 cache that it does not take; "" = it does
  std::string_view embedding{};  // why a packed embedding does not load where no row takes one
};

// What an engine takes of one format. A packing that has no row is refused.
struct FormatRule {
  enum class Grids : uint8_t { symmetric, both };
  enum class ActOrder : uint8_t { no, yes };  // groups that an index tensor tells
  // What becomes of a linear whose share of a GPU is no multiple of the kernel's tile.
  enum class OffTile : uint8_t { refused, padded, slower_kernel };

  std::string_view engine{}, format{};
  std::string_view packing{};       // "" = whatever the format holds
  unsigned bits = 0;                // mask of 1 << bits; 0 = as the packing has them
  std::array<int64_t, 8> groups{};  // the sizes taken, -1 = one per row; empty = any
  Grids grids = Grids::both;
  ActOrder act_order = ActOrder::no;
  bool needs_rounded_inputs = false;  // weights alone are not taken
  // Codes of 32-bit words that must not be cut: along the inputs, along the outputs.
  bool words_along_in = false, words_along_out = false;
  int64_t tile_out = 0, tile_in = 0;  // of the kernel, for each GPU's share of a fused linear; 0 = any
  bool either_way = false;            // the tile may also be tile_in outputs by tile_out inputs
  OffTile off_tile = OffTile::refused;
  // Experts have a rule of their own: Marlin's wants hidden % 128 = 0, their width on a GPU % max(64, group) = 0 and
  // one of its groups, or another kernel runs them.
  bool marlin_experts = false;
  // A packed embedding is read: of any kind, or of symmetric integers alone where the code of the family passes its
  // config on.
  enum class Embedding : uint8_t { no, integers, any } embedding = Embedding::no;
  bool splits = true;  // is taken with --tp above 1
  std::string_view source{};
};

// The tables.
std::span<const EngineRules> engines();
std::span<const FormatRule> format_rules();

const EngineRules& engine_rules(std::string_view name);  // Error{usage} listing the known ones

struct EngineVerdict {
  std::vector<Refusal> refusals{};             // a linear's full name, "format NAME", or the architecture
  std::map<std::string, std::string> notes{};  // by linear: it loads, but not as the kernel likes it
  std::string note{};                          // of the whole model
};

// The verdict on `tp` GPUs (>= 1) in tensor parallel.
EngineVerdict check_engine(const ModelSpec&, const QuantPlan&, const EngineRules&, int64_t tp);

}  // namespace fewbit
