#pragma once
// The products of decode_layers_kernel.cuh. The pieces reach the computing warps through rings of shared memory, filled
// by warps that do nothing else. What comes next is known from the start, through all products and layers, so that the
// weights stream on while the blocks wait for each other.
#include "kernels/decode/decode_layers_input.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/products/marlin/marlin_tile.cuh"

namespace fewbit::cuda {

// A warp's ring of pieces with the two barriers of every slot.
struct StepRing {
  uint8_t* slots;  // [count, bytes of a piece]
  uint64_t *full, *empty;
  int count;

  __device__ __forceinline__ StepRing(uint8_t* rings, uint64_t* barriers, int warp, int slots_of_a_warp,
                                      int piece_bytes)
      : slots(rings + warp * slots_of_a_warp * piece_bytes),
        full(barriers + warp * 2 * kMostSlots),
        empty(full + kMostSlots),
        count(slots_of_a_warp) {}
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < count; ++i) {
      barrier_init(full + i, 32);  // the copies of every lane of the feeder
      barrier_init(empty + i, kArrivingLanes);
    }
  }
};

// Arrives at the barrier when the copies that this thread has asked for so far are there.
__device__ __forceinline__ void barrier_arrive_behind_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ int clusters() { return gridDim.x / kStepSlices; }

// The next piece of a weight in the Marlin layout, for one lane.
template <bool kZeros>
struct StepPackedSource {
  const uint32_t* words = nullptr;
  const __half* scales = nullptr;
  const uint32_t* zeros = nullptr;
  int out = 0;  // of the weight

  // Piece k of chunk `chunk` of a weight [outputs, inputs].
  __device__ __forceinline__ void seat(const StepWeight& weight, int outputs, int /*inputs*/, int chunk, int k) {
    const int lane = threadIdx.x % 32;
    out = outputs;
    words = static_cast<const uint32_t*>(weight.codes) + static_cast<int64_t>(k) * kPieceTiles * (2 * out) +
            chunk * marlin::tile_words(4) + 4 * lane;
    scales = static_cast<const __half*>(weight.scales) + static_cast<int64_t>(k) * out + chunk * marlin::kTileN +
             8 * (lane % 8);
  }
  // After seat(), of the same piece: the weight's zero points.
  __device__ __forceinline__ void seat_zeros(const uint32_t* of_weight, int chunk, int k) {
    zeros = of_weight + static_cast<int64_t>(k) * (out / 8) + chunk * (marlin::kTileN / 8) + 4 * (threadIdx.x % 2);
  }
  // Asks for the piece and goes on to the next of the chunk.
  __device__ __forceinline__ void fetch(uint8_t* to) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kPieceTiles; ++i) cp_async16(to + i * kTileBytes4 + 16 * lane, words + i * (2 * out));
    if (lane < 8) cp_async16(to + kPieceTiles * kTileBytes4 + 16 * lane, scales);
    if constexpr (kZeros) {
      if (lane / 2 == 4) cp_async16(to + kPieceTiles * kTileBytes4 + 16 * lane, zeros);  // behind the scales
      zeros += out / 8;
    }
    words += kPieceTiles * (2 * out);
    scales += out;
  }
};

// Where a warp's pieces lie: walks over them product by product and layer by layer, through all layers or (not kWhole)
// the part of them that StepJob::first and end name.
template <class Weights, bool kWhole>
struct StepWalk {
  const StepJob& job;
  const typename Weights::Layer* layers;  // [count], in shared memory
  const StepPart* parts;                  // [kStepProducts], in shared memory
  int warp;
  int layer = 0, product = -1;
  int begin = 0, k = 0, end = 0;  // the warp's pieces of a chunk, and the one at hand
  int chunk = 0, rounds = 0;      // the chunk at hand, and how many are left with it
  typename Weights::Source source;

  __device__ __forceinline__ StepWalk(const StepJob& j, const typename Weights::Layer* in_layers,
                                      const StepPart* in_parts, int of_warp)
      : job(j), layers(in_layers), parts(in_parts), warp(of_warp) {
    if constexpr (!kWhole) product = job.first - 1;
    next_product();
  }
  __device__ __forceinline__ bool done() const {
    return kWhole ? layer == job.count : layer * kStepProducts + product >= job.end;
  }
  __device__ __forceinline__ void next_product() {
    do {
      if (++product == kStepProducts) product = 0, ++layer;
      if (done()) return;
      const StepPart& part = parts[product];
      begin = part.k0 + part.warp_begin(warp);
      end = part.k0 + part.warp_begin(warp + 1);
      chunk = part.chunk0;
      rounds = part.rounds;
    } while (begin == end || rounds == 0);
    seat();
  }
  __device__ __forceinline__ void seat() {
    const StepSeat at(job, product, chunk);
    k = begin;
    source.seat(layers[layer].weights[at.weight], job.out[at.weight], job.cut[product].pieces * kPieceK, at.chunk, k);
    if constexpr (Weights::kZeros) source.seat_zeros(layers[layer].zeros[at.weight], at.chunk, k);
  }
  // Asks for the piece at hand and goes on to the next.
  __device__ __forceinline__ void fetch(uint8_t* to) {
    source.fetch(to);
    if (++k < end) return;
    if (--rounds == 0) return next_product();
    chunk += clusters();
    seat();
  }
};

#ifdef FEWBIT_SM90A
// Fills slot `slot` with what `fetch(to)` asks for, once no more than `under_way` - 1 pieces are still on their way,
// and goes on.
template <int kBytes, class Fetch>
__device__ __forceinline__ void fill_slot(const StepRing& ring, int& slot, uint32_t& parity, int under_way,
                                          const Fetch& fetch) {
  barrier_await(shared_address(ring.empty + slot), parity);
  if (under_way == 1)
    cp_async_wait<0>();
  else
    cp_async_wait<kMostUnderWay - 1>();
  fetch(ring.slots + slot * kBytes);
  cp_async_commit();
#ifdef FEWBIT_RACECHECK  // racecheck does not follow copies that arrive by themselves
  cp_async_wait<0>();
  barrier_arrive(ring.full + slot);
#else
  barrier_arrive_behind_copies(ring.full + slot);
#endif
  if (++slot == ring.count) slot = 0, parity ^= 1;
}

// The life of a feeding warp: as far ahead as its ring has room, but with few pieces under way: together they keep the
// memory busy, and what the computing warps read and write in between waits behind them.
template <class Weights, bool kWhole>
__device__ __forceinline__ void step_feed(const StepJob& job, const typename Weights::Layer* layers,
                                          const StepPart* parts, const StepRing& ring, int warp) {
  StepWalk<Weights, kWhole> walk(job, layers, parts, warp);
  int slot = 0;
  uint32_t parity = 1;
  while (!walk.done())
    fill_slot<Weights::kPieceBytes>(ring, slot, parity, job.under_way, [&](uint8_t* to) { walk.fetch(to); });
  cp_async_wait<0>();
}
#endif

#ifdef FEWBIT_SM90A
// What a computing warp takes from its ring, in turn: pieces in the Marlin layout.
template <bool kZeros>
struct StepTaker {
  StepRing ring;
  int slot = 0;
  uint32_t parity = 0;

  // Adds the warp's next piece to the lane's totals by digit.
  __device__ __forceinline__ void multiply_piece(const StepInput& input, int index, const LimbLane& lane,
                                                 float (&total)[8]) {
    const uint8_t* x = input.x + index * kGroupLimbBytes + lane.offset;
    // Sums begin with what codes - 8 take off, or with nothing: then an eighth of that is taken for each unit of a zero
    // point.
    const int of_eight = lane.start(input.pieces[index]), start = kZeros ? kOffset : of_eight;
    int32_t part[2][4] = {{start, start, start, start}, {start, start, start, start}};
    const float piece_scale = input.pieces[index].scale;
    barrier_await(shared_address(ring.full + slot), parity);
    const uint8_t* slot_at = ring.slots + slot * packed_piece_bytes(kZeros);
    const auto* words = reinterpret_cast<const uint4*>(slot_at) + threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kPieceTiles / 4; ++half) {
      const uint4 digits = *reinterpret_cast<const uint4*>(x + limb_word_at(4 * half, 0, 0));
      lane.add_tile(part, words[(4 * half + 0) * (kTileBytes4 / 16)], digits.x);
      lane.add_tile(part, words[(4 * half + 1) * (kTileBytes4 / 16)], digits.y);
      lane.add_tile(part, words[(4 * half + 2) * (kTileBytes4 / 16)], digits.z);
      lane.add_tile(part, words[(4 * half + 3) * (kTileBytes4 / 16)], digits.w);
    }
    alignas(16) __half scales[8];
    *reinterpret_cast<uint4*>(scales) = *reinterpret_cast<const uint4*>(
        slot_at + kPieceTiles * kTileBytes4 + 2 * marlin::fragment_scale(threadIdx.x % 32, 0, true));
    uint32_t zeros = 0;
    if constexpr (kZeros)
      zeros = reinterpret_cast<const uint32_t*>(slot_at + kPieceTiles * kTileBytes4 +
                                                marlin::kTileN * 2)[marlin::fragment_zero_word(threadIdx.x % 32, 0, 4)];
    __syncwarp();  // all lanes have read the slot
    if (threadIdx.x % 32 < kArrivingLanes) barrier_arrive(ring.empty + slot);
    if (++slot == ring.count) slot = 0, parity ^= 1;
    const float unit = kZeros && lane.t < kLimbs ? LimbLane::value(of_eight) / 8 : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float sum = LimbLane::value(part[i / 4][i % 4]);
      if constexpr (kZeros) sum = fmaf(unit, small_integer(zeros >> (4 * marlin::fragment_zero_field(i, 4))), sum);
      total[i] = fmaf(__half2float(scales[i]) * piece_scale, sum, total[i]);
    }
  }
  // The warp's pieces of so many chunks; leaves the sums of each, [rounds, kStepWarps, 64].
  __device__ __forceinline__ void multiply_rounds(int begin, int end, int rounds, const StepInput& input, float* sums) {
    const LimbLane lane(threadIdx.x % 32);
    float* mine = sums + threadIdx.x / 32 * marlin::kTileN + marlin::fragment_output(threadIdx.x % 32, lane.t, 0);
#pragma unroll 1
    for (int r = 0; r < rounds; ++r, mine += kStepWarps * marlin::kTileN) {
      float total[8] = {};
#pragma unroll 1
      for (int index = begin; index < end; ++index) multiply_piece(input, index, lane, total);
      const float2 two = lane.gather(total);
      mine[0] = two.x;
      mine[8] = two.y;
    }
  }
};

// A value to the same place of the shared memory of another block of the cluster, whose barrier expects its bytes.
__device__ __forceinline__ void send_to_block(int block, float* to, uint64_t* barrier, float value) {
  asm volatile(
      "{\n.reg .b32 there, bar;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 bar, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [bar];\n}\n" ::"r"(shared_address(to)),
      "r"(shared_address(barrier)), "r"(block), "r"(__float_as_uint(value))
      : "memory");
}

// Where the blocks of a cluster leave each other's sums: two buffers in turn.
template <class Weights>
struct StepMail {
  static constexpr int kOwnOutputs = Weights::kOwnOutputs, kRoundsTogether = Weights::kRoundsTogether;
  float* sums;         // [2, kStepSlices, kRoundsTogether, kOwnOutputs]
  uint64_t* barriers;  // [2]
  int buffer = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ float* at(int slice) const {
    return sums + (buffer * kStepSlices + slice) * (kRoundsTogether * kOwnOutputs);
  }
  __device__ __forceinline__ void expect(int rounds) const {
    barrier_expect(barriers + buffer, rounds * kStepSlices * kOwnOutputs * static_cast<int>(sizeof(float)));
  }
  // Output n of round r of this block's sums, to the block of the cluster that finishes it.
  __device__ __forceinline__ void send(int slice, int r, int n, float value) const {
    send_to_block(n / kOwnOutputs, at(slice) + r * kOwnOutputs + n % kOwnOutputs, barriers + buffer, value);
  }
  __device__ __forceinline__ void wait() const { barrier_await(shared_address(barriers + buffer), parity); }
  __device__ __forceinline__ float sum(int r, int i) const {
    float v = 0;
#pragma unroll
    for (int s = 0; s < kStepSlices; ++s) v += at(s)[r * kOwnOutputs + i];
    return v;
  }
  __device__ __forceinline__ void turn() {
    buffer ^= 1;
    if (buffer == 0) parity ^= 1;
  }
};

// What becomes of the finished outputs of a round: output n of `chunk`.
template <class Weights>
struct StepEnd {
  const StepJob& job;
  const StepLayer& layer;
  float* own_x;  // [kMostOwnOutputs]: the block's share of the residual stream

  // Of the weight alone: read ahead of the sum.
  __device__ __forceinline__ float factor(int product, int chunk, int n) const {
    const StepSeat at(job, product, chunk);
    return Weights::factor(layer.weights[at.weight], at.chunk * Weights::kOutputs + n);
  }
  __device__ __forceinline__ void finish(int product, int chunk, int n, int round, float sum) const {
    const int at = chunk * Weights::kOutputs + n;
    if (product == kQkv) {
      const StepSeat seat(job, product, chunk);
      const __nv_bfloat16* bias = layer.bias[seat.weight];
      if (bias) sum += to_f32(bias[seat.chunk * Weights::kOutputs + n]);
      job.qkv[at] = __float2bfloat16_rn(sum);
    } else if (product == kGateUp) {
      job.gate_up[at] = __float2bfloat16_rn(sum);
    } else {
      float& x = own_x[round * Weights::kOwnOutputs + n % Weights::kOwnOutputs];
      x = rounded(x + sum);
      job.x[at] = __float2bfloat16_rn(x);
    }
  }
};

// A product: the block's pieces, the sums of the cluster, the end. `sums` [rounds together, kStepWarps, outputs of a
// chunk].
template <class Weights>
__device__ __forceinline__ void step_multiply(int product, const StepPart& part, const typename Weights::Input& input,
                                              typename Weights::Taker& taker, StepMail<Weights>& mail, int slice,
                                              float* sums, const StepEnd<Weights>& end) {
  constexpr int kOutputs = Weights::kOutputs, kOwnOutputs = Weights::kOwnOutputs,
                kRoundsTogether = Weights::kRoundsTogether;
  const int warp = threadIdx.x / 32;
  const int first_piece = part.warp_begin(warp), end_piece = part.warp_begin(warp + 1);
#pragma unroll 1
  for (int first = 0; first < part.rounds; first += kRoundsTogether) {
    const int rounds = min(kRoundsTogether, part.rounds - first);
    const int r = threadIdx.x / kOwnOutputs, n = slice * kOwnOutputs + threadIdx.x % kOwnOutputs;  // to finish
    static_assert(kRoundsTogether * kOwnOutputs <= kStepThreads);
    const int chunk = part.chunk0 + (first + r) * clusters();
    const float factor = r < rounds ? end.factor(product, chunk, n) : 0.f;
    if (threadIdx.x == 0) mail.expect(rounds);
    taker.multiply_rounds(first_piece, end_piece, rounds, input, sums);
    compute_sync();
#pragma unroll 1
    for (int e = threadIdx.x; e < rounds * kOutputs; e += kStepThreads) {
      const int of = e / kOutputs, output = e % kOutputs;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) sum += sums[(of * kStepWarps + w) * kOutputs + output];
      mail.send(slice, of, output, sum);
    }
    mail.wait();
    if (r < rounds)
      end.finish(product, chunk, n, first + r,
                 Weights::finished(mail.sum(r, threadIdx.x % kOwnOutputs), factor, input));
    mail.turn();
    if (first + kRoundsTogether < part.rounds) compute_sync();  // the sums have been read
  }
}
#endif

template <bool kZeros>
struct StepTaker;
// Weights of 4 bits in groups of 128, in the Marlin layout, with zero points or without.
template <bool kZeros_>
struct StepPackedOf {
  static constexpr bool kZeros = kZeros_;
  using Layer = std::conditional_t<kZeros, StepZeroLayer, StepLayer>;
  using Source = StepPackedSource<kZeros>;
  using Input = StepInput;
  using Taker = StepTaker<kZeros>;
  static constexpr int kOutputs = marlin::kTileN;  // of a chunk
  static constexpr int kOwnOutputs = kOutputs / kStepSlices, kRoundsTogether = kOutputsTogether / kOutputs;
  static constexpr int kPieceBytes = packed_piece_bytes(kZeros);
  static constexpr int kInputBytes = kGroupLimbBytes, kNoteBytes = sizeof(LimbGroup);  // of a piece of the input

  __device__ __forceinline__ static Input input(const StepSpace& space, const StepPart& part, int, const StepLayer&,
                                                int) {
    return {space.x, reinterpret_cast<LimbGroup*>(space.notes), part.k0, part.length};
  }
  __device__ __forceinline__ static float factor(const StepWeight&, int) { return 1; }
  __device__ __forceinline__ static float finished(float sum, float, const Input&) { return sum; }
};
using StepPacked = StepPackedOf<false>;

}  // namespace fewbit::cuda
