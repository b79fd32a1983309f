#include "src/core/parallel.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "src/core/inline_parallel.h"
#include "src/core/threads/pool.h"

namespace fewbit {
namespace {

int default_threads() {
  if (const char* e = std::getenv("FEWBIT_THREADS")) {
    const int n = std::atoi(e);
    if (n > 0) return n;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::atomic<int> g_requested{0};

Pool& pool() {
  static Pool p(g_requested > 0 ? g_requested.load() : default_threads());
  return p;
}

}  // namespace

InlineParallel::InlineParallel() : before_(std::exchange(Pool::inside(), true)) {}
InlineParallel::~InlineParallel() { Pool::inside() = before_; }

void set_thread_count(int threads) { g_requested = threads; }
int thread_count() { return pool().threads(); }

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(1, grain);
  const int64_t chunks = (n + grain - 1) / grain;
  if (Pool::inside() || chunks == 1 || pool().threads() == 1) {
    for (int64_t c = 0; c < chunks; ++c) body(c * grain, std::min(n, (c + 1) * grain));
    return;
  }
  PoolJob job;
  job.n = n;
  job.grain = grain;
  job.chunks = chunks;
  job.body = &body;
  pool().run(job);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace fewbit
