#include "src/core/host_blocks.h"

#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>

namespace fewbit {
namespace {

constexpr size_t kSmall = size_t{1} << 20;  // below it the heap has the block
constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;
constexpr int64_t kMostKept = int64_t{256} << 20;  // the outputs of some ops of a chunk; more would lie idle

// Large blocks ask for huge pages where the system leaves the choice to programs: a stream of weights otherwise waits
// for address translation every 4 KiB.
bool is_huge(size_t bytes) { return bytes >= 2 * kHugePage; }

size_t padded(size_t bytes) {
  const size_t unit = is_huge(bytes) ? kHugePage : kPage;
  return (bytes + unit - 1) / unit * unit;
}

void* map(size_t bytes) {
  const size_t more = is_huge(bytes) ? kHugePage : 0;  // so much is cut off again around an aligned block
  void* at = ::mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  if (more == 0) return at;
  char* const begin = static_cast<char*>(at);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  if (more > before) ::munmap(begin + before + bytes, more - before);
#ifdef MADV_HUGEPAGE
  ::madvise(begin + before, bytes, MADV_HUGEPAGE);
#endif
  return begin + before;
}

class Blocks {
 public:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto same = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Block& b) { return b.bytes == bytes; });
    void* at = nullptr;
    if (same != kept_.rend()) {
      at = same->at;
      count_.kept -= static_cast<int64_t>(bytes);
      kept_.erase(std::next(same).base());
    } else {
      keep_at_most(count_.most_used - count_.used - static_cast<int64_t>(bytes));
      at = map(bytes);
      if (!at) {
        keep_at_most(0);
        at = map(bytes);
      }
      if (!at) return nullptr;
    }
    count_.used += static_cast<int64_t>(bytes);
    count_.most_used = std::max(count_.most_used, count_.used);
    return at;
  }

  void give(void* at, size_t bytes) {
    const std::lock_guard lock(mutex_);
    count_.used -= static_cast<int64_t>(bytes);
    try {
      kept_.push_back({at, bytes});
    } catch (const std::bad_alloc&) {
      ::munmap(at, bytes);
      return;
    }
    count_.kept += static_cast<int64_t>(bytes);
    keep_at_most(kMostKept);
  }

  HostBlocks count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  void drop() {
    const std::lock_guard lock(mutex_);
    keep_at_most(0);
  }

 private:
  struct Block {
    void* at;
    size_t bytes;
  };
  // The ones that were given first go first.
  void keep_at_most(int64_t bytes) {
    while (!kept_.empty() && count_.kept > bytes) {
      ::munmap(kept_.front().at, kept_.front().bytes);
      count_.kept -= static_cast<int64_t>(kept_.front().bytes);
      kept_.pop_front();
    }
  }

  std::mutex mutex_{};
  std::deque<Block> kept_{};
  HostBlocks count_{};
};

// Never destroyed: tensors with static lifetime give their blocks back after everything else.
Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}

}  // namespace

void* take_host_block(size_t bytes) {
  if (bytes < kSmall) return std::aligned_alloc(64, (bytes + 127) / 64 * 64);
  return blocks().take(padded(bytes));
}

void give_host_block(void* block, size_t bytes) noexcept {
  if (bytes < kSmall)
    std::free(block);
  else if (block)
    blocks().give(block, padded(bytes));
}

HostBlocks host_blocks() { return blocks().count(); }

void drop_kept_blocks() { blocks().drop(); }

void return_freed_memory() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);  // setting it ends its growth
  ::mallopt(M_TRIM_THRESHOLD, 4 << 20);
#endif
}

}  // namespace fewbit
