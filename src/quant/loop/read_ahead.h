#pragma once
// Reading ahead: the disk brings the tensors of the next block into the system's memory while this one is computed.
#include <cstdint>

#include "src/model/checkpoint.h"

namespace fewbit {

// Asks the system to read the tensors of the block, and does not wait for it. What it reads is the system's own memory,
// which it takes back where a program needs it. A file system that cannot is left alone.
void read_ahead(const Checkpoint&, int64_t layer);

}  // namespace fewbit
