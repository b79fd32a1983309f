#pragma once
// Where a checkpoint comes from, as its report says.
#include <string>

namespace fewbit {

// "quantize 'gptq' MODEL OUT, from model/ (2 files, digest 0123456789ab), made by convert to bf16 …, from …"; "" where
// the report (JSON) says nothing of it.
std::string origin_of_report(const std::string& report);

}  // namespace fewbit
