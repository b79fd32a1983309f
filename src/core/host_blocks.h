#pragma once
// Host memory of tensors. Large blocks come from the system and go back to it, with a few kept in between: a pass over
// a model takes blocks of the same sizes over and over, and fresh ones cost a fault for every page. What is kept never
// makes the program larger than its blocks in use were at their most, so that a plan of those is a plan of the memory.
#include <cstddef>
#include <cstdint>

namespace fewbit {

// Uninitialised, aligned to 64 bytes, to a huge page where it is large; null where the system has none left.
void* take_host_block(size_t bytes);
// Of take_host_block(), with the size that was asked for.
void give_host_block(void* block, size_t bytes) noexcept;

struct HostBlocks {  // the large ones, in bytes as the system counts them
  int64_t used = 0, kept = 0, most_used = 0;
};
HostBlocks host_blocks();
void drop_kept_blocks();  // to the system

// For programs, at their start: what else the process allocates goes back to the system when it is freed. glibc by
// itself keeps up to 64 MiB for every thread, growing with what was freed before.
void return_freed_memory();

}  // namespace fewbit
