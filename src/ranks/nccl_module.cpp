// The module fewbit_nccl.so: NCCL behind the table of nccl_calls.h. The only file that knows NCCL.
#include <nccl.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "src/ranks/nccl_calls.h"

namespace fewbit {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

ncclComm_t comm_of(void* link) { return static_cast<ncclComm_t>(link); }
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

const char* library() {
  static const std::string line = [] {
    int v = 0;
    ncclGetVersion(&v);
    return "NCCL " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
  }();
  return line.c_str();
}

int gpu(int device, char* line, int size) {
  return cudaDeviceGetPCIBusId(line, size, device) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

int make_id(NcclId* id) {
  ncclUniqueId made;
  const ncclResult_t r = ncclGetUniqueId(&made);
  std::memcpy(id->data(), &made, sizeof made);
  return r;
}

// Ways between the GPUs are made by the first message over them, which takes NCCL some tenths of a second: here they
// are made beside whatever else the program begins with.
ncclResult_t make_ways(ncclComm_t comm, int rank, int size) {
  constexpr size_t kBytes = size_t{1} << 20;
  cudaStream_t stream = nullptr;
  char* room = nullptr;
  ncclResult_t r = ncclUnhandledCudaError;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
      cudaMalloc(&room, kBytes * static_cast<size_t>(size)) == cudaSuccess) {
    r = ncclGroupStart();
    for (int other = 0; other < size && r == ncclSuccess; ++other) {
      if (other == rank) continue;
      r = ncclSend(room + kBytes * static_cast<size_t>(rank), kBytes, ncclInt8, other, comm, stream);
      if (r == ncclSuccess)
        r = ncclRecv(room + kBytes * static_cast<size_t>(other), kBytes, ncclInt8, other, comm, stream);
    }
    if (const ncclResult_t end = ncclGroupEnd(); r == ncclSuccess) r = end;
    if (r == ncclSuccess) r = ncclBroadcast(room, room, kBytes, ncclInt8, 0, comm, stream);
    if (r == ncclSuccess && cudaStreamSynchronize(stream) != cudaSuccess) r = ncclUnhandledCudaError;
  }
  cudaFree(room);
  if (stream) cudaStreamDestroy(stream);
  return r;
}

int start(const NcclId* id, int rank, int size, int device, void** link) {
  ncclUniqueId of_all;
  std::memcpy(&of_all, id->data(), sizeof of_all);
  if (cudaSetDevice(device) != cudaSuccess) return ncclUnhandledCudaError;
  ncclComm_t comm = nullptr;
  const ncclResult_t r = ncclCommInitRank(&comm, size, of_all, rank);
  *link = comm;
  return r == ncclSuccess ? make_ways(comm, rank, size) : r;
}

int begin_group() { return ncclGroupStart(); }
int end_group() { return ncclGroupEnd(); }

int send(void* link, const void* data, int64_t bytes, int to, void* stream) {
  return ncclSend(data, static_cast<size_t>(bytes), ncclInt8, to, comm_of(link), stream_of(stream));
}

int receive(void* link, void* data, int64_t bytes, int from, void* stream) {
  return ncclRecv(data, static_cast<size_t>(bytes), ncclInt8, from, comm_of(link), stream_of(stream));
}

int broadcast(void* link, void* data, int64_t bytes, int root, void* stream) {
  return ncclBroadcast(data, data, static_cast<size_t>(bytes), ncclInt8, root, comm_of(link), stream_of(stream));
}

void text(int error, char* line, int size) {
  std::snprintf(line, static_cast<size_t>(size), "%s", ncclGetErrorString(static_cast<ncclResult_t>(error)));
}

void finish(void* link) { ncclCommDestroy(comm_of(link)); }

}  // namespace
}  // namespace fewbit

extern "C" const fewbit::NcclCalls* fewbit_nccl_calls() {
  using namespace fewbit;
  static const NcclCalls calls{.version = NcclCalls::kVersion,
                               .library = library,
                               .gpu = gpu,
                               .make_id = make_id,
                               .start = start,
                               .begin_group = begin_group,
                               .end_group = end_group,
                               .send = send,
                               .receive = receive,
                               .broadcast = broadcast,
                               .text = text,
                               .finish = finish};
  return &calls;
}
