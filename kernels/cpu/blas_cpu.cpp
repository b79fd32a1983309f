// Sets OpenBLAS up, once in a process.
#include "kernels/cpu/blas_cpu.h"

#include <cstdlib>
#include <string>

#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/tile_product.h"

// Functions of OpenBLAS built with DYNAMIC_ARCH; null elsewhere.
extern "C" {
__attribute__((weak)) void gotoblas_dynamic_init();
__attribute__((weak)) void gotoblas_dynamic_quit();
}

namespace fewbit::blas {
namespace {

// OpenBLAS 0.3.21 chooses its kernels by the processor's model number. A model younger than the release gets SSE3 code,
// three to four times slower than what the machine can do. This chooses again by instruction set, where that is better.
void choose_kernels_by_instruction_set() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (!gotoblas_dynamic_init || !gotoblas_dynamic_quit || std::getenv("OPENBLAS_CORETYPE")) return;
  const std::string chosen = openblas_get_corename();
  if (chosen != "Prescott" && chosen != "Core2" && chosen != "Nehalem" && chosen != "Sandybridge") return;
  __builtin_cpu_init();
  const char* better = __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") ? "SkylakeX"
                       : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")        ? "Haswell"
                                                                                                : nullptr;
  if (!better) return;
  setenv("OPENBLAS_CORETYPE", better, 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv("OPENBLAS_CORETYPE");
#endif
}

}  // namespace

void use_one_thread() {
  static const bool once = (choose_kernels_by_instruction_set(), openblas_set_num_threads(1), true);
  (void)once;
}

}  // namespace fewbit::blas

std::string fewbit::cpu_arithmetic() {
  blas::use_one_thread();
  return std::string("OpenBLAS ") + openblas_get_corename();
}

std::string fewbit::cpu_bf16_products() {
  switch (cpu::tile_unit()) {
    case cpu::TileUnit::amx:
      return "AMX";
    case cpu::TileUnit::avx512:
      return "AVX512-BF16";
    case cpu::TileUnit::none:
      break;
  }
  return "OpenBLAS";
}

fewbit::DType fewbit::usual_dtype(bool on_gpu) {
  return on_gpu || cpu::tile_unit() != cpu::TileUnit::none ? DType::bf16 : DType::f32;
}

std::string fewbit::device_and_products(const std::string& device, bool on_cuda) {
  return on_cuda ? device : device + " with bf16 by " + cpu_bf16_products();
}
