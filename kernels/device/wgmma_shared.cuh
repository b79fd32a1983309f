#pragma once
// wgmma with both operands in shared memory, in the shapes that kernels/device/hopper.cuh does not have; its header
// says what the operands are.
#include "kernels/device/hopper.cuh"

namespace fewbit::cuda {

#ifdef FEWBIT_SM90A
#define FEWBIT_D8(i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define FEWBIT_D32(i) FEWBIT_D8(i), FEWBIT_D8(i + 8), FEWBIT_D8(i + 16), FEWBIT_D8(i + 24)

// d [64 x 32] = a b, or d += a b; both from wgmma_matrix().
__device__ __forceinline__ void wgmma_shared(float (&d)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0;\n}\n"
      : FEWBIT_D8(0), FEWBIT_D8(8)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
// d [64 x 128] += a b; b from wgmma_matrix_transposed().
__device__ __forceinline__ void wgmma_shared_transposed(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, 1, 1, 1, 0, 1;\n"
      : FEWBIT_D32(0), FEWBIT_D32(32)
      : "l"(a), "l"(b));
}
#undef FEWBIT_D32
#undef FEWBIT_D8
#endif

}  // namespace fewbit::cuda
