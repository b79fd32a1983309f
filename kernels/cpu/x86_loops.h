#pragma once
// For loops in x86 vector instructions over codes that come from memory: FEWBIT_X86 where they can be compiled.
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FEWBIT_X86 1
#endif

namespace fewbit::cpu {

// bytes: too little work per line for the reordering of instructions to reach far enough
inline constexpr int64_t kAhead = 2048;
inline constexpr int kRowsAtOnce = 4;  // of x, for a row of codes

}  // namespace fewbit::cpu
