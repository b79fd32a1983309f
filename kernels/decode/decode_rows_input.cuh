#pragma once
// The activations of the products of decode_rows.cuh, in shared memory as the column operand reads them: 8 * kColumns
// rows of x.
#include "kernels/decode/decode_rows_job.cuh"
#include "kernels/device/hopper.cuh"

namespace fewbit::cuda {

// x as a warp streams it for itself: runs of 64 values of k of every row.
inline constexpr int kRunK = kPieceK / 2, kRunTiles = kPieceTiles / 2;
inline constexpr int kRunRow = 2 * kRunK + 16;  // bytes from row to row; + 16 for the banks, here and below
inline constexpr int kRunRows = 64;             // of all runs that a warp has room for
inline constexpr int kRunsBytes = kStepWarps * kRunRows * kRunRow;

#ifdef FEWBIT_SM90A
__device__ __forceinline__ void raise(uint8_t* at, bool lower) {
  auto* eight = reinterpret_cast<uint4*>(at);
  *eight = prescaled(*eight, lower);
}

template <int kColumns>
struct RowsX {
  static constexpr int kRuns = kRunRows / (8 * kColumns);  // that a warp has room for
  const RowsStepJob& job;
  // slice [rows, x_row]; or [warps, x_own] of own parts [rows, own_row()]; or [warps, kRuns, 8 * kColumns, kRunRow]
  uint8_t* x;
  float* starts;  // [pieces of the slice, kMostRows]: what codes - 8 take off
  uint64_t* slice_there;
  uint64_t* own_there;  // of this warp
  uint32_t slice_parity = 0, own_parity = 0;
  // Of the runs:
  const uint8_t* from = nullptr;  // this lane's of the first
  int64_t four_rows = 0;          // bytes
  int in_all = 0, of_chunk = 0;   // runs; of a chunk, after which they begin again
  int asked = 0, ahead = 0, done = 0;

  __device__ __forceinline__ int lane() const { return threadIdx.x % 32; }
  __device__ __forceinline__ int warp() const { return threadIdx.x / 32; }
  // The offset that this lane gives to ldmatrix, rows `row` bytes apart.
  __device__ __forceinline__ int lane_offset(int row) const {
    return subnormal_x_offset<kColumns>(lane(), job.rows, row);
  }
  static __device__ __forceinline__ const uint8_t* at(const RowsProduct& p, int row, int piece) {
    return reinterpret_cast<const uint8_t*>(p.x) + (int64_t{row} * p.pieces + piece) * kPieceRowBytes;
  }
  // What other blocks stored, before the copy engine reads it.
  static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async;\n" ::: "memory"); }

  // The block's slice, asked for; then there, for this thread.
  __device__ __forceinline__ void ask_slice(const RowsProduct& p, const RowsShare& share) const {
    const int bytes = share.length * kPieceRowBytes;
    publish();
    if (threadIdx.x == 0) barrier_expect(slice_there, job.rows * bytes);
    if (lane() == 0)
#pragma unroll 1
      for (int row = warp(); row < job.rows; row += kStepWarps)
        bulk_copy(x + row * job.x_row, at(p, row, share.k0), bytes, slice_there);
  }
  __device__ __forceinline__ void await_slice() {
    barrier_await(shared_address(slice_there), slice_parity);
    slice_parity ^= 1;
  }
  __device__ __forceinline__ const uint8_t* in_slice(int piece) const {
    return x + lane_offset(job.x_row) + piece * kPieceRowBytes;
  }
  __device__ __forceinline__ const float* starts_of(int piece) const {
    return starts + piece * kMostRows + lane() % 4 * 2;
  }
  __device__ __forceinline__ void set_starts(const RowsShare& share) const {
#pragma unroll 2
    for (int piece = warp(); piece < share.length; piece += kStepWarps) {
      float sum[2][kColumns][4] = {};  // two, because each waits for itself
#pragma unroll
      for (int tile = 0; tile < kPieceTiles; tile += 2 / kColumns) {
        uint32_t b[4];
        ldmatrix(b, in_slice(piece) + 32 * tile);
        add_subnormal_ones(sum[tile / 2 % 2], b);
      }
      if (lane() < 4)
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          *reinterpret_cast<float2*>(starts + piece * kMostRows + 8 * c + 2 * lane()) = {
              -8 * (sum[0][c][0] + sum[1][c][0]), -8 * (sum[0][c][1] + sum[1][c][1])};
    }
  }

  // The warp's own part, whole.
  static __device__ __forceinline__ int own_row(int pieces) { return pieces * kPieceRowBytes + 16; }
  __device__ __forceinline__ void take_own(const RowsProduct& p, const RowsShare& share) {
    const int pieces = share.end - share.begin, bytes = pieces * kPieceRowBytes;
    uint8_t* to = x + warp() * job.x_own;
    publish();
    if (lane() == 0) barrier_expect(own_there, job.rows * bytes);
    __syncwarp();
    if (lane() < job.rows && bytes > 0)
      bulk_copy(to + lane() * own_row(pieces), at(p, lane(), share.k0 + share.begin), bytes, own_there);
    barrier_await(shared_address(own_there), own_parity);
    own_parity ^= 1;
    if (p.plain)
#pragma unroll 1
      for (int row = 0; row < job.rows; ++row)
#pragma unroll 2
        for (int i = lane(); i < bytes / 16; i += 32) raise(to + row * own_row(pieces) + 16 * i, i % 2 == 0);
    __syncwarp();
  }
  __device__ __forceinline__ const uint8_t* in_own(const RowsShare& share) const {
    return x + warp() * job.x_own + lane_offset(own_row(share.end - share.begin));
  }

  // The same run by run, for so many chunks.
  __device__ __forceinline__ void start_runs(const RowsProduct& p, const RowsShare& share, int chunks) {
    from = at(p, lane() / 8, share.k0 + share.begin) + 16 * (lane() % 8);
    four_rows = int64_t{4} * p.pieces * kPieceRowBytes;
    of_chunk = 2 * (share.end - share.begin);
    in_all = chunks * of_chunk;
    asked = ahead = done = 0;
#pragma unroll 1
    for (int n = 0; n < kRuns; ++n) ask_run();
  }
  __device__ __forceinline__ uint8_t* run_at(int n) const {
    return x + (warp() * kRuns + n % kRuns) * (8 * kColumns * kRunRow);
  }
  // One group of copies in any case.
  __device__ __forceinline__ void ask_run() {
    if (asked < in_all) {
      uint8_t* to = run_at(asked) + lane() / 8 * kRunRow + 16 * (lane() % 8);
#pragma unroll
      for (int i = 0; i < 2 * kColumns; ++i)
        if (4 * i + lane() / 8 < job.rows) cp_async16(to + 4 * i * kRunRow, from + ahead * (2 * kRunK) + i * four_rows);
    }
    cp_async_commit();
    ++asked;
    if (++ahead == of_chunk) ahead = 0;
  }
  // The next one, for this lane.
  __device__ __forceinline__ const uint8_t* next_run(bool plain) {
    if (done > 0) {
      __syncwarp();  // all have read the one before
      ask_run();
    }
    cp_async_wait<kRuns - 1>();
    uint8_t* at = run_at(done++);
    if (plain)
#pragma unroll
      for (int i = 0; i < 2 * kColumns; ++i) {
        const int row = 4 * i + lane() / 8;
        // what it has copied itself
        if (row < job.rows) raise(at + row * kRunRow + 16 * (lane() % 8), lane() % 2 == 0);
      }
    __syncwarp();  // all lanes' copies are there
    return at + lane_offset(kRunRow);
  }
};
#endif

}  // namespace fewbit::cuda
