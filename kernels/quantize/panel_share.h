#pragma once
// PanelShare: the processes that factor one matrix together on the CPU.
#include <cstdint>
#include <functional>
#include <span>

namespace fewbit {

// Each of the processes has the whole matrix and updates its own tiles of rows, dealt in turn; after each panel all
// have its columns. The products are those of one process, and with them the bits.
struct PanelShare {
  int rank = 0, size = 1;
  // Collective: process r has the bytes [begin[r], begin[r + 1]) of `all`, and then everybody has all of them.
  std::function<void(void* all, std::span<const int64_t> begin)> gather{};
  bool alone() const { return size == 1; }
};

}  // namespace fewbit
