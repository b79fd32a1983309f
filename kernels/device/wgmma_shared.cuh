#pragma once
// wgmma in the shapes of attention over latents, which kernels/device/hopper.cuh does not have; its header says what
// the operands are.
#include "kernels/device/hopper.cuh"

namespace fewbit::cuda {

#ifdef FEWBIT_SM90A
#define FEWBIT_D8(i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define FEWBIT_D32(i) FEWBIT_D8(i), FEWBIT_D8(i + 8), FEWBIT_D8(i + 16), FEWBIT_D8(i + 24)
#define FEWBIT_NAMES32                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FEWBIT_NAMES128                                                                          \
  FEWBIT_NAMES32                                                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d [64 x 64] = a b, or d += a b; both from wgmma_matrix().
__device__ __forceinline__ void wgmma_shared(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FEWBIT_NAMES32 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : FEWBIT_D32(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
// d [64 x 256] += a b; b from wgmma_matrix_transposed().
__device__ __forceinline__ void wgmma_shared_transposed(float (&d)[128], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FEWBIT_NAMES128
               "}, %128, %129, 1, 1, 1, 0, 1;\n"
               : FEWBIT_D32(0), FEWBIT_D32(32), FEWBIT_D32(64), FEWBIT_D32(96)
               : "l"(a), "l"(b));
}
// The same with a in registers.
__device__ __forceinline__ void wgmma_transposed(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FEWBIT_NAMES128
               "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;\n"
               : FEWBIT_D32(0), FEWBIT_D32(32), FEWBIT_D32(64), FEWBIT_D32(96)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef FEWBIT_NAMES128
#undef FEWBIT_NAMES32
#undef FEWBIT_D32
#undef FEWBIT_D8
#endif

}  // namespace fewbit::cuda
