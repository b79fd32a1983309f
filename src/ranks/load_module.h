#pragma once
// The modules that lie in ../lib/fewbit beside the program's folder.
#include "src/ranks/launch.h"
#include "src/ranks/mpi_calls.h"
#include "src/ranks/nccl_calls.h"

namespace fewbit {

// Loads fewbit_mpi.so; of processes that scripts/local_ranks started, nothing. Error{usage} where it is absent or MPI
// cannot be loaded.
const MpiCalls* load_mpi(const Launch& launch);
// Loads fewbit_nccl.so; null where the build has none, or this machine no NCCL.
const NcclCalls* load_nccl();

}  // namespace fewbit
