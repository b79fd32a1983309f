#pragma once
// Instructions of compute capability 9.0a for the wide matrix kernels: bulk copies into shared memory that arrive at an
// mbarrier, and wgmma, the matrix product of a warpgroup (four warps, the first one's number a multiple of four) with
// one or both operands in shared memory. Code that uses them stands behind FEWBIT_SM90A; other architectures compile it
// to nothing and must not launch it.
//
// D (64 x N, f32) += A (64 x 16, bf16) * B (16 x N, bf16), A in registers or shared memory. Warp w has rows
// 16 w .. 16 w + 15 of A in the layout of mma.m16n8k16 (kernels/device/mma.cuh), and those of D in the layout of N / 8
// results of it side by side. Registers of A and D belong to the tensor cores from wgmma_fence() until wgmma_wait()
// says that the product's group is complete.
#include <cuda.h>

#include "kernels/device/barrier.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FEWBIT_SM90A 1
#endif

namespace fewbit::cuda {

#ifdef FEWBIT_SM90A

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_publish() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
}
// Arrives once and adds `bytes` of copies that the phase waits for. Here and in the copies, shared memory is given by
// pointer or by address.
template <class Barrier>
__device__ __forceinline__ void barrier_expect(Barrier barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Adds the bytes without an arrival.
__device__ __forceinline__ void barrier_expect_more(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// barrier_wait() and barrier_arrive() by address; here the waiting warp sleeps.
__device__ __forceinline__ void barrier_await(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra "
      "again_%=;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Copies neighbouring bytes; addresses and size are multiples of 16.
template <class Shared, class Barrier>
__device__ __forceinline__ void bulk_copy(Shared shared, const void* global, uint32_t bytes, Barrier barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// Asks for neighbouring bytes to be brought into the L2 cache, and waits for nothing; address and size as above.
__device__ __forceinline__ void bulk_prefetch(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(global), "r"(bytes) : "memory");
}
// Asks for a tensor map, so that the first copy by it does not wait for it.
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}
// Copies the box of a matrix at (column, row). What lies outside of the matrix becomes zeros, which count as copied
// bytes.
template <class Shared, class Barrier>
__device__ __forceinline__ void bulk_copy_box(Shared shared, const CUtensorMap* matrix, int column, int row,
                                              Barrier barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];\n" ::"r"(shared_address(shared)),
      "l"(matrix), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}
template <class Shared, class Barrier>
__device__ __forceinline__ void bulk_copy_box(Shared shared, const CUtensorMap* array, int column, int row, int plane,
                                              Barrier barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];\n" ::"r"(shared_address(shared)),
      "l"(array), "r"(column), "r"(row), "r"(plane), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void bulk_copy_box(void* shared, const CUtensorMap* array, int column, int row, int plane,
                                              int volume, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(shared_address(shared)),
      "l"(array), "r"(column), "r"(row), "r"(plane), "r"(volume), "r"(shared_address(barrier))
      : "memory");
}

// Copies one box to all blocks of the cluster: to the same address of each one's shared memory, where a barrier at the
// same address expects it.
template <int kBlocks>
__device__ __forceinline__ void bulk_copy_box_to_all(uint32_t shared, const CUtensorMap* matrix, int column, int row,
                                                     uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;\n" ::"r"(shared),
      "l"(matrix), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<uint16_t>((1 << kBlocks) - 1))
      : "memory");
}

template <int kBlocks>
__device__ __forceinline__ void bulk_copy_box_to_all(uint32_t shared, const CUtensorMap* array, int column, int row,
                                                     int plane, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;\n" ::"r"(shared),
      "l"(array), "r"(column), "r"(row), "r"(plane), "r"(barrier), "h"(static_cast<uint16_t>((1 << kBlocks) - 1))
      : "memory");
}

// All threads of the cluster wait for each other; what they did to their barriers before is visible to all after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire."
      "aligned;\n" ::
          : "memory");
}
// The address of a place of shared memory in block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in_cluster(uint32_t shared, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}
// Arrives at a barrier of another block. This orders reads by the tensor cores that have been waited for before copies
// into the same memory. Other accesses would need `release`, which is slower because it waits for all of them.
__device__ __forceinline__ void barrier_arrive_in_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Copies a box from shared memory to a matrix; what lies outside of the matrix is left out. Ordinary stores to the box
// must be published before (publish_shared()). bulk_store_commit() makes the thread's boxes since its last commit a
// group.
__device__ __forceinline__ void bulk_store_box(const CUtensorMap* matrix, int column, int row, uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n" ::"l"(matrix),
               "r"(column), "r"(row), "r"(shared)
               : "memory");
}
__device__ __forceinline__ void bulk_store_box(const CUtensorMap* array, int column, int row, int plane,
                                               uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];\n" ::"l"(array),
               "r"(column), "r"(row), "r"(plane), "r"(shared)
               : "memory");
}
// Stores four 8x8 matrices of 16-bit values, transposed: the opposite of ldmatrix_transposed (kernels/device/mma.cuh).
__device__ __forceinline__ void stmatrix_transposed(uint32_t row, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}
__device__ __forceinline__ void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
// Waits until all but the last kPending of this thread's groups have read their shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}
// Orders ordinary stores to shared memory before reads by the tensor cores or the copy engine that follow it and a
// barrier.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// True in one lane of a converged warp.
__device__ __forceinline__ bool elected() {
  uint32_t one;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n" : "=r"(one));
  return one;
}
// Sets the registers of each thread from here on, to more or fewer; all of a warpgroup call it. Together the block may
// not have more registers than at its launch.
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

// The descriptor of B as rows of N with 64 neighbouring values of k each, 128 bytes a row, in the 128-byte swizzle; the
// first row at a multiple of 1,024 bytes. Adding 2 moves it 16 values along k (PTX ISA, "Matrix Descriptor Format" of
// wgmma).
template <class Shared>
__device__ __forceinline__ uint64_t wgmma_matrix(Shared shared) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (shared_address(shared) & 0x3ffff) >> 4;
}
// The descriptor of B as rows of k with 64 neighbouring values of N each, 128 bytes a row, in the same swizzle; the
// next 64 values of N lie `plane` bytes on. Adding 128 moves it 16 values along k.
template <class Shared>
__device__ __forceinline__ uint64_t wgmma_matrix_transposed(Shared shared, uint32_t plane) {
  return (wgmma_matrix(shared) & ~(uint64_t{0x3fff} << 16)) | uint64_t{plane >> 4} << 16;
}
// The descriptor of B in pieces of 8 x 8 values, 128 neighbouring bytes each, without a swizzle: the next 8 values of k
// lie `along_k` bytes on, the next 8 of N `along_n`. Transposed or not is how the values lie in a piece.
template <class Shared>
__device__ __forceinline__ uint64_t wgmma_pieces(Shared shared, uint32_t along_k, uint32_t along_n) {
  return uint64_t{along_n >> 4} << 32 | uint64_t{along_k >> 4} << 16 | (shared_address(shared) & 0x3ffff) >> 4;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads of the sums before a wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&v)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(v[i])::"memory");
}

#define FEWBIT_D8(i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define FEWBIT_D32(i) FEWBIT_D8(i), FEWBIT_D8(i + 8), FEWBIT_D8(i + 16), FEWBIT_D8(i + 24)

// d = a b, or d += a b. kTransposed: b from wgmma_matrix_transposed().
__device__ __forceinline__ void wgmma(float (&d)[16], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}\n"
      : FEWBIT_D8(0), FEWBIT_D8(8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
template <bool kTransposed = false>
__device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
      : FEWBIT_D32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
        "n"(static_cast<int>(kTransposed)));
}
template <bool kTransposed = false>
__device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
      : FEWBIT_D32(0), FEWBIT_D32(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),
        "n"(static_cast<int>(kTransposed)));
}
// The same with A in shared memory too, laid out like B.
__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;\n}\n"
      : FEWBIT_D32(0), FEWBIT_D32(32)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma(float (&d)[128], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, p, 1, 1, 0;\n}\n"
      : FEWBIT_D32(0), FEWBIT_D32(32), FEWBIT_D32(64), FEWBIT_D32(96)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
#undef FEWBIT_D32
#undef FEWBIT_D8

#endif

}  // namespace fewbit::cuda
