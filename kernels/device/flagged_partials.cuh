#pragma once
// Flagged partial sums: values that blocks of a launch hand each other, each of which is its own flag, as in the LL
// protocol of collective communication. They lie in CudaState::flagged_partials(). A word whose bits are all set has
// not been written yet; no arithmetic gives that word (the NaN that the hardware produces is 0x7fffffff). One thread
// writes a word, once a launch and after await_predecessor(); one thread reads it and sets its bits again for a later
// launch. Compared with an arrival counter beside the values this saves a fence and two trips to the L2. Blocks that
// wait must be resident together.
#include <cstdint>

namespace fewbit::cuda {

inline constexpr uint32_t kUnwritten = 0xffffffffu;

// Four words as they are now, in one request that bypasses the L1; zeros where they are not wanted.
__device__ __forceinline__ float4 load_flagged(const float4* at, bool wanted) {
  float4 v{};
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}\n"
               : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
               : "l"(at), "r"(static_cast<int>(wanted))
               : "memory");
  return v;
}
__device__ __forceinline__ float load_flagged_word(const float4* at) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];\n" : "=f"(v) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ bool has_unwritten(const float4& v) {
  return max(max(__float_as_uint(v.x), __float_as_uint(v.y)), max(__float_as_uint(v.z), __float_as_uint(v.w))) ==
         kUnwritten;
}
// Of a sum of such values: true if one of them may have been unwritten, since then the sum is NaN.
__device__ __forceinline__ bool may_have_unwritten(const float4& sum) { return isnan(sum.x + sum.y + sum.z + sum.w); }
// Makes four words unwritten again. `unwritten`: kUnwritten four times; the caller passes the same registers every
// time.
__device__ __forceinline__ void clear_flagged(float4* at, const uint32_t (&unwritten)[4], bool wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.cg.v4.u32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(at),
               "r"(unwritten[0]), "r"(unwritten[1]), "r"(unwritten[2]), "r"(unwritten[3]), "r"(static_cast<int>(wanted))
               : "memory");
}

}  // namespace fewbit::cuda
