// Which unit multiplies bf16, and the way to it.
#include "kernels/cpu/tile_product.h"

#include <cstdlib>
#include <string_view>

#include "kernels/cpu/tile_registers.h"
#include "kernels/cpu/tile_units.h"

#ifdef FEWBIT_TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fewbit::cpu {

#ifdef FEWBIT_TILES
namespace {

bool turned_off(const char* variable) {
  const char* e = std::getenv(variable);
  return e && std::string_view(e) == "0";
}

bool amx_is_ours() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA: Linux asks to be asked
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

TileUnit best_unit() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") || turned_off("FEWBIT_BF16"))
    return TileUnit::none;
  return !turned_off("FEWBIT_AMX") && amx_is_ours() ? TileUnit::amx : TileUnit::avx512;
}

}  // namespace

TileUnit tile_unit() {
  static const TileUnit unit = best_unit();
  return unit;
}

void tile_product(ConstTensorView x, const TileWeight& w, const float* row_scales, ConstTensorView bias, TensorView y) {
  FEWBIT_ASSERT(tiles_fit(w.out, w.in) && x.dtype == DType::bf16 && x.cols() == w.in && w.row_bytes > 0);
  FEWBIT_ASSERT(!w.scales || (w.group % kTileCols == 0 && w.group > 0));
  if (x.rows() == 0) return;
  (tile_unit() == TileUnit::amx ? amx_product : avx512_product)(x, w, row_scales, bias, y);
}

#else

TileUnit tile_unit() { return TileUnit::none; }
void tile_product(ConstTensorView, const TileWeight&, const float*, ConstTensorView, TensorView) {
  bug("no products of bf16 on this machine");
}

#endif

bool tiles_fit(int64_t out, int64_t in) { return has_tiles() && out >= 16 && in > 0 && in % kTileCols == 0; }

}  // namespace fewbit::cpu
