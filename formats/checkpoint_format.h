#pragma once
// Checkpoint formats: what `--format NAME` means. A format is an ordered list of packings (the first that
// accepts a linear takes it) and the `quantization_config` object that its readers expect.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/packing.h"

namespace fewbit {

// One quantized linear of a checkpoint, as its config describes it.
struct LinearFormat {
  const Packing* packing = nullptr;
  QuantSpec spec{};
  bool act_order = false;
};

struct QuantizationSummary {
  std::map<std::string, LinearFormat> linears;  // by full linear name, "model.layers.0.self_attn.q_proj"
  std::vector<std::string> dense;               // linears that stay as they are, for readers that must be told
  bool fp8_kv_cache = false;                    // the checkpoint has static scales for one (formats/kv_scales.h)
  // Why the k_scale and v_scale of a checkpoint are not those of an FP8 cache; "" where they would be.
  std::string foreign_kv_cache{};
};

// A JSON file of a model directory.
struct ConfigFile {
  std::string name{};  // "quantize_config.json"
  std::string text{};  // "" = it does not exist
};

struct CheckpointFormat {
  std::string_view name, summary;
  std::vector<const Packing*> (*candidates)(const QuantSpec&);  // in order of preference; empty: dense only
  // JSON text of quantization_config ("" = none) for everything that was packed.
  std::string (*write_config)(const QuantizationSummary&);
  // Why the config cannot say all this of one checkpoint; "" = it can. Absent: it can say everything.
  std::string (*cannot_describe)(const QuantizationSummary&) = nullptr;
  // True where a recipe that names no format and ends in this grid, with or without the scales of an FP8 cache, means
  // this one; the first line of formats.def that says so is taken. Absent: it is never meant unless named.
  bool (*is_default)(const QuantSpec&, bool fp8_kv_cache) = nullptr;
  // The file that older readers look for beside config.json. Absent: none.
  ConfigFile (*side_file)(const QuantizationSummary&) = nullptr;
  bool fp8_kv_cache = false;  // has a place for the scales of an FP8 key/value cache
  bool packed_ends = false;   // its config can say that the head or the embedding is packed
  bool f16_scales = false;    // holds f16 scales alone; elsewhere 8-bit linears have f32 ones
  bool weight_only = false;   // its FP8 linears take their inputs unrounded, unless the recipe says otherwise
  bool gguf = false;          // one .gguf file: NAME:TYPE chooses the blocks, the file itself says what it holds
  bool published = false;     // makers publish models in it, so its values may be what a quantization starts from
  bool two_of_four = false;   // of linears in 2:4 sparsity alone
  bool stacked = false;       // the experts of a layer lie in one tensor of blocks and one of scales, and nothing else
};

const std::vector<const CheckpointFormat*>& checkpoint_formats();
const CheckpointFormat* find_checkpoint_format(std::string_view name);  // null where there is none
const CheckpointFormat& checkpoint_format(std::string_view name);       // Error{usage} listing the known ones
// The one that is meant where none is named (CheckpointFormat::is_default).
const CheckpointFormat& default_checkpoint_format(const QuantSpec&, bool fp8_kv_cache);
// Those with the flag set, for messages: "marlin, gptq and gguf".
std::string formats_with(bool CheckpointFormat::*flag);

// The packing a linear gets, or null with the reasons of all candidates in `why_not`.
const Packing* choose_packing(const CheckpointFormat&, const QuantSpec&, int64_t out, int64_t in, bool act_order,
                              std::string* why_not);

// Reads the `quantization_config` of a config.json, or else `side`, the first of kSideFiles that the directory
// has. `config_json` is the JSON text of config.json; `tensor(name)` gives the tensors that exist (type and
// shape tell what the config leaves open) and `linears` are the candidates. Absent quantization_config: empty
// result. Error{unsupported|checkpoint} names the key that is not understood. `name` receives "marlin",
// "gptq", "gptq_v2", "awq", "compressed-tensors", "fp8", "modelopt", "mxfp4" or "dense".
QuantizationSummary read_quantization(const std::string& config_json, const ConfigFile& side,
                                      const std::vector<std::string>& linears, const TensorSource& tensor,
                                      std::string* name);

// Files beside config.json that hold a quantization config, in the order in which readers look for them.
inline constexpr std::string_view kSideFiles[] = {"quantize_config.json", "quant_config.json", "hf_quant_config.json"};

#define FEWBIT_FORMAT(id) extern const CheckpointFormat format_##id;
#include "formats/formats.def"
#undef FEWBIT_FORMAT

}  // namespace fewbit
