#pragma once
// The calls to MPI, as a table that the module fewbit_mpi.so hands out (mpi_module.cpp). The programs are not linked
// with MPI: one process loads nothing, and a program that was built where MPI is runs where it is not.
#include <cstdint>

namespace fewbit {

// Where this process stands among those that were started together, and among those on its machine.
struct Place {
  int rank = 0, size = 1, node_rank = 0, node_size = 1;
};

// Each call that returns int returns 0, an error of MPI, or kWrongLength.
struct MpiCalls {
  static constexpr int kVersion = 1;  // of this table
  static constexpr int kWrongLength = -1;
  int version;
  const char* (*library)();  // "Open MPI v4.1.4 …", one line
  int (*start)(Place* place);
  // `bytes` of each process of this machine, side by side in the order of node_rank.
  int (*node_gather)(const void* mine, void* all, int bytes);
  // Begin a message of any length; it is ended, and `request` freed, by wait(), or by test() that finds it done.
  int (*send)(const void* data, int64_t bytes, int to, int tag, void** request);
  int (*receive)(void* data, int64_t bytes, int from, int tag, void** request);
  int (*wait)(void* request);
  int (*test)(void* request, bool* done);
  int (*broadcast)(void* data, int64_t bytes, int root);
  int (*barrier)();
  void (*text)(int error, char* line, int size);
  int (*finish)();
  void (*abort)(int exit_code);  // ends every process
};
// The one symbol of the module: `extern "C" const MpiCalls* fewbit_mpi_calls()`.
using MpiCallsOf = const MpiCalls* (*)();

}  // namespace fewbit
