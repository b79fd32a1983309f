#pragma once
// The Marlin product for many rows on Hopper. A block owns a tile of 256 outputs and kTokens rows of x and
// walks over k, 64 values a stage. Three warps keep the stages filled by bulk copies: the words as they lie,
// scales and zero points of the stage's groups, and x through a tensor map in the 128-byte swizzle. Two
// warpgroups have 128 outputs each: a lane turns its words into (code - zero) * scale, rounded to bf16, in
// registers, which are the 64-row operand of wgmma; the next k-tile is turned while the tensor cores work on
// this one.
//
// The grid is resident. Tiles that make up whole rounds of the grid are computed whole; the remaining ones
// (all of them, where there are few) are cut along k into runs of equal length, one a block. Blocks that
// share a tile leave their sums in scratch memory, meet at the tile's counter and share the final addition,
// in the order of k.
#include "kernels/grid_wait.cuh"
#include "kernels/launch.cuh"
#include "kernels/marlin_wide_parts.cuh"

namespace fewbit::cuda {

#ifdef FEWBIT_SM90A

// What happens to a lane's sums on their way to y.
struct WideEnd {
  const WideWeight& weight;
  int rows, row;  // of x; first of the tile
  int out;        // first output of the tile
  bool y_f32;
  int outs[2][2];  // [operand][upper eight rows]; of the weight
  float factor[2][2], bias[2][2];

  __device__ __forceinline__ WideEnd(const WideJob& job, const WidePlace& place, const WideLane& l)
      : weight(job.weights[place.weight]),
        rows(job.rows),
        row(place.row),
        out(place.chunk * marlin::kTileN),
        y_f32(job.y_f32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = i / 2, r = i % 2, o = out + l.output(m, r);
      outs[m][r] = o;
      const bool exists = o < weight.w.out;
      factor[m][r] =
          exists && !weight.w.grouped() ? __half2float(weight.w.s[marlin::scale_column(o, false)]) : 1.f;
      bias[m][r] = exists && weight.bias ? __bfloat162float(weight.bias[o]) : 0.f;
    }
  }
  __device__ __forceinline__ float value(float sum, int m, int r) const {
    return sum * factor[m][r] + bias[m][r];
  }
  // The four sums of an octet of tokens and operand m, to y in f32.
  __device__ __forceinline__ void store_f32(const float (&sums)[4], int m, int octet, int lane) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = row + 8 * octet + lane % 4 * 2 + e % 2, o = outs[m][e / 2];
      if (token >= rows || o >= weight.w.out) continue;
      const float v = value(sums[e], m, e / 2);
      float* y = static_cast<float*>(weight.y) + static_cast<int64_t>(token) * weight.w.out + o;
      *y = weight.add ? *y + v : v;
    }
  }
};

// The two warps of a chunk have its outputs 2 i and 2 i + 1 in turn (WideLane): pairs of eight outputs of
// one warp and of its twin, exchanged into eight neighbours of the lower half of the chunk and of the upper
// one, or back again.
__device__ __forceinline__ void exchange(uint4& a, uint4& b) {
  uint32_t t = a.y;
  a.y = b.y;
  b.y = t;
  t = a.w;
  a.w = b.w;
  b.w = t;
}

// bf16 results of up to four octets of tokens (`first`, `first + stride` ...), v[octet][operand][sum],
// through shared memory, so that they leave in 16-byte pieces: [token][warp][operand][upper eight rows][8] of
// a warpgroup's 128 outputs.
template <class S>
__device__ __forceinline__ void store_slice(const float (&v)[kSliceOctets][2][4], int first, int stride,
                                            int octets, const WideEnd& end, const WideLane& l,
                                            uint8_t* slice) {
  constexpr int kPieces = 8;  // of a token: two chunks, each four pairs of 16 bytes
  auto* y = static_cast<__nv_bfloat16*>(end.weight.y);
  const bool add = end.weight.add;
  const auto visit = [&](auto&& body) {
#pragma unroll
    for (int e = 0; e < 8 * kSliceOctets * kPieces; e += 128) {
      const int at = e + threadIdx.x % 128, token = at / kPieces, chunk = at / 4 % 2, piece = at % 4;
      const int row = end.row + 8 * (first + token / 8 * stride) + token % 8;
      const int o = end.out + marlin::kTileN * (2 * l.group + chunk) + 8 * piece;
      if (token / 8 >= octets || row >= end.rows || o >= end.weight.w.out) continue;
      uint8_t* mine = slice + token * S::kSliceStride + chunk * 128 + piece * 16;
      body(y + static_cast<int64_t>(row) * end.weight.w.out + o, reinterpret_cast<uint4*>(mine),
           reinterpret_cast<uint4*>(mine + 64));
    }
  };
  meet_threads(1 + l.group, 128);  // the slice before has left
  if (add) {
    visit([](const __nv_bfloat16* from, uint4* mine, uint4* twin) {
      uint4 a = *reinterpret_cast<const uint4*>(from), b = *reinterpret_cast<const uint4*>(from + 32);
      exchange(a, b);
      *mine = a;
      *twin = b;
    });
    meet_threads(1 + l.group, 128);
  }
#pragma unroll
  for (int i = 0; i < kSliceOctets; ++i) {
    uint8_t* at = slice + (8 * i + l.lane % 8) * S::kSliceStride + l.warp * 64 + l.lane / 8 * 16;
    uint32_t before[4] = {0, 0, 0, 0}, after[4];
    if (add) ldmatrix_transposed(before, at);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int m = e / 2, r = e % 2;
      const float low = __uint_as_float(before[e] << 16), high = __uint_as_float(before[e] & 0xffff0000u);
      after[e] = pack_bf16(low + end.value(v[i][m][2 * r], m, r), high + end.value(v[i][m][2 * r + 1], m, r));
    }
    stmatrix_transposed(at, after);
  }
  meet_threads(1 + l.group, 128);
  visit([](__nv_bfloat16* to, const uint4* mine, const uint4* twin) {
    uint4 a = *mine, b = *twin;
    exchange(a, b);
    *reinterpret_cast<uint4*>(to) = a;
    *reinterpret_cast<uint4*>(to + 32) = b;
  });
}
template <class S>
__device__ __forceinline__ void store_octets(const float (&v)[kSliceOctets][2][4], int first, int stride,
                                             int octets, const WideEnd& end, const WideLane& l,
                                             uint8_t* slice) {
  if (!end.y_f32) return store_slice<S>(v, first, stride, octets, end, l, slice);
#pragma unroll
  for (int i = 0; i < kSliceOctets; ++i)
    if (i < octets)
      for (int m = 0; m < 2; ++m) end.store_f32(v[i][m], m, first + i * stride, l.lane);
}

// Adds what the blocks of a shared tile have left of octets `octet`, `octet + count` ..., in the order of k.
// Every trip to the L2 takes its time: the sums of kAtOnce blocks for kMost octets are asked for at once.
template <class S, int kMost, int kAtOnce>
__device__ __forceinline__ void add_blocks(float (&v)[kSliceOctets][2][4], const float4* from_first,
                                           const float4* begin, int octet, int octets, int count) {
  constexpr int kOctets = S::kTokens / 8;
#pragma unroll
  for (int i = 0; i < 8 * kMost; ++i) v[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll 1
  for (int block0 = 0; block0 < count; block0 += kAtOnce) {
    float4 some[kAtOnce][kMost][2];
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b)
#pragma unroll
      for (int i = 0; i < 2 * kMost; ++i) {
        const float4* from = block0 + b == 0 ? from_first : begin + (block0 + b) * int64_t{2 * S::kPartQuads};
        const bool exists = block0 + b < count && i / 2 < octets;
        some[b][i / 2][i % 2] =
            exists ? __ldcg(from + (i % 2 * kOctets + octet + i / 2 * count) * kWideMultiplying) : float4{};
      }
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b)
#pragma unroll
      for (int i = 0; i < 2 * kMost; ++i) {
        float(&sum)[4] = v[i / 2][i % 2];
        const float4 more = some[b][i / 2][i % 2];
        sum[0] += more.x, sum[1] += more.y, sum[2] += more.z, sum[3] += more.w;
      }
  }
}
// Those sums of a tile, and this block's share of it stored: every count-th octet of tokens.
template <class S>
__device__ __forceinline__ void add_partials(const WideJob& job, int tile, int first, int count,
                                             const WideEnd& end, const WideLane& l, uint8_t* slice) {
  constexpr int kOctets = S::kTokens / 8;
  // All but the first block began with this tile; so did the first where the tile begins with it.
  const float4* begin =
      reinterpret_cast<const float4*>(job.partials) + first * int64_t{2 * S::kPartQuads} + threadIdx.x;
  const float4* from_first =
      WideWalk::unit_of(job, first) == tile * job.steps ? begin : begin + S::kPartQuads;
  for (int octet0 = static_cast<int>(blockIdx.x) - first; octet0 < kOctets; octet0 += kSliceOctets * count) {
    const int octets = min(kSliceOctets, (kOctets - octet0 + count - 1) / count);
    float v[kSliceOctets][2][4];
    if (octets == 1)
      add_blocks<S, 1, 8>(v, from_first, begin, octet0, octets, count);
    else
      add_blocks<S, kSliceOctets, 2>(v, from_first, begin, octet0, octets, count);
    store_octets<S>(v, octet0, count, octets, end, l, slice);
  }
}

// The side that multiplies: two warpgroups.
template <class S>
__device__ __forceinline__ void wide_products(const WideJob& job, const WideMemory<S>& memory, uint64_t* full,
                                              uint64_t* empty) {
  const WideLane l;
  float sums[2][S::kTokens / 2];
  const uint32_t full_at = kept_address(full), empty_at = kept_address(empty),
                 words_at = kept_address(memory.words + l.chunk * S::kChunkBytes + l.lane * 16 + l.half * 8),
                 scales_at = kept_address(memory.scales + l.chunk * 128 + l.lane / 4 * 16 + l.half * 8),
                 zeros_at = kept_address(memory.zeros + l.chunk * 32 + l.lane / 4 * 4);
  const uint64_t x_at = wgmma_matrix(memory.x);
  uint8_t* slice = memory.slices + l.group * S::kSliceBytes;
  WideGroup group;
  WideWalk walk(job);
  WideRun run;
  const int first_tile = job.shared_tiles > 0 ? WideWalk::unit_of(job, blockIdx.x) / job.steps : -1;
  int slot = 0, left[2] = {-1, -1};  // shared tiles that this block has left sums of
  uint32_t phase = 0;
  // Lane 0 speaks for its warp: what the other lanes have read of the stage went into a product that the
  // whole warp has waited for.
  const auto release = [&](int at) {
    if (l.lane < kArrivingLanes) barrier_arrive(empty_at + 8 * at);
  };
  // Of the stage's i-th group.
  const auto set_group = [&](int i) {
    const int at = slot * S::kGroups + i;
    const uint2 pairs = load_shared2(scales_at + at * S::kScaleBytes);
    group.set_scales(pairs.x, 0);
    group.set_scales(pairs.y, 1);
    if constexpr (S::kZeros) group.set_zeros(load_shared(zeros_at + at * S::kZeroBytes), l);
  };
  while (walk.next(run)) {
    int before = 0;
    for (int step = run.from; step < run.to; ++step) {
      barrier_await(full_at + 8 * slot, phase);
      uint2 words[kWideTiles];
#pragma unroll
      for (int i = 0; i < kWideTiles; ++i)
        words[i] = load_shared2(words_at + slot * S::kWordBytes + i * S::kTileBytes);
      // From a lane, so that the compiler takes the address for uniform: one instruction in place of four for
      // each k-tile.
      const uint64_t x = x_at + __shfl_sync(0xffffffffu, slot, 0) * (S::kXBytes >> 4);
#pragma unroll
      for (int i = 0; i < kWideTiles; ++i) {
        if (S::kFine ? i % 2 == 0 : i == 0) set_group(i / 2);
        uint32_t a[2][4];
        group.operand(a[0], words[i].x, 0);
        group.operand(a[1], words[i].y, 1);
        wgmma_fence();
        const bool add = i > 0 || step > run.from;
        wgmma(sums[0], a[0], x + 2 * i, add);
        wgmma(sums[1], a[1], x + 2 * i, add);
        wgmma_commit();
        wgmma_wait<1>();  // the k-tile before: its registers are free, and with the first its stage
        if (i == 0 && step > run.from) release(before);
      }
      before = slot;
      if (++slot == S::kStages) {
        slot = 0;
        phase ^= 1;
      }
    }
    wgmma_wait<0>();
    pin(sums[0]);
    pin(sums[1]);
    release(before);
    if (run.to - run.from < job.steps) {
      const int place = run.tile == first_tile ? 0 : 1;
      float4* to = reinterpret_cast<float4*>(job.partials) +
                   (static_cast<int64_t>(blockIdx.x) * 2 + place) * S::kPartQuads + threadIdx.x;
#pragma unroll
      for (int q = 0; q < S::kTokens / 4; ++q) {
        const float* v = sums[q / (S::kTokens / 8)] + 4 * (q % (S::kTokens / 8));
        __stcg(to + q * kWideMultiplying, float4{v[0], v[1], v[2], v[3]});
      }
      if (place == 0)
        left[0] = run.tile;
      else
        left[1] = run.tile;
      meet_threads(3, kWideMultiplying);
      if (threadIdx.x == 0) count_arrival(job.counters + 2 * run.tile);
      continue;
    }
    const WideEnd end(job, WidePlace(job, run.tile, S::kTokens), l);
#pragma unroll
    for (int q = 0; q < S::kTokens / 8; q += kSliceOctets) {
      float v[kSliceOctets][2][4];
#pragma unroll
      for (int i = 0; i < kSliceOctets; ++i)
#pragma unroll
        for (int e = 0; e < 8; ++e) v[i][e / 4][e % 4] = sums[e / 4][4 * (q + i) + e % 4];
      if (end.row + 8 * q < end.rows) store_octets<S>(v, q, 1, kSliceOctets, end, l, slice);
    }
  }
#pragma unroll
  for (int place = 0; place < 2; ++place) {
    const int tile = left[place];
    if (tile < 0) continue;
    const int first = WideWalk::block_of(job, tile * job.steps);
    const uint32_t count = WideWalk::block_of(job, (tile + 1) * job.steps - 1) - first + 1;
    uint32_t* counter = job.counters + 2 * tile;
    const WideEnd end(job, WidePlace(job, tile, S::kTokens), l);
    if (threadIdx.x == 0) await_count(counter, count);
    meet_threads(3, kWideMultiplying);
    add_partials<S>(job, tile, first, count, end, l, slice);
    if (threadIdx.x == 0 && atomicAdd(counter + 1, 1u) == count - 1)
      counter[0] = counter[1] = 0;  // all have left the loop
  }
}

#endif  // FEWBIT_SM90A

template <class S>
__global__ void __launch_bounds__(kWideThreads, 1)
    marlin_wide_kernel(const __grid_constant__ WideJob job, const __grid_constant__ WideMaps maps) {
#ifdef FEWBIT_SM90A
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ uint64_t full[S::kStages], empty[S::kStages];
  allow_successor();
  const WideMemory<S> memory(shared);
  if (!job.weights[0].w.grouped())  // the scales are applied to the sums
    for (int i = threadIdx.x; i < S::kStages * S::kGroups * S::kScaleBytes / 2; i += kWideThreads)
      reinterpret_cast<__half*>(memory.scales)[i] = __half(1.f);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(full + i, kWideFeeders);
      barrier_init(empty + i, kArrivingLanes * kWideMultiplying / 32);
    }
    barrier_publish();
  }
  __syncthreads();
  if (threadIdx.x < kWideMultiplying) {
    take_registers<232>();
    await_predecessor();
    wide_products<S>(job, memory, full, empty);
    return;
  }
  give_registers<40>();
  // Only x was written by a kernel before this one; weights need not wait for it.
  const int feeder = (threadIdx.x - kWideMultiplying) / 32;
  if (feeder == 0) {
    await_predecessor();
    feed_x<S>(job, maps, memory, full, empty);
  } else if (feeder == 1) {
    feed_words<S>(job, maps, memory, full, empty);
  } else if (feeder == 2) {
    feed_groups<S>(job, memory, full, empty);
  }
#endif
}

}  // namespace fewbit::cuda
