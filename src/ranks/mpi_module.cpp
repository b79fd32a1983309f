// The module fewbit_mpi.so: MPI behind the table of mpi_calls.h. The only file that knows MPI.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "src/ranks/mpi_calls.h"

namespace fewbit {
namespace {

// Counts of MPI are ints; a longer message goes in pieces, which MPI keeps in order.
constexpr int64_t kPiece = int64_t{1} << 30;

MPI_Comm g_node = MPI_COMM_NULL;  // the processes of this machine

struct Request {
  std::vector<MPI_Request> pieces;
  std::vector<int> bytes;  // of a message to receive; empty of one to send
  size_t done = 0;
};

int ended(const Request& r, const MPI_Status& status) {
  if (r.bytes.empty()) return MPI_SUCCESS;
  int found = 0;
  const int error = MPI_Get_count(&status, MPI_BYTE, &found);
  if (error != MPI_SUCCESS) return error;
  return found == r.bytes[r.done] ? MPI_SUCCESS : MpiCalls::kWrongLength;
}

const char* library() {
  static const std::string line = [] {
    std::vector<char> text(MPI_MAX_LIBRARY_VERSION_STRING);
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    // Open MPI goes on after a comma, MPICH after a line; MPICH has tabs after its colons.
    std::string all(text.data(), static_cast<size_t>(length));
    all.resize(std::min(all.find_first_of(",\n"), all.size()));
    std::replace(all.begin(), all.end(), '\t', ' ');
    return all;
  }();
  return line.c_str();
}

int start(Place* place) {
  // The caller keeps to one call at a time; which thread makes it is its own affair.
  int provided = 0;
  int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(MPI_COMM_WORLD, &place->rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(MPI_COMM_WORLD, &place->size);
  if (error == MPI_SUCCESS)
    error = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, place->rank, MPI_INFO_NULL, &g_node);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(g_node, &place->node_rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(g_node, &place->node_size);
  return error;
}

int node_gather(const void* mine, void* all, int bytes) {
  return MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, g_node);
}

// Begins each piece of a message by begin_piece(offset, bytes, &request).
template <class BeginPiece>
int begin(int64_t bytes, bool receives, void** request, const BeginPiece& begin_piece) {
  auto r = std::make_unique<Request>();
  for (int64_t at = 0; at < bytes || at == 0; at += kPiece) {
    const int n = static_cast<int>(std::min(kPiece, bytes - at));
    const int error = begin_piece(at, n, &r->pieces.emplace_back());
    if (error != MPI_SUCCESS) return error;
    if (receives) r->bytes.push_back(n);
  }
  *request = r.release();
  return MPI_SUCCESS;
}

int send(const void* data, int64_t bytes, int to, int tag, void** request) {
  return begin(bytes, false, request, [&](int64_t at, int n, MPI_Request* piece) {
    return MPI_Isend(static_cast<const char*>(data) + at, n, MPI_BYTE, to, tag, MPI_COMM_WORLD, piece);
  });
}

int receive(void* data, int64_t bytes, int from, int tag, void** request) {
  return begin(bytes, true, request, [&](int64_t at, int n, MPI_Request* piece) {
    return MPI_Irecv(static_cast<char*>(data) + at, n, MPI_BYTE, from, tag, MPI_COMM_WORLD, piece);
  });
}

int wait(void* request) {
  const std::unique_ptr<Request> r(static_cast<Request*>(request));
  for (; r->done < r->pieces.size(); ++r->done) {
    MPI_Status status;
    int error = MPI_Wait(&r->pieces[r->done], &status);
    if (error == MPI_SUCCESS) error = ended(*r, status);
    if (error != MPI_SUCCESS) return error;
  }
  return MPI_SUCCESS;
}

int test(void* request, bool* done) {
  Request* r = static_cast<Request*>(request);
  *done = false;
  for (; r->done < r->pieces.size(); ++r->done) {
    MPI_Status status;
    int there = 0;
    int error = MPI_Test(&r->pieces[r->done], &there, &status);
    if (error == MPI_SUCCESS && !there) return MPI_SUCCESS;
    if (error == MPI_SUCCESS) error = ended(*r, status);
    if (error != MPI_SUCCESS) return error;
  }
  delete r;
  *done = true;
  return MPI_SUCCESS;
}

int broadcast(void* data, int64_t bytes, int root) {
  for (int64_t at = 0; at < bytes; at += kPiece) {
    const int n = static_cast<int>(std::min(kPiece, bytes - at));
    const int error = MPI_Bcast(static_cast<char*>(data) + at, n, MPI_BYTE, root, MPI_COMM_WORLD);
    if (error != MPI_SUCCESS) return error;
  }
  return MPI_SUCCESS;
}

int barrier() { return MPI_Barrier(MPI_COMM_WORLD); }

void text(int error, char* line, int size) {
  if (error == MpiCalls::kWrongLength) {
    std::snprintf(line, static_cast<size_t>(size), "a message has another length than its receiver expects");
    return;
  }
  std::vector<char> words(MPI_MAX_ERROR_STRING);
  int length = 0;
  MPI_Error_string(error, words.data(), &length);
  std::snprintf(line, static_cast<size_t>(size), "%.*s", length, words.data());
}

int finish() {
  MPI_Comm_free(&g_node);
  return MPI_Finalize();
}

void abort_all(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

}  // namespace
}  // namespace fewbit

extern "C" const fewbit::MpiCalls* fewbit_mpi_calls() {
  using namespace fewbit;
  static const MpiCalls calls{.version = MpiCalls::kVersion,
                              .library = library,
                              .start = start,
                              .node_gather = node_gather,
                              .send = send,
                              .receive = receive,
                              .wait = wait,
                              .test = test,
                              .broadcast = broadcast,
                              .barrier = barrier,
                              .text = text,
                              .finish = finish,
                              .abort = abort_all};
  return &calls;
}
