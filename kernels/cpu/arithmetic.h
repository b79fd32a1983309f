#pragma once
#include <string>

#include "src/core/dtype.h"

namespace fewbit {

// What the last bits of products on this CPU depend on: "OpenBLAS SkylakeX".
std::string cpu_arithmetic();
// Loads what multiplies on the CPU, with its buffers, so that what is left of memory is looked at with it in place.
void load_cpu_products();
// What multiplies bf16 with bf16: "AMX" or "AVX512-BF16" (kernels/cpu/tile_product.h), or "OpenBLAS", widened to f32.
std::string cpu_bf16_products();
// What a calibration computes in unless it is told: bf16 on a GPU and on a CPU that multiplies it itself, else f32.
DType usual_dtype(bool on_gpu);
// A device (Exec::device_name()) as reports name it: "NVIDIA H200", "CPU (2 threads) with bf16 by AMX". Tables in CSV
// hold it, so there is no comma in it.
std::string device_and_products(const std::string& device, bool on_cuda);

}  // namespace fewbit
