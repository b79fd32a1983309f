#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx512f")
#endif
#define WIDE_HASH kHashAvx512
#include "src/core/xxh3/wide_hash_calls.h"
#endif
