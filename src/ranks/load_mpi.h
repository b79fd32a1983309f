#pragma once
#include "src/ranks/launch.h"
#include "src/ranks/mpi_calls.h"

namespace fewbit {

// Loads fewbit_mpi.so, which lies in ../lib/fewbit beside the program's folder. Error{usage} where it is absent or MPI
// cannot be loaded.
const MpiCalls* load_mpi(const Launch& launch);

}  // namespace fewbit
