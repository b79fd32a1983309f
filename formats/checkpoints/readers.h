#pragma once
// One reader of quantization_config for every quant_method. Internal to formats/.
#include "formats/checkpoint_format.h"
#include "formats/config_object.h"

namespace fewbit {

struct ReadRequest {
  const ConfigObject& config;
  const std::vector<std::string>& linears;  // of the model
  const TensorSource& tensor;               // those that exist
};

// What patterns over the names of all linears may spend.
inline Regex::Effort effort_for(const std::vector<std::string>& linears) {
  size_t bytes = 0;
  for (const std::string& name : linears) bytes += name.size();
  return Regex::Effort(bytes);
}

// How every linear is packed; `name` receives the format's name. Which linears are packed is decided by the
// tensors that exist, how by the config. Error{unsupported|checkpoint} names the key.
QuantizationSummary read_gptq(const ReadRequest& r, std::string& name);
QuantizationSummary read_awq(const ReadRequest& r, std::string& name);
QuantizationSummary read_compressed_tensors(const ReadRequest& r, std::string& name);
QuantizationSummary read_fp8(const ReadRequest& r, std::string& name);
QuantizationSummary read_modelopt(const ReadRequest& r, std::string& name);
QuantizationSummary read_mxfp4(const ReadRequest& r, std::string& name);

}  // namespace fewbit
