#pragma once
// Streamed: a pass over many sequences with one block at a time on the device, for models that are larger
// than it.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "src/run/block.h"
#include "src/run/head.h"

namespace fewbit {

struct StreamedPass {
  std::span<const int32_t> ids{};  // [seqs, len]
  int64_t seqs = 1;
  int64_t batch_seqs = 1;                                       // sequences per forward pass
  std::function<void(int64_t done, int64_t total)> progress{};  // blocks
};
// Every block is loaded once and run over all sequences; the states wait on the device where they take less
// than half of what is free, else in host memory. `take(begin, end, x, ends)` then gets the states [(end -
// begin) * len, hidden] of sequences [begin, end) behind the last block. Returns notes as Runner::notes().
std::vector<std::string> run_streamed(
    Exec&, const Checkpoint&, const LoadOptions&, const StreamedPass&,
    const std::function<void(int64_t begin, int64_t end, ConstTensorView x, const Ends&)>& take);

}  // namespace fewbit
