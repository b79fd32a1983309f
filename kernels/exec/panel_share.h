#pragma once
// PanelShare: the processes that factor one matrix together.
#include <cstdint>
#include <functional>
#include <span>

#include "src/core/tensor.h"

namespace fewbit {

class Exec;

// Each of the processes has the whole matrix and updates its own tiles of rows, dealt in turn; after each panel all
// have its columns. The products are those of one process, and with them the bits.
struct PanelShare {
  int rank = 0, size = 1;
  // Collective: process r has the bytes [begin[r], begin[r + 1]) of `all`, and then everybody has all of them.
  std::function<void(void* all, std::span<const int64_t> begin)> gather{};
  // The same of rows of a matrix on a GPU, in the order of the Exec's stream.
  std::function<void(Exec&, TensorView all, std::span<const int64_t> begin)> gather_rows{};
  bool alone() const { return size == 1; }
};

}  // namespace fewbit
