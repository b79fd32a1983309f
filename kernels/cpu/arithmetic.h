#pragma once
#include <string>

namespace fewbit {

// What the last bits of products on this CPU depend on: "OpenBLAS SkylakeX".
std::string cpu_arithmetic();
// What multiplies bf16 with bf16: "AMX" (kernels/cpu/tile_product.h), or "OpenBLAS", widened to f32.
std::string cpu_bf16_products();

}  // namespace fewbit
