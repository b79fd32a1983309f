#pragma once
// parallel_for over one fixed pool of threads. Chunk boundaries depend on n and grain alone, never on the
// number of threads; a body must write only to what its own index range owns.
#include <cstdint>
#include <functional>

namespace fewbit {

// Number of threads used by parallel_for; 0 = FEWBIT_THREADS, else all cores. Call before the first use.
void set_thread_count(int threads);
int thread_count();

// Calls body(begin, end) for consecutive ranges of at most `grain` that cover [0, n). Exceptions of the body
// are rethrown in the caller (the first one by chunk order that was seen). Nested calls run inline.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace fewbit
