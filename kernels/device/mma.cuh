#pragma once
// Instructions of compute capability 8.0 for the matrix kernels: mma.m16n8k16 on bf16 and f16 with f32 sums and
// m16n8k32 on int8, ldmatrix, and asynchronous copies into shared memory.
//
// With lane = 4 * g + t a warp holds (PTX ISA, "Matrix Fragments for mma.m16n8k16"; the lower half of a register is the
// lower k)
//   A (16 x 16)   a[0] row g, k 2t 2t+1     a[1] row g+8, same k   a[2] row g, k 2t+8 2t+9   a[3] row g+8, k 2t+8 2t+9
//   B (16 x 8)    b[0] k 2t 2t+1, column g  b[1] k 2t+8 2t+9, column g
//   C (16 x 8)    c[0] c[1] row g, columns 2t 2t+1                 c[2] c[3] row g+8, the same columns
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fewbit::cuda {

// c += a b
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same on f16.
__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += a b on int8, m16n8k32: where a register above holds two values at 2t, it holds four at 4t.
__device__ __forceinline__ void mma_i8(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with the first operand unsigned.
__device__ __forceinline__ void mma_u8(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8 (16-byte aligned).
// r[j] then holds, of matrix j, the values 2t and 2t+1 of row g; of column g when transposed.
__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], const void* row) {
  ldmatrix(r, static_cast<uint32_t>(__cvta_generic_to_shared(row)));
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Loads only the first two of the four matrices; lanes 0 to 15 give the addresses.
__device__ __forceinline__ void ldmatrix_two(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_two_transposed(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// An 8x8 matrix of 16-bit values, transposed in registers.
__device__ __forceinline__ uint32_t transposed(uint32_t v) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(r) : "r"(v));
  return r;
}

// A value that the compiler keeps in a register where it would otherwise compute it again each time round a loop: every
// instruction there delays the tensor cores.
template <class T>
__device__ __forceinline__ T kept(T v) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4)
    asm volatile("" : "+r"(v));
  else
    asm volatile("" : "+l"(v));
  return v;
}
__device__ __forceinline__ uint32_t kept_address(const void* shared) {
  return kept(static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
}
// Loads one, two and four words from an address of shared memory.
__device__ __forceinline__ uint32_t load_shared(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_shared2(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared4(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

// Loads kWords words.
template <int kWords>
__device__ __forceinline__ void load_shared_words(uint32_t (&v)[kWords], uint32_t at) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 1) {
    v[0] = load_shared(at);
  } else if constexpr (kWords == 2) {
    const uint2 two = load_shared2(at);
    v[0] = two.x, v[1] = two.y;
  } else {
    const uint4 four = load_shared4(at);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  }
}

__device__ __forceinline__ void store_shared(uint32_t at, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(at), "r"(v) : "memory");
}
// Stores 16 bytes where they are wanted; by a predicate, since behind a branch the compiler would compute the address
// again.
__device__ __forceinline__ void store_shared(uint32_t at, uint4 v, bool wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n}\n" ::"r"(at),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(static_cast<int>(wanted))
               : "memory");
}
// Loads 16 bytes of global memory past the L1; zeros where they are not wanted.
__device__ __forceinline__ uint4 load_past_l1(const uint4* at, bool wanted) {
  uint4 v{};
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(at), "r"(static_cast<int>(wanted))
               : "memory");
  return v;
}

// Copies 16 bytes (or 4) asynchronously from global to shared memory; zeros where !valid (the address must still be
// mapped).
__device__ __forceinline__ void cp_async16(uint32_t shared, const void* global, bool valid = true) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async16(void* shared, const void* global, bool valid = true) {
  cp_async16(static_cast<uint32_t>(__cvta_generic_to_shared(shared)), global, valid);
}
__device__ __forceinline__ void cp_async4(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until at most kPending of this thread's groups of copies are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Two f32 as two bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  const __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

}  // namespace fewbit::cuda
