// GPUs that `quantize advise` knows, as data. Memory and bandwidth are those of the data sheets, the compute capability
// that of NVIDIA's table (developer.nvidia.com/cuda-gpus).
#include "src/core/error.h"
#include "src/core/text/nearest.h"
#include "src/quant/plan/advise.h"

namespace fewbit {
namespace {

constexpr GpuModel kGpus[] = {
    {"rtx3090", "GeForce RTX 3090", 24, 936, 86, "NVIDIA Ampere GA102 whitepaper, table 2"},
    {"rtx4090", "GeForce RTX 4090", 24, 1008, 89, "NVIDIA Ada GPU architecture whitepaper, appendix A"},
    {"rtx5090", "GeForce RTX 5090", 32, 1792, 120, "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A"},
    {"rtx6000ada", "RTX 6000 Ada Generation", 48, 960, 89, "NVIDIA RTX 6000 Ada data sheet"},
    {"rtxpro6000", "RTX PRO 6000 Blackwell", 96, 1792, 120, "NVIDIA RTX PRO 6000 Blackwell data sheet"},
    {"a10", "A10", 24, 600, 86, "NVIDIA A10 data sheet"},
    {"l4", "L4", 24, 300, 89, "NVIDIA L4 data sheet"},
    {"l40s", "L40S", 48, 864, 89, "NVIDIA L40S data sheet"},
    {"a100-40gb", "A100 40GB SXM", 40, 1555, 80, "NVIDIA A100 data sheet"},
    {"a100", "A100 80GB SXM", 80, 2039, 80, "NVIDIA A100 data sheet"},
    {"h100", "H100 SXM", 80, 3350, 90, "NVIDIA H100 data sheet"},
    {"h200", "H200 SXM", 141, 4800, 90, "NVIDIA H200 data sheet"},
    {"b200", "B200 SXM", 180, 8000, 100, "NVIDIA DGX B200 data sheet, an eighth of its 1,440 GB and 64 TB/s"},
};

}  // namespace

std::span<const GpuModel> gpu_models() { return kGpus; }

const GpuModel& gpu_model(std::string_view name) {
  std::vector<std::string_view> known;
  for (const GpuModel& g : kGpus) {
    if (g.name == name) return g;
    known.push_back(g.name);
  }
  fail(ErrorKind::usage, unknown_name("--gpu", name, known));
}

}  // namespace fewbit
