#pragma once
// fp4_values: the values of MXFP4 (OCP Microscaling Formats, version 1.0), E2M1 codes under powers of two, in tiles
// (kernels/grids/fp4_tiles.h).
#include <optional>

#include "kernels/exec/exec.h"
#include "kernels/grids/fp4_tiles.h"
namespace fewbit {
// The largest code of a scale that kernels take: 2^(code - 127) times a code's value is exact in bf16 up to here, by
// one multiplication. Weights reach 12 under it.
inline constexpr int kMostFp4Scale = 128;
struct Fp4View {
  ConstTensorView tiles{};  // [out / 16, fp4_tile_words(in)] u32, at multiples of 16 bytes; scales up to kMostFp4Scale
  int64_t in = 0;           // a multiple of kFp4Block
  int64_t out() const { return tiles.rows() * kFp4TileOuts; }
};
// Tiles of codes [out, in] u8 and their scales [out, in / 32] f32, powers of two, all on the host; nothing where a
// scale is above 2^(kMostFp4Scale - 127). `out` is a multiple of 16.
std::optional<Tensor> fp4_tiles(const Tensor& codes, const Tensor& scales);
//   w  [out, in]  bf16; overwritten with the values, all exact
namespace cpu {
void fp4_values(Exec&, const Fp4View& q, TensorView w);
}
namespace cuda {
void fp4_values(Exec&, const Fp4View& q, TensorView w);
}
inline void fp4_values(Exec& ex, const Fp4View& q, TensorView w) {
  FEWBIT_ASSERT(w.dtype == DType::bf16 && w.rows() == q.out() && w.cols() == q.in && q.in % kFp4Block == 0);
  FEWBIT_ASSERT(q.tiles.dtype == DType::u32 && q.tiles.cols() == fp4_tile_words(q.in));
  pick(ex, &cpu::fp4_values, FEWBIT_CUDA_OP(fp4_values))(ex, q, w);
}
}  // namespace fewbit
