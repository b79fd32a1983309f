#pragma once
// Whether the inputs of an FP8 checkpoint are rounded where it is judged.
#include <string>

#include "src/run/linear.h"

namespace fewbit {

// What --dtype float32 makes of a published checkpoint of `quant_method: fp8` with dynamic activations: the values of
// its codes with inputs as they are, which is what transformers computes once it has dequantized it and what a
// quantization starts from. Folders that fewbit wrote (they have its report) and every other format keep rounding as an
// engine does, and so does bf16.
LoadOptions with_exact_inputs(LoadOptions, const Checkpoint&);
// One line where that left inputs unrounded; "" elsewhere.
std::string exact_inputs_line(const LoadOptions&);
// "exact" where checkpoint or arithmetic leave every input unrounded, else "rounded".
std::string inputs_word(const LoadOptions&, const Checkpoint&);

}  // namespace fewbit
