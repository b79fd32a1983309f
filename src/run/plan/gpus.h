#pragma once
// GPUs as their makers' data sheets have them: the one table that `quantize advise` and `runner plan` read.
#include <span>
#include <string_view>

namespace fewbit {

// Rates are peaks without sparsity, sums in f32: what no program exceeds. 0: the GPU has no such products.
struct GpuModel {
  std::string_view name{};  // of --gpu and --device
  std::string_view title{};
  double memory_gib = 0;
  double read_gbs = 0;     // 10^9 bytes a second
  int capability = 0;      // 89: compute capability 8.9
  double bf16_tflops = 0;  // 10^12 operations a second
  double fp8_tflops = 0, int8_tops = 0, fp4_tflops = 0;
  std::string_view link{};  // what GPUs of one machine are joined by
  double link_gbs = 0;      // in one direction, 10^9 bytes a second
  std::string_view source{};
};
std::span<const GpuModel> gpu_models();
// `flag` is what an unknown name is blamed on: Error{usage} with the nearest and the known ones.
const GpuModel& gpu_model(std::string_view name, std::string_view flag = "--gpu");

}  // namespace fewbit
