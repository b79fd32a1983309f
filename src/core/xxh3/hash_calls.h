#pragma once
// XXH3 by vectors of three widths, for src/core/digest.cpp; the digests are the same. The library of the distribution
// is compiled for every x86-64, whose 128-bit vectors reach two thirds of the speed of wider ones; here the kernels of
// xxhash.h are compiled anew in files that may use the instructions.
#include <cstddef>
#include <cstdint>

namespace fewbit {

struct HashCalls {
  void* (*start)();  // a state; null where there is no memory
  void (*add)(void* state, const void* bytes, size_t count);
  void (*finish)(void* state, uint8_t digest[16]);  // canonical order of bytes; frees the state
};

extern const HashCalls kHashPlain;  // what every processor has
#if defined(__x86_64__)
extern const HashCalls kHashAvx2, kHashAvx512;
#endif

}  // namespace fewbit
