#pragma once
// Reading ahead: the disk brings the tensors of the next block into the system's memory while this one is computed, and
// its weights go on to the device in the order in which they will be asked for.
#include <cstdint>
#include <vector>

#include "src/calib/upload_ahead.h"
#include "src/model/checkpoint.h"
#include "src/quant/loop/background.h"

namespace fewbit {

// Asks the system to read the tensors of the block, and does not wait for it. What it reads is the system's own memory,
// which it takes back where a program needs it. A file system that cannot is left alone.
void read_ahead(const Checkpoint&, int64_t layer);

// The stored weight of a linear will be taken; nothing where it is not in a file as it is.
void foresee(UploadAhead&, const Checkpoint&, const NamedLinear&);
// The same of several of the stored type `dtype`, which come into memory of their own.
void foresee_whole(UploadAhead&, const Checkpoint&, const std::vector<NamedLinear>&, DType dtype);
// The values, [out, in] in `dtype` on the device; empty where it is not on its way. Error as WeightStore::expect() has
// it.
Tensor taken_ahead(UploadAhead&, const Checkpoint&, const NamedLinear&, DType dtype);

// The stored weight of a linear is not wanted for now: as WeightStore::release(), by a thread of the background where
// that only gives a mapped file's pages back, some 8 ms for those of a block.
void release_beside(Background&, const Checkpoint&, const NamedLinear&);

}  // namespace fewbit
