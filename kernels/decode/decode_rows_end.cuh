#pragma once
// The end of a chunk of outputs in decode_rows.cuh: sums meet, and become what the next product or attention reads.
//
// The warps that have parts of the chunk's k, of both blocks of the cluster, are its "parties", in the order of k. A
// lane's sums are pairs, [sub-tile, column, half]: two tokens, 8 * column + 2 * (lane % 4) + 0 and 1, of output 16 *
// sub-tile + 8 * half + lane / 4. Each party finishes some neighbouring pairs, and all others send it theirs, as the
// registers lie.
#include "kernels/decode/decode_rows_job.cuh"
#include "kernels/device/hopper.cuh"

namespace fewbit::cuda {

inline constexpr int kMailBytes = 4096;  // of a warp: at most 16 parties' one pair, of 32 lanes
// numbers of barriers; 1 is compute_sync()'s
inline constexpr int kPairBarriers = 2, kTeamBarriers = kPairBarriers + kStepWarps;

#ifdef FEWBIT_SM90A
// The address of this block's `p` in another block of the cluster.
__device__ __forceinline__ uint32_t address_in_block(const void* p, int block) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(shared_address(p)), "r"(block));
  return there;
}
// Two values to an address of the cluster; the barrier there expects their bytes.
__device__ __forceinline__ void send_two(uint32_t to, uint32_t barrier, float a, float b) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%2, %3}, [%1];\n" ::"r"(to),
               "r"(barrier), "r"(__float_as_uint(a)), "r"(__float_as_uint(b))
               : "memory");
}
__device__ __forceinline__ void arrive_in_block(const uint64_t* barrier, int block) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(address_in_block(barrier, block))
               : "memory");
}

template <int kColumns>
struct RowsFinish {
  static constexpr int kPairs = marlin::kSubTiles * kColumns * 2, kSums = 2 * kPairs;  // of a lane
  const RowsStepJob& job;
  uint8_t* mail;              // [warps, kMailBytes], of which [party, pair, lane, 2] floats
  uint64_t *arrived, *taken;  // [warps]: the mail of the other block is there; that block has taken what was sent it
  float* reduce;              // [kStepWarps, kMostRows]
  uint32_t mail_parity = 0, taken_parity = 0;
  // of the token that this lane finishes; 1 / the root mean square
  float squares[kColumns] = {}, inverse[kColumns] = {};

  __device__ __forceinline__ int lane() const { return threadIdx.x % 32; }
  __device__ __forceinline__ int warp() const { return threadIdx.x / 32; }

  // A warp as a party.
  struct Party {
    int parties, me;
    int each_shift, stride_shift;  // log2 of the pairs that one finishes, and of how manieth does
    __device__ __forceinline__ Party(const RowsProduct& p, const RowsShare& share) {
      constexpr int kPairsShift = kColumns + 2;
      static_assert(kPairs == 1 << kPairsShift);
      const int shift = p.member_shift + 1;
      parties = 1 << shift;
      me = static_cast<int>(blockIdx.x % kStepSlices) << p.member_shift | share.member;
      each_shift = max(kPairsShift - shift, 0);
      stride_shift = max(shift - kPairsShift, 0);
    }
    __device__ __forceinline__ int each() const { return 1 << each_shift; }
    __device__ __forceinline__ bool finishes() const { return (me & ((1 << stride_shift) - 1)) == 0; }
    __device__ __forceinline__ int first_pair() const { return me >> stride_shift << each_shift; }
  };
  // What a lane finishes of pair n: one token's outputs col and col + 1, of this lane's neighbours.
  struct Place {
    int token, col;  // of the weight
    __device__ __forceinline__ Place(int n, int chunk, int lane)
        : token(n / 2 % kColumns * 8 + 2 * (lane % 4) + lane / 4 % 2),
          col(chunk * marlin::kTileN + n / (2 * kColumns) * 16 + n % 2 * 8 + lane / 8 * 2) {}
    __device__ __forceinline__ float power() const { return col % 16 < 8 ? kPrescale : kPrescaleUpper; }
  };

  // To all parties what they finish: a half of the pairs to those of the other block, by stores that arrive at a
  // barrier there.
  __device__ __forceinline__ void send(const RowsProduct& p, const RowsShare& share, const Party& party,
                                       const float (&total)[kSums]) const {
    const int slice = blockIdx.x % kStepSlices, member_shift = p.member_shift, members = 1 << member_shift;
    if (lane() == 0 && party.finishes()) barrier_expect(arrived + warp(), members * party.each() * 256);
    const uint32_t there_mail = address_in_block(mail, slice ^ 1), there_arrived = address_in_block(arrived, slice ^ 1);
    const int mine = party.me * party.each() * 256 + lane() * 8;
    const auto warp_of = [&](int n) {
      return share.team << member_shift | (n >> party.each_shift << party.stride_shift & (members - 1));
    };
    const auto place_of = [&](int n) { return mine + (n & (party.each() - 1)) * 256; };
#pragma unroll
    for (int n = 0; n < kPairs / 2; ++n) {
      const float a = slice == 0 ? total[kSums / 2 + 2 * n] : total[2 * n],
                  b = slice == 0 ? total[kSums / 2 + 2 * n + 1] : total[2 * n + 1];
      send_two(there_mail + warp_of(n) * kMailBytes + place_of(n), there_arrived + 8 * warp_of(n), a, b);
    }
#pragma unroll
    for (int n = 0; n < kPairs / 2; ++n) {
      const float a = slice == 0 ? total[2 * n] : total[kSums / 2 + 2 * n],
                  b = slice == 0 ? total[2 * n + 1] : total[kSums / 2 + 2 * n + 1];
      *reinterpret_cast<float2*>(mail + warp_of(n) * kMailBytes + place_of(n)) = {a, b};
    }
    if (members == 1)
      __syncwarp();
    else
      named_barrier_sync(kTeamBarriers + share.team, 32 * members);
  }
  // The sum over the parties, in the order of k, of what a warp was sent of its pair i.
  __device__ __forceinline__ float2 summed(int of_warp, const Party& party, int i) const {
    const auto* from = reinterpret_cast<const float*>(mail + of_warp * kMailBytes + i * 256) +
                       (lane() / 8 * 8 + lane() % 4) * 2 + lane() / 4 % 2;
    const int step = party.each() * 64;
    float2 v = {from[0] + from[step], from[8] + from[step + 8]};
#pragma unroll 2
    for (int q = 2; q < party.parties; q += 2) {
      from += 2 * step;
      v.x += from[0], v.y += from[8];
      v.x += from[step], v.y += from[step + 8];
    }
    return v;
  }

  // What the residual needs of a pair: the stream, and the weight of the norm that follows.
  struct Before {
    uint32_t stream = 0, norm = 0;
  };
  __device__ __forceinline__ Before read_before(const RowsProduct& p, const Party& party, int i, int chunk) const {
    Before b;
    const Place at(party.first_pair() + i, chunk, lane());
    if (p.end != RowsEnd::residual || !party.finishes() || i >= party.each() || at.token >= job.rows) return b;
    b.stream =
        __ldcg(reinterpret_cast<const uint32_t*>(job.stream + static_cast<int64_t>(at.token) * job.hidden + at.col));
    if (p.next_norm) b.norm = *reinterpret_cast<const uint32_t*>(p.next_norm + at.col);
    return b;
  }

  // All that a warp does at the end of a chunk, its team's `round`-th. `before`: of its first pair.
  __device__ __forceinline__ void end_chunk(const RowsProduct& p, const RowsShare& share, const Party& party,
                                            const RowsSeat& seat, int round, bool last, const Before& before,
                                            const float (&total)[kSums]) {
    if (round > 0) {  // a team is one warp then
      barrier_await(shared_address(taken + warp()), taken_parity);
      taken_parity ^= 1;
    }
    send(p, share, party, total);
    if (party.finishes()) {
      barrier_await(shared_address(arrived + warp()), mail_parity);
      mail_parity ^= 1;
    }
    if (p.end == RowsEnd::activated)
      finish_activated(p, party, seat);
    else if (party.finishes())
      finish(p, party, seat, before);
    if (!last && lane() == 0) arrive_in_block(taken + warp(), blockIdx.x % kStepSlices ^ 1);
  }
  __device__ __forceinline__ void finish(const RowsProduct& p, const Party& party, const RowsSeat& seat,
                                         Before before) {
    const int first = party.first_pair();
    __nv_bfloat16* const y = p.y[seat.weight];
    const __nv_bfloat16* const bias = p.bias[seat.weight];
    const int64_t out = p.out[seat.weight];
    const bool stores = p.end == RowsEnd::store, norm_follows = p.next_norm != nullptr, normed = p.normed;
#pragma unroll 1
    for (int i = 0; i < party.each(); ++i) {
      const Place at(first + i, seat.chunk, lane());
      const float2 sum = summed(warp(), party, i);
      const Before at_hand = before;
      before = read_before(p, party, i + 1, seat.chunk);
      if (at.token >= job.rows) continue;
      const float by = normed ? kUnscale * inverse_of(first + i) : kUnscale;
      float2 v = {sum.x * by, sum.y * by};
      if (stores) {
        if (bias) v.x += to_f32(bias[at.col]), v.y += to_f32(bias[at.col + 1]);
        *reinterpret_cast<uint32_t*>(y + at.token * out + at.col) = pack_bf16(v.x, v.y);
        continue;
      }
      float old[2], weight[2];
      unpack2(at_hand.stream, old[0], old[1]);
      unpack2(at_hand.norm, weight[0], weight[1]);
      v = {rounded(old[0] + v.x), rounded(old[1] + v.y)};
#pragma unroll
      for (int c = 0; c < kColumns; ++c) squares[c] += c == at.token / 8 ? fmaf(v.x, v.x, v.y * v.y) : 0;
      const int64_t to = static_cast<int64_t>(at.token) * job.hidden + at.col;
      *reinterpret_cast<uint32_t*>(job.stream + to) = pack_bf16(v.x, v.y);
      if (norm_follows)
        *reinterpret_cast<uint32_t*>(job.weighed + to) = pack_bf16(
            v.x * ((weight[0] + job.weight_offset) * at.power()), v.y * ((weight[1] + job.weight_offset) * at.power()));
    }
  }
  // Gate and up are of two warps, which share what they were sent.
  __device__ __forceinline__ void finish_activated(const RowsProduct& p, const Party& party,
                                                   const RowsSeat& seat) const {
    const int other = warp() ^ 1 << p.member_shift, number = kPairBarriers + min(warp(), other);
    const int gate_warp = seat.weight == 0 ? warp() : other, up_warp = seat.weight == 0 ? other : warp();
    named_barrier_sync(number, 64);
    if (party.finishes()) {
#pragma unroll 2
      for (int i = seat.weight; i < party.each(); i += 2) {
        const Place at(party.first_pair() + i, seat.chunk, lane());
        const float2 gates = summed(gate_warp, party, i), ups = summed(up_warp, party, i);
        if (at.token >= job.rows) continue;
        const float by = kUnscale * inverse_of(party.first_pair() + i);
        const auto one = [&](float gate, float up) {
          gate = rounded(gate * by);
          return rounded(__fdividef(gate, 1.f + __expf(-gate)) * rounded(up * by)) * at.power();
        };
        *reinterpret_cast<uint32_t*>(job.activated + static_cast<int64_t>(at.token) * job.inner + at.col) =
            pack_bf16(one(gates.x, ups.x), one(gates.y, ups.y));
      }
    }
    named_barrier_sync(number, 64);  // the mail has been read
  }

  // The blocks' squares of the stream, each thread its part of them: read early, added later.
  struct Squares {
    static constexpr int kParts = kStepThreads / kMostRows, kOfPart = kMostRowsBlocks / kParts;
    float v[kOfPart];
    __device__ __forceinline__ explicit Squares(const float* of_blocks) {
#pragma unroll
      for (int i = 0; i < kOfPart; ++i) {
        const int block = threadIdx.x / kMostRows + i * kParts;
        v[i] =
            block < static_cast<int>(gridDim.x) ? __ldcg(of_blocks + block * kMostRows + threadIdx.x % kMostRows) : 0;
      }
    }
    __device__ __forceinline__ float sum() const {
      float all = 0;
#pragma unroll
      for (int i = 0; i < kOfPart; ++i) all += v[i];
      return all;
    }
  };
  // compute_sync() must stand between these two, and behind the second before leave_squares().
  __device__ __forceinline__ void gather(const Squares& of_stream) const {
    float sum = of_stream.sum();
    sum += __shfl_xor_sync(0xffffffffu, sum, kMostRows);
    if (lane() < kMostRows) reduce[warp() * kMostRows + lane()] = sum;
  }
  __device__ __forceinline__ void set_inverse() {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int token = Place(2 * c, 0, lane()).token;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) sum += reduce[w * kMostRows + token];
      inverse[c] = 1.f / sqrtf(sum / static_cast<float>(job.hidden) + job.eps);
    }
  }
  // Of the token of pair n.
  __device__ __forceinline__ float inverse_of(int n) const {
    return kColumns == 2 && n / 2 % 2 == 1 ? inverse[kColumns - 1] : inverse[0];
  }
  // The squares of what the block has finished, to all blocks; a barrier must follow.
  __device__ __forceinline__ void leave_squares() {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      squares[c] += __shfl_xor_sync(0xffffffffu, squares[c], 8);
      squares[c] += __shfl_xor_sync(0xffffffffu, squares[c], 16);
      if (lane() < 8) reduce[warp() * kMostRows + Place(2 * c, 0, lane()).token] = squares[c];
      squares[c] = 0;
    }
    compute_sync();
    if (threadIdx.x < kMostRows) {
      float sum = 0;
      if (threadIdx.x < 8 * kColumns)
#pragma unroll
        for (int w = 0; w < kStepWarps; ++w) sum += reduce[w * kMostRows + threadIdx.x];
      job.squares[blockIdx.x * kMostRows + threadIdx.x] = sum;
    }
  }
};
#endif

}  // namespace fewbit::cuda
