// The table of GPUs. Every figure stands in the document named behind it; those were compared with copies and product
// pages on 2026-11-26, but for rates of products of the A10 and RTX 6000 Ada, int8 of the RTX 3090 and FP8 of the RTX
// 5090: no page was at hand, and they stand as ratios to cards of the same chip. Where a sheet gives a rate with
// sparsity alone, half of it stands here; where it gives one for sums in f16, which GeForce cards have at twice the
// rate, that for sums in f32. Compute capabilities are those of NVIDIA's table (developer.nvidia.com/cuda-gpus). Links:
// NVLink as the sheet says, halved, for it counts both directions; else the slot, PCIe 4.0 x16 32 GB/s and PCIe 5.0 x16
// 64 GB/s.
#include "src/run/plan/gpus.h"

#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/core/text/nearest.h"

namespace fewbit {
namespace {

// clang-format off
constexpr GpuModel kGpus[] = {
//  name          title                       GiB  GB/s   cc   bf16    fp8     int8    fp4     link           GB/s
    {"rtx3090",    "GeForce RTX 3090",         24,  936,   86,  71,     0,      284,    0,      "PCIe 4.0 x16", 32,
     "NVIDIA Ampere GA102 GPU architecture whitepaper V2, appendix A (142 and 285 with sums in f16)"},
    {"rtx4090",    "GeForce RTX 4090",         24,  1008,  89,  165.2,  330.3,  660.6,  0,      "PCIe 4.0 x16", 32,
     "NVIDIA Ada GPU architecture whitepaper, appendix A"},
    {"rtx5090",    "GeForce RTX 5090",         32,  1792,  120, 209.5,  419,    838,    1676,   "PCIe 5.0 x16", 64,
     "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A (3,352 AI TOPS: FP4 with sparsity)"},
    {"rtx6000ada", "RTX 6000 Ada Generation",  48,  960,   89,  364.2,  728.5,  728.5,  0,      "PCIe 4.0 x16", 32,
     "NVIDIA RTX 6000 Ada data sheet (1,457 TFLOPS: FP8 with sparsity)"},
    {"rtxpro6000", "RTX PRO 6000 Blackwell",   96,  1792,  120, 503.8,  1007.6, 1007.6, 2015.2, "PCIe 5.0 x16", 64,
     "NVIDIA RTX PRO 6000 Blackwell Workstation data sheet (4,000 AI TOPS: FP4 with sparsity)"},
    {"a10",        "A10",                      24,  600,   86,  125,    0,      250,    0,      "PCIe 4.0 x16", 32,
     "NVIDIA A10 data sheet"},
    {"l4",         "L4",                       24,  300,   89,  121,    242.5,  242.5,  0,      "PCIe 4.0 x16", 32,
     "NVIDIA L4 data sheet (242 and 485 with sparsity)"},
    {"l40s",       "L40S",                     48,  864,   89,  362.05, 733,    733,    0,      "PCIe 4.0 x16", 32,
     "NVIDIA L40S data sheet"},
    {"a100-40gb",  "A100 40GB SXM",            40,  1555,  80,  312,    0,      624,    0,      "NVLink 3",     300,
     "NVIDIA A100 data sheet (NVLink 600 GB/s)"},
    {"a100",       "A100 80GB SXM",            80,  2039,  80,  312,    0,      624,    0,      "NVLink 3",     300,
     "NVIDIA A100 data sheet (NVLink 600 GB/s)"},
    {"h100",       "H100 SXM",                 80,  3350,  90,  989.5,  1979,   1979,   0,      "NVLink 4",     450,
     "NVIDIA H100 data sheet (1,979 and 3,958 with sparsity, NVLink 900 GB/s)"},
    {"h200",       "H200 SXM",                 141, 4800,  90,  989.5,  1979,   1979,   0,      "NVLink 4",     450,
     "NVIDIA H200 data sheet (1,979 and 3,958 with sparsity, NVLink 900 GB/s)"},
    {"b200",       "B200 SXM",                 180, 8000,  100, 2250,   4500,   4500,   9000,   "NVLink 5",     900,
     "NVIDIA Blackwell architecture technical brief, HGX B200; DGX B200 data sheet, an eighth of its 1,440 GB and "
     "64 TB/s (NVLink 1.8 TB/s)"},
};
// clang-format on

}  // namespace

std::span<const GpuModel> gpu_models() { return kGpus; }

const GpuModel& gpu_model(std::string_view name, std::string_view flag) {
  std::vector<std::string_view> known;
  for (const GpuModel& g : kGpus) {
    if (g.name == name) return g;
    known.push_back(g.name);
  }
  fail(ErrorKind::usage, unknown_name(flag, name, known));
}

}  // namespace fewbit
