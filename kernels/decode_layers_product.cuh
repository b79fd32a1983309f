#pragma once
// The products of decode_layers_cuda.cu. The pieces reach the computing warps through rings of shared memory, filled by
// warps that do nothing else. What comes next is known from the start, through all products and layers, so that the weights
// stream on while the blocks wait for each other.
#include "kernels/decode_layers_input.cuh"
#include "kernels/hopper.cuh"

namespace fewbit::cuda {

// A warp's ring of pieces with the two barriers of every slot.
struct StepRing {
  uint8_t* slots;  // [count, kPieceBytes]
  uint64_t *full, *empty;
  int count;

  __device__ __forceinline__ StepRing(uint8_t* rings, uint64_t* barriers, int warp, int slots_of_a_warp)
      : slots(rings + warp * slots_of_a_warp * kPieceBytes),
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

// Where a warp's pieces lie: walks over them product by product and layer by layer.
struct StepWalk {
  const StepJob& job;
  const StepLayer* layers;  // [count], in shared memory
  const StepPart* parts;    // [kStepProducts], in shared memory
  int lane, warp;
  int layer = 0, product = -1;
  int begin = 0, k = 0, end = 0;  // the warp's pieces of a chunk, and the one at hand
  int chunk = 0, rounds = 0;      // the chunk at hand, and how many are left with it
  int out = 0;                    // of the weight
  const uint32_t* words = nullptr;
  const __half* scales = nullptr;

  __device__ __forceinline__ StepWalk(const StepJob& j, const StepLayer* in_layers, const StepPart* in_parts, int of_warp)
      : job(j), layers(in_layers), parts(in_parts), lane(threadIdx.x % 32), warp(of_warp) {
    next_product();
  }
  __device__ __forceinline__ bool done() const { return layer == job.count; }
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
    int w = product == kOut ? 3 : 6, local = chunk;
    if (product == kQkv) {
      w = (chunk >= job.end_q) + (chunk >= job.end_k);
      local -= w == 0 ? 0 : w == 1 ? job.end_q : job.end_k;
    } else if (product == kGateUp) {
      w = 4 + (chunk >= job.end_gate);
      local -= w == 4 ? 0 : job.end_gate;
    }
    out = job.out[w];
    const StepWeight& weight = layers[layer].weights[w];
    k = begin;
    words = weight.words + static_cast<int64_t>(k) * kPieceTiles * (2 * out) + local * marlin::tile_words(4) + 4 * lane;
    scales = weight.scales + static_cast<int64_t>(k) * out + local * marlin::kTileN + 8 * (lane % 8);
  }
  // Asks for the piece at hand and goes on to the next.
  __device__ __forceinline__ void fetch(uint8_t* to) {
#pragma unroll
    for (int i = 0; i < kPieceTiles; ++i) cp_async16(to + i * kTileBytes4 + 16 * lane, words + i * (2 * out));
    if (lane < 8) cp_async16(to + kPieceTiles * kTileBytes4 + 16 * lane, scales);
    words += kPieceTiles * (2 * out);
    scales += out;
    if (++k < end) return;
    if (--rounds == 0) return next_product();
    chunk += clusters();
    seat();
  }
};

#ifdef FEWBIT_SM90A
// All threads of the cluster meet; what they did to their barriers before is seen by all after.
__device__ __forceinline__ void cluster_meet() {
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
}

// The life of a feeding warp: as far ahead as its ring has room, but with few pieces under way: together they keep the
// memory busy, and what the computing warps read and write in between waits behind them.
__device__ __forceinline__ void step_feed(const StepJob& job, const StepLayer* layers, const StepPart* parts,
                                          const StepRing& ring, int warp) {
  StepWalk walk(job, layers, parts, warp);
  int slot = 0;
  uint32_t parity = 1;
  while (!walk.done()) {
    barrier_await(shared_address(ring.empty + slot), parity);
    if (job.under_way == 1)
      cp_async_wait<0>();
    else
      cp_async_wait<kMostUnderWay - 1>();
    walk.fetch(ring.slots + slot * kPieceBytes);
    cp_async_commit();
#ifdef FEWBIT_RACECHECK  // racecheck does not follow copies that arrive by themselves
    cp_async_wait<0>();
    barrier_arrive(ring.full + slot);
#else
    barrier_arrive_behind_copies(ring.full + slot);
#endif
    if (++slot == ring.count) slot = 0, parity ^= 1;
  }
  cp_async_wait<0>();
}
#endif

#ifdef FEWBIT_SM90A
// What a computing warp takes from its ring, in turn.
struct StepTaker {
  StepRing ring;
  int slot = 0;
  uint32_t parity = 0;

  // Adds the warp's next piece to the lane's totals by digit.
  __device__ __forceinline__ void multiply_piece(const StepInput& input, int index, const DigitLane& lane, float (&total)[8]) {
    const uint8_t* x = input.x + index * kGroupDigitBytes + lane.offset;
    const int start = lane.start(input.pieces[index]);
    int32_t part[2][4] = {{start, start, start, start}, {start, start, start, start}};
    const float piece_scale = input.pieces[index].scale;
    barrier_await(shared_address(ring.full + slot), parity);
    const uint8_t* slot_at = ring.slots + slot * kPieceBytes;
    const auto* words = reinterpret_cast<const uint4*>(slot_at) + threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kPieceTiles / 4; ++half) {
      const uint4 digits = *reinterpret_cast<const uint4*>(x + digit_word_at(4 * half, 0, 0));
      lane.add_tile(part, words[(4 * half + 0) * (kTileBytes4 / 16)], digits.x);
      lane.add_tile(part, words[(4 * half + 1) * (kTileBytes4 / 16)], digits.y);
      lane.add_tile(part, words[(4 * half + 2) * (kTileBytes4 / 16)], digits.z);
      lane.add_tile(part, words[(4 * half + 3) * (kTileBytes4 / 16)], digits.w);
    }
    alignas(16) __half scales[8];
    *reinterpret_cast<uint4*>(scales) = *reinterpret_cast<const uint4*>(
        slot_at + kPieceTiles * kTileBytes4 + 2 * marlin::fragment_scale(threadIdx.x % 32, 0, true));
    __syncwarp();  // all lanes have read the slot
    if (threadIdx.x % 32 < kArrivingLanes) barrier_arrive(ring.empty + slot);
    if (++slot == ring.count) slot = 0, parity ^= 1;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      total[i] = fmaf(__half2float(scales[i]) * piece_scale, DigitLane::value(part[i / 4][i % 4]), total[i]);
  }
  // The warp's pieces of so many chunks; leaves the sums of each, [rounds, kStepWarps, 64].
  __device__ __forceinline__ void multiply_rounds(int begin, int end, int rounds, const StepInput& input, float* sums) {
    const DigitLane lane(threadIdx.x % 32);
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

// Where the blocks of a cluster leave each other's sums: two buffers in turn.
struct StepMail {
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
    const uint32_t to = shared_address(at(slice) + r * kOwnOutputs + n % kOwnOutputs);
    asm volatile(
        "{\n.reg .b32 there, bar;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 bar, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [bar];\n}\n" ::"r"(to),
        "r"(shared_address(barriers + buffer)), "r"(n / kOwnOutputs), "r"(__float_as_uint(value))
        : "memory");
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
struct StepEnd {
  const StepJob& job;
  const StepLayer& layer;
  float* own_x;  // [kMostOwnRounds, kOwnOutputs]: the block's share of the residual stream

  __device__ __forceinline__ void finish(int product, int chunk, int n, int round, float sum) const {
    const int at = chunk * marlin::kTileN + n;
    if (product == kQkv) {
      const int which = (chunk >= job.end_q) + (chunk >= job.end_k);
      const int before = which == 0 ? 0 : which == 1 ? job.end_q : job.end_k;
      const __nv_bfloat16* bias = layer.bias[which];
      if (bias) sum += to_f32(bias[at - before * marlin::kTileN]);
      job.qkv[at] = __float2bfloat16_rn(sum);
    } else if (product == kGateUp) {
      job.gate_up[at] = __float2bfloat16_rn(sum);
    } else {
      float& x = own_x[round * kOwnOutputs + n % kOwnOutputs];
      x = rounded(x + sum);
      job.x[at] = __float2bfloat16_rn(x);
    }
  }
};

// A product: the block's pieces, the sums of the cluster, the end. `sums` [kRoundsTogether, kStepWarps, 64].
__device__ __forceinline__ void step_multiply(int product, const StepPart& part, const StepInput& input, StepTaker& taker,
                                              StepMail& mail, int slice, float* sums, const StepEnd& end) {
  const int warp = threadIdx.x / 32;
  const int first_piece = part.warp_begin(warp), end_piece = part.warp_begin(warp + 1);
#pragma unroll 1
  for (int first = 0; first < part.rounds; first += kRoundsTogether) {
    const int rounds = min(kRoundsTogether, part.rounds - first);
    if (threadIdx.x == 0) mail.expect(rounds);
    taker.multiply_rounds(first_piece, end_piece, rounds, input, sums);
    compute_sync();
#pragma unroll 1
    for (int e = threadIdx.x; e < rounds * marlin::kTileN; e += kStepThreads) {
      const int r = e / marlin::kTileN, n = e % marlin::kTileN;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) sum += sums[(r * kStepWarps + w) * marlin::kTileN + n];
      mail.send(slice, r, n, sum);
    }
    mail.wait();
    const int r = threadIdx.x / kOwnOutputs, i = threadIdx.x % kOwnOutputs;
    static_assert(kRoundsTogether * kOwnOutputs <= kStepThreads);
    if (r < rounds)
      end.finish(product, part.chunk0 + (first + r) * clusters(), slice * kOwnOutputs + i, first + r, mail.sum(r, i));
    mail.turn();
    if (first + kRoundsTogether < part.rounds) compute_sync();  // the sums have been read
  }
}
#endif

}  // namespace fewbit::cuda
