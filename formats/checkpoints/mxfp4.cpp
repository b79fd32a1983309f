// --format mxfp4: gpt-oss as it is published, `quant_method` "mxfp4": the experts of a layer in stacks of blocks and
// scales, everything else in floats. The model layer takes the stacks apart (src/model/stacked_experts.h); here a
// linear is one expert's.
#include <nlohmann/json.hpp>

#include "formats/checkpoints/fewbit_map.h"
#include "formats/checkpoints/readers.h"

namespace fewbit {
namespace {

using nlohmann::ordered_json;

std::vector<const Packing*> candidates(const QuantSpec&) { return {&packing_mxfp4}; }

std::string write_config(const QuantizationSummary& summary) {
  if (summary.linears.empty()) return "";
  ordered_json ignored = summary.dense;
  ignored.push_back("lm_head");
  ignored.push_back("model.embed_tokens");
  return ordered_json{{"quant_method", "mxfp4"}, {"modules_to_not_convert", ignored}}.dump(2);
}

}  // namespace

QuantizationSummary read_mxfp4(const ReadRequest& r, std::string& name) {
  name = "mxfp4";
  const LinearFormat f{.packing = &packing_mxfp4, .spec = kMxfp4};
  QuantizationSummary out;
  for (const std::string& linear : r.linears)
    if (fewbit_map::packed(r.tensor, linear, f))
      out.linears[linear] = f;
    else
      out.dense.push_back(linear);
  return out;
}

constinit const CheckpointFormat format_mxfp4 = {
    .name = "mxfp4",
    .summary = "MXFP4 experts in stacks, as gpt-oss is published",
    .candidates = candidates,
    .write_config = write_config,
    .published = true,
    .stacked = true,
};

}  // namespace fewbit
