// Finds the quantization_config and gives it to the reader of its quant_method (formats/checkpoints).
#include <array>

#include "formats/checkpoints/readers.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

struct Reader {
  std::string_view method;
  QuantizationSummary (*read)(const ReadRequest&, std::string& name);
};
constexpr std::array<Reader, 7> kReaders = {{{"gptq", read_gptq},
                                             {"awq", read_awq},
                                             {"compressed-tensors", read_compressed_tensors},
                                             {"fp8", read_fp8},
                                             {"modelopt", read_modelopt},
                                             {"modelopt_fp4", read_modelopt},
                                             {"mxfp4", read_mxfp4}}};

// Methods of other programs, whose codes are not read here.
struct Elsewhere {
  std::string_view method, tool;
};
constexpr Elsewhere kElsewhere[] = {
    {"exl2", "ExLlamaV2 (TabbyAPI serves it)"},
    {"exl3", "ExLlamaV3 (TabbyAPI serves it)"},
    {"quanto", "optimum-quanto"},
    {"aqlm", "AQLM (aqlm, through transformers)"},
    {"quip", "QuIP# (quip-sharp)"},
    {"vptq", "VPTQ (vptq, through transformers)"},
    {"spqr", "SpQR (spqr_quant, through transformers)"},
    {"eetq", "EETQ (eetq, through transformers)"},
    {"higgs", "HIGGS (flute, through transformers)"},
    {"bitnet", "BitNet (bitnet.cpp, through transformers)"},
};

std::string elsewhere(const std::string& method) {
  for (const Elsewhere& e : kElsewhere)
    if (e.method == method)
      return ", which " + std::string(e.tool) +
             " reads; take the checkpoint that it was made from, or dequantize it there";
  return "";
}

// The quantization_config object, or nothing for a dense checkpoint. `tree` keeps it alive.
std::optional<ConfigObject> find_config(const std::string& config_json, const ConfigFile& side,
                                        std::optional<ConfigTree>& tree) {
  tree.emplace(config_json, "config.json");
  if (auto config = tree->root().object("quantization_config")) return config;
  if (side.text.empty()) return std::nullopt;
  tree.emplace(side.text, side.name);
  return tree->root();
}

// What files beside config.json leave out: AutoGPTQ's of before 2024 do not name the method, and neither do
// those of llm-awq and ModelOpt.
std::string unnamed_method(const ConfigObject& config, const ConfigFile& side) {
  if (config.has("quantization")) return "modelopt";
  if (config.where != side.name) return "";
  return config.has("w_bit") || config.has("zero_point") ? "awq" : "gptq";
}

}  // namespace

QuantizationSummary read_quantization(const std::string& config_json, const ConfigFile& side,
                                      const std::vector<std::string>& linears, const TensorSource& tensor,
                                      std::string* name) {
  std::optional<ConfigTree> tree;
  const auto config = find_config(config_json, side, tree);
  std::string format = "dense", known;
  if (name) *name = format;
  if (!config) return {};
  const std::string method = config->str("quant_method", config->str("method", unnamed_method(*config, side)));
  for (const Reader& r : kReaders) {
    if (r.method == method) {
      QuantizationSummary summary = r.read({*config, linears, tensor}, format);
      if (name) *name = format;
      return summary;
    }
    known += (known.empty() ? "" : ", ") + std::string(r.method);
  }
  fail(ErrorKind::unsupported, config->where + ".quant_method: found \"" + method + "\"" + elsewhere(method) +
                                   "; known: " + known + ", bitsandbytes");
}

}  // namespace fewbit
