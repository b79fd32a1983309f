#pragma once
// The calls to NCCL, as a table that the module fewbit_nccl.so hands out (nccl_module.cpp): as with MPI, the programs
// are not linked with it, and one process loads nothing.
#include <array>
#include <cstdint>

namespace fewbit {

// What rank 0 makes and all give to start(): ncclUniqueId.
using NcclId = std::array<char, 128>;

// Each call that returns int returns 0 or an error of NCCL. `stream`: a cudaStream_t, on which the work is put; a call
// does not wait for it.
struct NcclCalls {
  static constexpr int kVersion = 1;  // of this table
  int version;
  const char* (*library)();  // "NCCL 2.28.9"
  // The GPU's place on its machine, "0000:1b:00.0": two ranks may not have one.
  int (*gpu)(int device, char* line, int size);
  int (*make_id)(NcclId*);
  int (*start)(const NcclId*, int rank, int size, int device, void** link);  // collective
  // Messages between begin_group() and end_group() are under way together; those to and from one rank keep their order.
  int (*begin_group)();
  int (*end_group)();
  int (*send)(void* link, const void* data, int64_t bytes, int to, void* stream);
  int (*receive)(void* link, void* data, int64_t bytes, int from, void* stream);
  int (*broadcast)(void* link, void* data, int64_t bytes, int root, void* stream);
  void (*text)(int error, char* line, int size);
  void (*finish)(void* link);
};
// The one symbol of the module: `extern "C" const NcclCalls* fewbit_nccl_calls()`.
using NcclCallsOf = const NcclCalls* (*)();

}  // namespace fewbit
