#pragma once
// What stands between two runs of attention in a decode step of 2 to 16 sequences, in one launch: o, gate and up, down
// of a layer, then q, k, v of the next, with the norms, the activation and the residual, and where asked RoPE and the
// append. As in decode_layers_kernel.cuh a block lives on every multiprocessor, warps of their own stream the weights
// through rings and run ahead while the blocks wait for each other, and the two blocks of a cluster have a half of k
// each.
//
// Codes are the row operand of bf16 products as they lie: masked out of their words they are bf16 subnormals, whose
// steps are equal; activations are the column operand, under a power of two that keeps the products normal
// (decode_rows_job.cuh). A norm's mean square is worked into its outputs, not its inputs, so that it need not be known
// before them.
#include "kernels/decode/decode_rows_append.cuh"
#include "kernels/decode/decode_rows_end.cuh"
#include "kernels/decode/decode_rows_input.cuh"
#include "kernels/device/launch.cuh"

namespace fewbit::cuda {

#ifdef FEWBIT_SM90A
// A warp's ring; the first `more` warps have a slot more than the others.
__device__ __forceinline__ StepRing rows_ring(uint8_t* rings, uint64_t* barriers, int warp, const RowsStepJob& job,
                                              int piece_bytes) {
  StepRing ring(rings, barriers, warp, job.slots, piece_bytes);
  ring.slots += min(warp, job.more) * piece_bytes;
  ring.count += warp < job.more;
  return ring;
}

// The life of a feeding warp: the pieces of its computing warp, product by product.
template <bool kZeros>
__device__ __forceinline__ void rows_feed(const RowsProduct* products, int count, const StepRing& ring, int warp) {
  int slot = 0;
  uint32_t parity = 1;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const RowsProduct& p = products[i];
    const RowsShare share(p, warp);
#pragma unroll 1
    for (int local = share.team; local < share.local; local += share.teams) {
      const RowsSeat seat(p, local);
      StepPackedSource<kZeros> source;
      source.seat(p.weights[seat.weight], p.out[seat.weight], 0, seat.chunk, share.k0 + share.begin);
      if constexpr (kZeros) source.seat_zeros(p.zeros[seat.weight], seat.chunk, share.k0 + share.begin);
#pragma unroll 1
      for (int k = share.begin; k < share.end; ++k)
        fill_slot<packed_piece_bytes(kZeros)>(ring, slot, parity, kMostUnderWay,
                                              [&](uint8_t* to) { source.fetch(to); });
    }
  }
  cp_async_wait<0>();
}

// What a computing warp does of a product.
template <int kColumns, bool kZeros>
struct RowsWarp {
  using Finish = RowsFinish<kColumns>;
  static constexpr int kSums = Finish::kSums;
  RowsX<kColumns> x;
  Finish end;
  StepRing ring;
  int slot = 0;
  uint32_t parity = 0;

  // Adds the ring's next piece times x. `half_at(half)` gives this lane's row of the first tile of half of the piece;
  // `starts` what codes - 8 take off, null where that is found on the way.
  template <bool kSlice, class HalfAt>
  __device__ __forceinline__ void multiply_piece(float (&total)[kSums], const float* starts, const HalfAt& half_at) {
    const int lane = threadIdx.x % 32;
    // off: of the two tokens, the sums of x times -8, or times 1
    float part[marlin::kSubTiles][kColumns][4], off[kColumns][4] = {};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (kSlice) off[c][0] = starts[8 * c], off[c][1] = starts[8 * c + 1];
#pragma unroll
      for (int j = 0; j < marlin::kSubTiles; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) part[j][c][i] = kSlice && !kZeros ? off[c][i % 2] : 0;
    }
    barrier_await(shared_address(ring.full + slot), parity);
    const uint8_t* piece = ring.slots + slot * packed_piece_bytes(kZeros);
    const auto* words = reinterpret_cast<const uint4*>(piece) + lane;
    uint32_t b[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint8_t* at = half_at(half);
#pragma unroll
      for (int i = 0; i < kRunTiles; ++i) {
        if (kColumns == 2 || i % 2 == 0) {
          ldmatrix(b, at + 32 * i);
          if (!kSlice) add_subnormal_ones(off, b);
        }
        const uint4 v = words[(half * kRunTiles + i) * (kTileBytes4 / 16)];
        const uint32_t of_tile[marlin::kSubTiles] = {v.x, v.y, v.z, v.w};
        add_subnormal_words(part, of_tile, i, b);
      }
    }
    const uint8_t* of_group = piece + kPieceTiles * kTileBytes4;
    alignas(16) __half scales[8];
    *reinterpret_cast<uint4*>(scales) =
        *reinterpret_cast<const uint4*>(of_group + 2 * marlin::fragment_scale(lane, 0, true));
    uint32_t zeros = 0;
    if constexpr (kZeros)
      zeros = reinterpret_cast<const uint32_t*>(of_group + marlin::kTileN * 2)[marlin::fragment_zero_word(lane, 0, 4)];
    __syncwarp();  // all lanes have read the slot
    if (lane < kArrivingLanes) barrier_arrive(ring.empty + slot);
    if (++slot == ring.count) slot = 0, parity ^= 1;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float unit = kSlice ? 0.f : -8.f;  // how often `off` is added
      if constexpr (kZeros)
        unit = small_integer(zeros >> (4 * marlin::fragment_zero_field(n, 4))) * (kSlice ? .125f : -1.f);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int token = 0; token < 2; ++token) {
          const int i = n % 2 * 2 + token;
          float v = part[n / 2][c][i];
          if (kZeros || !kSlice) v = fmaf(unit, off[c][token], v);
          float& sum = total[(n / 2 * kColumns + c) * 4 + i];
          sum = fmaf(__half2float(scales[n]), v, sum);
        }
    }
  }

  __device__ __forceinline__ void take_input(const RowsProduct& p, const RowsShare& share, int chunks) {
    if (p.input == RowsInput::runs) return x.start_runs(p, share, chunks);
    if (p.input == RowsInput::own) {
      if (chunks > 0) x.take_own(p, share);
      return;
    }
    const typename Finish::Squares squares(end.job.squares);
    if (share.local > 0) x.ask_slice(p, share);
    end.gather(squares);
    if (share.local > 0) x.await_slice();
    compute_sync();
    end.set_inverse();
    if (share.local > 0) x.set_starts(share);
    compute_sync();
  }
  __device__ __forceinline__ void run(const RowsProduct& p) {
    const RowsShare share(p, threadIdx.x / 32);
    const typename Finish::Party party(p, share);
    const RowsInput input = p.input;
    const bool plain = p.plain;
    // of the team
    const int chunks = share.local > share.team ? (share.local - share.team + share.teams - 1) / share.teams : 0;
    take_input(p, share, chunks);
#pragma unroll 1
    for (int round = 0; round < chunks; ++round) {
      const RowsSeat seat(p, share.team + round * share.teams);
      const auto before = end.read_before(p, party, 0, seat.chunk);
      float total[kSums] = {};
      if (input == RowsInput::slice) {
#pragma unroll 1
        for (int piece = share.begin; piece < share.end; ++piece)
          multiply_piece<true>(total, x.starts_of(piece),
                               [&](int half) { return x.in_slice(piece) + half * (2 * kRunK); });
      } else {
        const uint8_t* own = x.in_own(share) - 2 * kRunK;
#pragma unroll 1
        for (int piece = share.begin; piece < share.end; ++piece)
          multiply_piece<false>(total, nullptr,
                                [&](int) { return input == RowsInput::own ? own += 2 * kRunK : x.next_run(plain); });
      }
      end.end_chunk(p, share, party, seat, round, round + 1 == chunks, before, total);
    }
    if (p.end == RowsEnd::residual && p.next_norm) end.leave_squares();
  }
};
#endif

// C: what the cache holds.
template <int kColumns, bool kZeros, class C>
__global__ void __launch_bounds__(kAllStepThreads, 1) decode_rows_kernel(const __grid_constant__ RowsStepJob job) {
#ifdef FEWBIT_SM90A
  // Rings, x, mail, starts. The rings begin on a line: off one, every copy and load takes a pass more.
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kPieceBytes = packed_piece_bytes(kZeros);
  __shared__ RowsProduct products[kRowsProducts];
  __shared__ uint64_t barriers[kStepWarps * 2 * kMostSlots], arrived[kStepWarps], taken[kStepWarps],
      own_there[kStepWarps], slice_there;
  __shared__ float reduce[kStepWarps * kMostRows];
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(products) / 8); i += kAllStepThreads)
    reinterpret_cast<uint64_t*>(products)[i] = reinterpret_cast<const uint64_t*>(job.products)[i];
  if (threadIdx.x < kStepWarps) {
    rows_ring(shared, barriers, threadIdx.x, job, kPieceBytes).init();
    for (uint64_t* each : {arrived, taken, own_there}) barrier_init(each + threadIdx.x, 1);
  }
  if (threadIdx.x == 0) barrier_init(&slice_there, 1);
  __syncthreads();
  cluster_sync();  // the barriers are ready
  if (threadIdx.x >= kStepThreads) {
    give_registers<kFeedRegisters>();
    const int warp = (threadIdx.x - kStepThreads) / 32;
    return rows_feed<kZeros>(products, job.count, rows_ring(shared, barriers, warp, job, kPieceBytes), warp);
  }
  take_registers<kComputeRegisters>();
  const int warp = threadIdx.x / 32;
  uint8_t* x = shared + (kStepWarps * job.slots + job.more) * kPieceBytes;
  uint8_t* mail = x + job.x_bytes;
  auto* starts = reinterpret_cast<float*>(mail + kStepWarps * kMailBytes);
  RowsWarp<kColumns, kZeros> computing{
      .x = {.job = job, .x = x, .starts = starts, .slice_there = &slice_there, .own_there = own_there + warp},
      .end = {.job = job, .mail = mail, .arrived = arrived, .taken = taken, .reduce = reduce},
      .ring = rows_ring(shared, barriers, warp, job, kPieceBytes),
  };
  StepSync<false> sync{job.counters};
  await_predecessor();  // the feeding warps do not: weights are nobody's output
  allow_successor();    // every block has come here when it starts, so it takes no block's place
#pragma unroll 1
  for (int i = 0; i < job.count; ++i) {
    sync.wait();
    computing.run(products[i]);
    if (i + 1 < job.count) sync.arrive();
  }
  if (job.appends) {
    sync.arrive();
    RowsAppender<C> append(job.append, job.rows, x);
    append.set_angles(append.first() / append.of_row());
    sync.wait();
    append.run();
  } else {
    compute_sync();
  }
  sync.leave_unwaited();
#endif
}

}  // namespace fewbit::cuda
