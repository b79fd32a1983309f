#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2")
#endif
#define HASH_CALLS kHashAvx2
#include "src/core/xxh3/define_hash_calls.h"
#endif
