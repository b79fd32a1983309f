#pragma once
// cast: conversion between float types.
#include "kernels/exec/exec.h"
namespace fewbit {
// y = x, element by element; equal element counts, any shapes.
//   x  f32 | f16 | bf16 | f8_e4m3 | f8_e5m2
//   y  f32 | f16 | bf16 | f8_e4m3; overwritten
// Narrowing rounds to the nearest, ties to even; E4M3 saturates at +-448 (OCP OFP8, 2023). Equal dtypes are a copy.
namespace cpu {
void cast(Exec&, ConstTensorView x, TensorView y);
}
namespace cuda {
void cast(Exec&, ConstTensorView x, TensorView y);
}
inline void cast(Exec& ex, ConstTensorView x, TensorView y) { pick(ex, &cpu::cast, FEWBIT_CUDA_OP(cast))(ex, x, y); }
}  // namespace fewbit
