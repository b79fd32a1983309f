#pragma once
// XXH3 with wide vectors, for src/core/digest.cpp: the library of the distribution is compiled for every x86-64 and has
// 128-bit ones, at two thirds of the speed. The digests are the same. The kernels are those of xxhash.h, compiled anew
// in files that may use the instructions.
#include <cstddef>
#include <cstdint>

namespace fewbit {

struct WideHash {
  void* (*start)();  // a state; null where there is no memory
  void (*add)(void* state, const void* bytes, size_t count);
  void (*finish)(void* state, uint8_t digest[16]);  // canonical order of bytes; frees the state
};

#if defined(__x86_64__)
extern const WideHash kHashAvx2, kHashAvx512;
#endif

}  // namespace fewbit
