#pragma once
// The CUDA stream of an Exec, for libraries that put work of their own on it (src/ranks/device_link.h).
#include "kernels/exec/exec.h"

namespace fewbit {

// A cudaStream_t; null on the CPU.
#ifdef FEWBIT_HAS_CUDA
void* native_stream(Exec&);
#else
inline void* native_stream(Exec&) { return nullptr; }
#endif

}  // namespace fewbit
