#pragma once
// The same as marlin_wide_reduce.cuh for few rows of x, where most tiles are shared and their sums are a good part of
// the time: partial sums are flagged words, without a counter and its fence, the instructions are few, since they run
// once, and results go from registers to y.
#include "kernels/device/flagged_partials.cuh"
#include "kernels/products/marlin/marlin_wide_reduce.cuh"

namespace fewbit::cuda::marlin_wide {

#ifdef FEWBIT_SM90A

// Reads kRows times kCols quads of this thread at at(row, col), those that are wanted(row, col), all of them at once
// and again until all have been written: one after another each would be a trip to the L2.
template <int kRows, int kCols, class At, class Wanted>
__device__ __forceinline__ void take_flagged(float4 (&some)[kRows][kCols], const At& at, const Wanted& wanted) {
  bool missing = true;
  while (missing) {
    missing = false;
#pragma unroll
    for (int row = 0; row < kRows; ++row)
#pragma unroll
      for (int col = 0; col < kCols; ++col) some[row][col] = load_flagged(at(row, col), wanted(row, col));
#pragma unroll
    for (int row = 0; row < kRows; ++row)
#pragma unroll
      for (int col = 0; col < kCols; ++col) missing |= has_unwritten(some[row][col]);
  }
  __syncwarp();
}

// Adds this block's octets of a shared tile over all clusters, in the order of k, up to kMost at once, and stores the
// outputs.
template <class S, int kMost>
__device__ __forceinline__ void add_flagged(const Job& job, const SharedTile<S>& shared_tile, Epilogue<S>& epilogue) {
  constexpr int kM = S::kOperands, kQuads = kMost * kM, kAtOnce = kQuads > 2 ? 4 : 8;
  const uint32_t unwritten[4] = {kUnwritten, kUnwritten, kUnwritten, kUnwritten};
#pragma unroll 1
  for (int octet = shared_tile.begin; octet < shared_tile.end; octet += kMost) {
    const int octets = min(kMost, shared_tile.end - octet);
    const auto quad = [&](int member, int i) {
      return partial_sums(job, shared_tile, member) + (i % kM * S::kOctets + octet + i / kM) * kConsumers;
    };
    float v[kQuads][4] = {};
#pragma unroll 1
    for (int member = 0; member < shared_tile.count; member += kAtOnce) {
      float4 some[kAtOnce][kQuads];
      take_flagged(
          some, [&](int b, int i) { return quad(member + b, i); },
          [&](int b, int i) { return member + b < shared_tile.count && i / kM < octets; });
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b)
#pragma unroll
        for (int i = 0; i < kQuads; ++i) add_quad(v[i], some[b][i]);
    }
    epilogue.template store_few<kMost>(octet, octets, [&](int i, int m, int e) { return v[i * kM + m][e]; });
#pragma unroll 1
    for (int member = 0; member < shared_tile.count; ++member)
#pragma unroll
      for (int i = 0; i < kQuads; ++i) clear_flagged(quad(member, i), unwritten, i / kM < octets);
  }
}

// The same where exactly one other cluster shares the tile and goes on to another: sums += its partial sums.
template <class S>
__device__ __forceinline__ void add_other_flagged(const Job& job, const SharedTile<S>& shared_tile, int octets,
                                                  float (&sums)[S::kOperands][S::kTokens / 2]) {
  constexpr int kAtOnce = 8;
  const uint32_t unwritten[4] = {kUnwritten, kUnwritten, kUnwritten, kUnwritten};
  float4* more = partial_sums(job, shared_tile, 1);
#pragma unroll
  for (int first = 0; first < S::kQuads; first += kAtOnce) {
    float4 some[1][kAtOnce];
    const auto at = [&](int, int i) { return more + (first + i) * kConsumers; };
    const auto wanted = [&](int, int i) { return first + i < S::kQuads && (first + i) % S::kOctets < octets; };
    take_flagged(some, at, wanted);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int q = first + i;
      if (q >= S::kQuads) continue;
      add_quad(sums[q / S::kOctets] + 4 * (q % S::kOctets), some[0][i]);
      clear_flagged(at(0, i), unwritten, wanted(0, i));
    }
  }
}

// As end_counted().
template <class S>
__device__ __forceinline__ bool end_flagged(const Job& job, const SharedTile<S>& shared_tile, Epilogue<S>& epilogue,
                                            float (&sums)[S::kOperands][S::kTokens / 2]) {
  if (shared_tile.ends()) {
    add_other_flagged(job, shared_tile, epilogue.octets(), sums);
    return false;
  }
  // Its own too, so that the same instructions read all of them.
  float4* to = partial_sums(job, shared_tile, shared_tile.own);
#pragma unroll
  for (int q = 0; q < S::kQuads; ++q) {
    const int octet = q % S::kOctets;
    const float* v = sums[q / S::kOctets] + 4 * octet;
    if (octet < epilogue.octets()) __stcg(to + q * kConsumers, float4{v[0], v[1], v[2], v[3]});
  }
  if (!shared_tile.adds()) return true;
  if (shared_tile.end - shared_tile.begin <= 1)
    add_flagged<S, 1>(job, shared_tile, epilogue);
  else
    add_flagged<S, 2>(job, shared_tile, epilogue);
  return true;
}

// Ends a block's work range of a tile that it shares; false where the tile remains to be stored.
template <class S>
__device__ __forceinline__ bool end_shared(const Job& job, const SharedTile<S>& shared_tile, int tile,
                                           Epilogue<S>& epilogue, float (&sums)[S::kOperands][S::kTokens / 2],
                                           uint8_t* own_sums) {
  if constexpr (S::kFew)
    return end_flagged(job, shared_tile, epilogue, sums);
  else
    return end_counted(job, shared_tile, tile, epilogue, sums, own_sums);
}

#endif  // FEWBIT_SM90A

}  // namespace fewbit::cuda::marlin_wide
