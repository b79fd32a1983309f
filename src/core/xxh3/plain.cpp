#define HASH_CALLS kHashPlain
#include "src/core/xxh3/define_hash_calls.h"
