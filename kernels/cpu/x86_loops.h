#pragma once
// What the loops in x86 vector instructions over codes in memory have in common: FEWBIT_X86 is defined where they can
// be compiled.
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FEWBIT_X86 1
#endif

namespace fewbit::cpu {

// How far ahead codes are prefetched, in bytes. A cache line of codes has so little work that the processor's own
// reordering does not reach far enough to hide the memory's latency.
inline constexpr int64_t kPrefetchBytes = 2048;
// Rows of x that a loop multiplies with a row of codes at once: their sums stay in registers.
inline constexpr int kRowsAtOnce = 4;

}  // namespace fewbit::cpu
