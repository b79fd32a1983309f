#pragma once
// Values that blocks of a launch hand each other through CudaState::mailbox(), each its own sign that it is there: a
// word whose bits are all set has not been written yet. No arithmetic gives that word (the NaN that it gives is
// 0x7fffffff). One thread writes a word, once a launch and behind await_predecessor(); one thread takes it and leaves
// it empty for a later launch. That saves what a counter costs beside the values' own way: a fence, and two more trips
// to the L2. Blocks that wait must be resident together.
#include <cstdint>

namespace fewbit::cuda {

inline constexpr uint32_t kEmptyLetter = 0xffffffffu;

// As it is now, zeros where it is not wanted; all four words in one request, past the first-level cache.
__device__ __forceinline__ float4 peek_letter(const float4* at, bool wanted) {
  float4 v{};
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}\n"
               : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
               : "l"(at), "r"(static_cast<int>(wanted))
               : "memory");
  return v;
}
__device__ __forceinline__ float peek_word(const float4* at) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];\n" : "=f"(v) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ bool has_empty(const float4& v) {
  return max(max(__float_as_uint(v.x), __float_as_uint(v.y)), max(__float_as_uint(v.z), __float_as_uint(v.w))) ==
         kEmptyLetter;
}
// Of a sum of letters: one of them may be empty. NaN where it is.
__device__ __forceinline__ bool may_lack(const float4& sum) { return isnan(sum.x + sum.y + sum.z + sum.w); }
// `empty`: kEmptyLetter four times, the same registers for every letter.
__device__ __forceinline__ void empty_letter(float4* at, const uint32_t (&empty)[4], bool wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.cg.v4.u32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(at),
               "r"(empty[0]), "r"(empty[1]), "r"(empty[2]), "r"(empty[3]), "r"(static_cast<int>(wanted))
               : "memory");
}

}  // namespace fewbit::cuda
