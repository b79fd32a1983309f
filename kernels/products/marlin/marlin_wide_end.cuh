#pragma once
// How the kernel of marlin_wide.cuh ends a tile: sums become y, alone or with what other clusters have of it.
#include "kernels/device/grid_wait.cuh"
#include "kernels/products/marlin/marlin_wide_parts.cuh"

namespace fewbit::cuda {

#ifdef FEWBIT_SM90A

__device__ __forceinline__ void add_quad(float* to, const float4& more) {
  to[0] += more.x, to[1] += more.y, to[2] += more.z, to[3] += more.w;
}

// What happens to a lane's sums on their way to y: f32 at once; bf16 through shared memory, a slice at a time, and from
// there by the copy engine. The instructions for a slice stand once and serve all of a tile: what is executed only once
// takes several times as long.
template <class S>
class WideEnd {
 public:
  // of an octet: two tokens of an output of each operand and half of its rows
  static constexpr int kPairs = 2 * S::kOperands;

  __device__ __forceinline__ WideEnd(const WideJob& job, const WideMaps& maps, const WideLane<S>& l, uint8_t* slices,
                                     uint64_t* before)
      : job_(job),
        maps_(maps),
        l_(l),
        slices_(shared_address(slices) + l.group * (S::kSlices * S::kSliceBytes)),
        before_(shared_address(before + l.group)) {}

  // The next tile.
  __device__ __forceinline__ void seat(int tile) {
    const WidePlace<S> place(job_, tile);
    weight_ = place.weight;
    row_ = place.row;
    out_ = place.chunk * marlin::kTileN;
    octets_ = min(S::kOctets, (job_.rows - row_ + 7) / 8);
    const WideWeight& weight = job_.weights[weight_];
#pragma unroll
    for (int e = 0; e < kPairs; ++e) {
      const int o = out_ + l_.output(e / 2, e % 2);
      const bool exists = o < weight.w.out;
      factor_[e] = (S::kZeros ? 1.f : static_cast<float>(int64_t{1} << -kWideDown)) *
                   (exists && !weight.w.grouped() ? __half2float(weight.w.s[marlin::scale_column(o, false)]) : 1.f);
      bias_[e] = exists && weight.bias ? __bfloat162float(weight.bias[o]) : 0.f;
    }
  }
  __device__ __forceinline__ int octets() const { return octets_; }  // of tokens that exist
  // Octets [first, first + count) of the tile: sum(octet from `first` on, operand, which of the lane's four), with
  // indices that the compiler knows.
  template <class Sum>
  __device__ __forceinline__ void store(int first, int count, const Sum& sum) {
    if (job_.y_f32) {
      store_f32(first, count, sum);
      return;
    }
    uint32_t pairs[S::kSliceOctets][kPairs];
    begin(pairs, first, count);
    merge(pairs, sum);
    finish(pairs, first, count);
  }
  // All of a tile.
  __device__ __forceinline__ void store(const float (&sums)[S::kOperands][S::kTokens / 2]) {
    const auto of = [&](int q) { return [&sums, q](int i, int m, int e) { return sums[m][4 * (q + i) + e]; }; };
    if (job_.y_f32) {
#pragma unroll
      for (int q = 0; q < S::kOctets; q += S::kSliceOctets)
        if (q < octets_) store_f32(q, S::kSliceOctets, of(q));
      return;
    }
#pragma unroll 1
    for (int octet = 0; octet < octets_; octet += S::kSliceOctets) {
      uint32_t pairs[S::kSliceOctets][kPairs];
      begin(pairs, octet, S::kSliceOctets);
#pragma unroll
      for (int q = 0; q < S::kOctets; q += S::kSliceOctets)
        if (octet == q) merge(pairs, of(q));
      finish(pairs, octet, S::kSliceOctets);
    }
  }
  // Before the block ends.
  __device__ __forceinline__ void leave() const {
    if (l_.warp == 0) bulk_store_wait<0>();
  }

 private:
  const WideJob& job_;
  const WideMaps& maps_;
  const WideLane<S>& l_;
  uint32_t slices_;  // of this warpgroup
  uint32_t before_;  // the barrier at which what y was arrives
  uint32_t parity_ = 0;
  int slice_ = 0;
  int weight_ = 0, row_ = 0, out_ = 0, octets_ = 0;
  float factor_[kPairs], bias_[kPairs];

  template <class Sum>
  __device__ __forceinline__ void store_f32(int first, int count, const Sum& sum) const {
    const WideWeight& weight = job_.weights[weight_];
#pragma unroll
    for (int i = 0; i < S::kSliceOctets; ++i)
#pragma unroll
      for (int n = 0; n < 4 * S::kOperands; ++n) {
        const int m = n / 4, e = n / 2;
        const int token = row_ + 8 * (first + i) + l_.lane % 4 * 2 + n % 2, o = out_ + l_.output(m, e % 2);
        if (i >= count || token >= job_.rows || o >= weight.w.out) continue;
        const float v = sum(i, m, n % 4) * factor_[e] + bias_[e];
        float* y = static_cast<float*>(weight.y) + static_cast<int64_t>(token) * weight.w.out + o;
        *y = weight.add ? *y + v : v;
      }
  }

  // A slice is [64 outputs][octet][token][64] in the 128-byte swizzle; body(its plane's address, first output). By one
  // lane.
  template <class Body>
  __device__ __forceinline__ void each_plane(const Body& body) const {
#pragma unroll
    for (int plane = 0; plane < S::kOperands; ++plane) {
      const int column = out_ + marlin::kTileN * (S::kChunks / 2 * l_.group + plane);
      if (column < job_.weights[weight_].w.out)
        body(slices_ + slice_ * S::kSliceBytes + plane * S::kPlaneBytes, column);
    }
  }
  // Where the lane's words of a slice lie: transposed, it has of a token of eight two neighbouring outputs of its
  // warp's, those of sub-tile `sub` (WideLane).
  template <class Body>
  __device__ __forceinline__ void each_word(const Body& body) const {
    const int token = l_.lane / 4, pair = l_.lane % 4, sub = S::kOperands * ((l_.warp ^ pair) % WideLane<S>::kWarps);
    const uint32_t at = slices_ + slice_ * S::kSliceBytes + l_.warp / WideLane<S>::kWarps * S::kPlaneBytes +
                        token * 128 + (2 * sub ^ token) * 16 + pair * 4;
#pragma unroll
    for (int i = 0; i < S::kSliceOctets; ++i)
#pragma unroll
      for (int e = 0; e < kPairs; ++e) body(i, e, (at ^ e * 16) + i * S::kBoxBytes);
  }

  // What is to be added: y as it was, or the bias.
  __device__ __forceinline__ void begin(uint32_t (&pairs)[S::kSliceOctets][kPairs], int first, int count) {
    const bool add = job_.weights[weight_].add;
    if (l_.warp == 0 && elected()) {
      bulk_store_wait<S::kSlices - 1>();  // the slice's last content has left
      if (add) {
        each_plane([&](uint32_t plane, int column) {
          barrier_expect_more(before_, count * S::kBoxBytes);
          for (int i = 0; i < count; ++i)
            bulk_copy_box(plane + i * S::kBoxBytes, &maps_.y_octet[weight_], column, row_ + 8 * (first + i), before_);
        });
        barrier_arrive(before_);
      }
    }
    meet_threads(kWideGroupMeets + l_.group, 128);
    if (add) {
      barrier_await(before_, parity_);
      parity_ ^= 1;
      each_word([&](int i, int e, uint32_t there) { pairs[i][e] = load_shared(there); });
#pragma unroll
      for (int n = 0; n < S::kSliceOctets * kPairs; ++n)
        pairs[n / kPairs][n % kPairs] = transposed(pairs[n / kPairs][n % kPairs]);
    } else {
#pragma unroll
      for (int n = 0; n < S::kSliceOctets * kPairs; ++n)
        pairs[n / kPairs][n % kPairs] = pack_bf16(bias_[n % kPairs], bias_[n % kPairs]);
    }
  }
  template <class Sum>
  __device__ __forceinline__ void merge(uint32_t (&pairs)[S::kSliceOctets][kPairs], const Sum& sum) const {
#pragma unroll
    for (int i = 0; i < S::kSliceOctets; ++i)
#pragma unroll
      for (int e = 0; e < kPairs; ++e) {
        const float low = __uint_as_float(pairs[i][e] << 16), high = __uint_as_float(pairs[i][e] & 0xffff0000u);
        pairs[i][e] = pack_bf16(fmaf(sum(i, e / 2, e % 2 * 2), factor_[e], low),
                                fmaf(sum(i, e / 2, e % 2 * 2 + 1), factor_[e], high));
      }
  }
  __device__ __forceinline__ void finish(uint32_t (&pairs)[S::kSliceOctets][kPairs], int first, int count) {
    // One after the other for all of them: each takes its time.
#pragma unroll
    for (int n = 0; n < S::kSliceOctets * kPairs; ++n)
      pairs[n / kPairs][n % kPairs] = transposed(pairs[n / kPairs][n % kPairs]);
    each_word([&](int i, int e, uint32_t there) { store_shared(there, pairs[i][e]); });
    publish_shared();
    meet_threads(kWideGroupMeets + l_.group, 128);
    if (l_.warp == 0 && elected()) {
      each_plane([&](uint32_t plane, int column) {
        if (count == S::kSliceOctets) {
          bulk_store_box(&maps_.y_slice[weight_], column, row_ + 8 * first, plane);
        } else {
          for (int i = 0; i < count; ++i)
            bulk_store_box(&maps_.y_octet[weight_], column, row_ + 8 * (first + i), plane + i * S::kBoxBytes);
        }
      });
      bulk_store_commit();
    }
    slice_ = (slice_ + 1) % S::kSlices;
  }
};

// Where the block's counter of a shared tile is: blocks of the same place in their clusters meet there.
template <class S>
__device__ __forceinline__ uint32_t* wide_counter(const WideJob& job, int tile) {
  return job.counters + 2 * (tile * S::kCluster + wide_rank<S>());
}
// What the cluster at place `member` of a meeting leaves for the others, from this thread's first quad on.
template <class S>
__device__ __forceinline__ float4* wide_partial(const WideJob& job, const WideMeeting<S>& meeting, int member) {
  const int block = (meeting.first + member) * S::kCluster + wide_rank<S>();
  return reinterpret_cast<float4*>(job.partials) + (2 * block + (member < meeting.adding)) * int64_t{S::kPartQuads} +
         threadIdx.x;
}

// This block's share of a tile: what the clusters of a meeting have left, in the order of k; `own` lies in shared
// memory. Every trip to the L2 takes its time: what kAtOnce clusters have left of up to kMost octets is asked for at
// once, and the next before these are stored.
template <class S, int kMost, int kAtOnce>
__device__ __forceinline__ void add_share(const WideJob& job, const WideMeeting<S>& meeting, const float4* own,
                                          WideEnd<S>& end) {
  constexpr int kM = S::kOperands, kQuads = kMost * kM;
  float4 some[kAtOnce][kQuads];
  const auto ask = [&](int octet, int member) {
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b) {
      const int its = member + b;
      const float4* from = wide_partial(job, meeting, its);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int at = (i % kM * S::kOctets + octet + i / kM) * kWideMultiplying;
        some[b][i] = its >= meeting.count || octet + i / kM >= meeting.end ? float4{}
                     : its == meeting.own                                  ? own[at]
                                                                           : __ldcg(from + at);
      }
    }
  };
  ask(meeting.begin, 0);
#pragma unroll 1
  for (int octet = meeting.begin; octet < meeting.end;) {
    const int first = octet;
    float v[S::kSliceOctets * kM][4] = {};
    for (int member = 0; member < meeting.count;) {
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b)
#pragma unroll
        for (int i = 0; i < kQuads; ++i) add_quad(v[i], some[b][i]);
      member += kAtOnce;
      if (member >= meeting.count) octet += kMost;
      if (octet < meeting.end) ask(octet, member < meeting.count ? member : 0);
    }
    end.store(first, min(kMost, meeting.end - first), [&](int i, int m, int e) { return v[i * kM + m][e]; });
  }
}

// Leaves a block's sums of a part of k of a tile, for others or, its share, in shared memory; adds its share of them
// all.
template <class S>
__device__ __forceinline__ void end_shared(const WideJob& job, const WideMeeting<S>& meeting, int tile, WideEnd<S>& end,
                                           const float (&sums)[S::kOperands][S::kTokens / 2], uint8_t* own_sums) {
  auto* own = reinterpret_cast<float4*>(own_sums) + threadIdx.x;
  float4* to = wide_partial(job, meeting, meeting.own);
  if (meeting.adds()) meet_threads(kWideMeet, kWideMultiplying);  // nobody reads the stages any more
#pragma unroll
  for (int q = 0; q < S::kQuads; ++q) {
    const int octet = q % S::kOctets;
    const float* v = sums[q / S::kOctets] + 4 * octet;
    const float4 quad{v[0], v[1], v[2], v[3]};
    if (octet >= meeting.begin && octet < meeting.end)
      own[q * kWideMultiplying] = quad;
    else if (octet < end.octets())
      __stcg(to + q * kWideMultiplying, quad);
  }
  arrive_threads(meeting.adds() ? kWideLeftLast : kWideLeftFirst, kWideMultiplying + 32);  // announce()
  if (!meeting.adds()) return;
  uint32_t* counter = wide_counter<S>(job, tile);
  if (threadIdx.x == 0) await_count(counter, meeting.count);
  meet_threads(kWideMeet, kWideMultiplying);
  if (S::kTokens <= 64 && meeting.end - meeting.begin <= 1)  // of few tokens, which many clusters share
    add_share<S, 1, 8>(job, meeting, own, end);
  else
    add_share<S, S::kSliceOctets, 2>(job, meeting, own, end);
  if (threadIdx.x == 0 && atomicAdd(counter + 1, 1u) == static_cast<uint32_t>(meeting.adding) - 1)
    counter[0] = counter[1] = 0;  // all have been waited for
}
// A warp that feeds nothing says so when the block's sums of a shared tile lie where others find them: they that made
// them go on.
template <class S>
__device__ __forceinline__ void announce(const WideJob& job) {
  WideWalk<S> walk(job);
  WideRun run;
  while (walk.next(run)) {
    if (run.to - run.from == job.steps) continue;
    const WideMeeting<S> meeting(job, run.tile, 0);
    if (meeting.ends()) continue;
    meet_threads(meeting.adds() ? kWideLeftLast : kWideLeftFirst, kWideMultiplying + 32);
    if (threadIdx.x % 32 == 0) count_arrival(wide_counter<S>(job, run.tile));
  }
}

#endif  // FEWBIT_SM90A

}  // namespace fewbit::cuda
