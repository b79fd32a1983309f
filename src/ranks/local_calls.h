#pragma once
// The calls of mpi_calls.h between processes of one machine, over Unix sockets, for machines without MPI:
// scripts/local_ranks starts them. They find each other in the folder FEWBIT_MEETING.
#include "src/ranks/mpi_calls.h"

namespace fewbit {

inline constexpr const char* kLocalLauncher = "local_ranks";  // as Launch::by
const MpiCalls* local_calls();

}  // namespace fewbit
