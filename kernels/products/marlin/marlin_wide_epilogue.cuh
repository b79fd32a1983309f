#pragma once
// The epilogue of the kernel of marlin_wide.cuh: the sums of a tile become y.
#include "kernels/products/marlin/marlin_wide_weights.cuh"

namespace fewbit::cuda::marlin_wide {

#ifdef FEWBIT_SM90A

// Takes a lane's sums to y: as f32 at once; as bf16 through shared memory, a subtile at a time, and from there by the
// copy engine. The instructions for a subtile stand only once and serve all of a tile, because instructions that are
// executed once miss the instruction cache and take several times as long.
template <class S>
class Epilogue {
 public:
  // Pairs of a lane and octet: two tokens of one output, for each operand and each half of its rows.
  static constexpr int kPairs = 2 * S::kOperands;

  __device__ __forceinline__ Epilogue(const Job& job, const Maps& maps, const Lane<S>& l, uint8_t* subtiles,
                                      uint64_t* before)
      : job_(job),
        maps_(maps),
        l_(l),
        subtiles_(shared_address(subtiles) + l.group * (S::kSubtiles * S::kSubtileBytes)),
        before_(shared_address(before + l.group)) {}

  // Goes to the next tile and reads what its outputs are multiplied by and their bias.
  __device__ __forceinline__ void seek(int tile) {
    const TilePosition<S> position(job_, tile);
    weight_ = position.weight;
    row_ = position.row;
    out_ = position.chunk * marlin::kTileN;
    octets_ = min(S::kOctets, (job_.rows - row_ + 7) / 8);
    const Weight& weight = job_.weights[weight_];
#pragma unroll
    for (int e = 0; e < kPairs; ++e) {
      const int o = out_ + l_.output(e / 2, e % 2);
      const bool exists = o < weight.w.out;
      factor_[e] = static_cast<float>(int64_t{1} << -Dequantizer<S>::kExponent) *
                   (exists && !weight.w.grouped() ? __half2float(weight.w.s[marlin::scale_column(o, false)]) : 1.f);
      bias_[e] = exists && weight.bias ? __bfloat162float(weight.bias[o]) : 0.f;
    }
  }
  __device__ __forceinline__ int octets() const { return octets_; }  // of the tile, those of rows that exist
  // Stores octets [first, first + count) of the tile. sum(octet counted from `first`, operand, which of the lane's
  // four) gives the sums; all its indices are compile-time constants once loops are unrolled.
  template <class Sum>
  __device__ __forceinline__ void store(int first, int count, const Sum& sum) {
    if (job_.y_f32) {
      store_f32<S::kSubtileOctets>(first, count, sum);
      return;
    }
    uint32_t pairs[S::kSubtileOctets][kPairs];
    begin(pairs, first, count);
    merge(pairs, sum);
    finish(pairs, first, count);
  }
  // The same for up to kMost octets at a time of few rows, straight from registers. Once transposed, a lane has two
  // neighbouring outputs of one token.
  template <int kMost, class Sum>
  __device__ __forceinline__ void store_few(int first, int count, const Sum& sum) const {
    if (job_.y_f32) {
      store_f32<kMost>(first, count, sum);
      return;
    }
    const Weight& weight = job_.weights[weight_];
    const int token = row_ + 8 * first + l_.lane / 4, pair = l_.lane % 4,
              sub = S::kOperands * ((l_.warp ^ pair) % Lane<S>::kWarps),
              out = out_ + marlin::kTileN * l_.chunk + 16 * sub + 2 * pair;
    auto* y = static_cast<__nv_bfloat16*>(weight.y) + static_cast<int64_t>(token) * weight.w.out + out;
    const bool exists = out < weight.w.out;
#pragma unroll
    for (int i = 0; i < kMost; ++i)
#pragma unroll
      for (int e = 0; e < kPairs; ++e) {
        auto* at = reinterpret_cast<uint32_t*>(y + static_cast<int64_t>(8 * i) * weight.w.out + 8 * e);
        const bool wanted = exists && i < count && token + 8 * i < job_.rows;
        const uint32_t before = weight.add ? transposed(wanted ? __ldcg(at) : 0u) : pack_bf16(bias_[e], bias_[e]);
        const auto of = [&](int n) { return sum(i, e / 2, e % 2 * 2 + n); };
        const uint32_t after = transposed(merged(of, e, before));
        if (wanted) *at = after;
      }
  }
  // Stores all of a tile.
  __device__ __forceinline__ void store(const float (&sums)[S::kOperands][S::kTokens / 2]) {
    const auto of = [&](int q) { return [&sums, q](int i, int m, int e) { return sums[m][4 * (q + i) + e]; }; };
    if (job_.y_f32) {
#pragma unroll
      for (int q = 0; q < S::kOctets; q += S::kSubtileOctets)
        if (q < octets_) store_f32<S::kSubtileOctets>(q, S::kSubtileOctets, of(q));
      return;
    }
#pragma unroll 1
    for (int octet = 0; octet < octets_; octet += S::kSubtileOctets) {
      uint32_t pairs[S::kSubtileOctets][kPairs];
      begin(pairs, octet, S::kSubtileOctets);
#pragma unroll
      for (int q = 0; q < S::kOctets; q += S::kSubtileOctets)
        if (octet == q) merge(pairs, of(q));
      finish(pairs, octet, S::kSubtileOctets);
    }
  }
  // Called once, before the block ends.
  __device__ __forceinline__ void leave() const {
    if (l_.warp == 0) bulk_store_wait<0>();
  }

 private:
  const Job& job_;
  const Maps& maps_;
  const Lane<S>& l_;
  uint32_t subtiles_;  // of this warpgroup
  uint32_t before_;    // address of the barrier at which the former y arrives, for products that add to it
  uint32_t parity_ = 0;
  int subtile_ = 0;
  int weight_ = 0, row_ = 0, out_ = 0, octets_ = 0;
  float factor_[kPairs], bias_[kPairs];

  template <int kMost, class Sum>
  __device__ __forceinline__ void store_f32(int first, int count, const Sum& sum) const {
    const Weight& weight = job_.weights[weight_];
#pragma unroll
    for (int i = 0; i < kMost; ++i)
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

  // A subtile lies as planes of 64 outputs, [octet][token][64] each, in the 128-byte swizzle. One lane calls
  // body(address, first output) for each plane whose outputs exist.
  template <class Body>
  __device__ __forceinline__ void each_plane(const Body& body) const {
#pragma unroll
    for (int plane = 0; plane < S::kOperands; ++plane) {
      const int column = out_ + marlin::kTileN * (S::kChunks / 2 * l_.group + plane);
      if (column < job_.weights[weight_].w.out)
        body(subtiles_ + subtile_ * S::kSubtileBytes + plane * S::kPlaneBytes, column);
    }
  }
  // Calls body(octet, pair, address) for each word of this lane in a subtile. Once pairs are transposed(), a lane has
  // two neighbouring outputs of one of eight tokens, of the sub-tile `sub` as in Lane.
  template <class Body>
  __device__ __forceinline__ void each_word(const Body& body) const {
    const int token = l_.lane / 4, pair = l_.lane % 4, sub = S::kOperands * ((l_.warp ^ pair) % Lane<S>::kWarps);
    const uint32_t at = subtiles_ + subtile_ * S::kSubtileBytes + l_.warp / Lane<S>::kWarps * S::kPlaneBytes +
                        token * 128 + (2 * sub ^ token) * 16 + pair * 4;
#pragma unroll
    for (int i = 0; i < S::kSubtileOctets; ++i)
#pragma unroll
      for (int e = 0; e < kPairs; ++e) body(i, e, (at ^ e * 16) + i * S::kBoxBytes);
  }

  // Fills `pairs` with what the sums are added to: the former y, or the bias.
  __device__ __forceinline__ void begin(uint32_t (&pairs)[S::kSubtileOctets][kPairs], int first, int count) {
    const bool add = job_.weights[weight_].add;
    if (l_.warp == 0 && elected()) {
      bulk_store_wait<S::kSubtiles - 1>();  // the buffer's former content has been read by the copy engine
      if (add) {
        each_plane([&](uint32_t plane, int column) {
          barrier_expect_more(before_, count * S::kBoxBytes);
          for (int i = 0; i < count; ++i)
            bulk_copy_box(plane + i * S::kBoxBytes, &maps_.y_octet[weight_], column, row_ + 8 * (first + i), before_);
        });
        barrier_arrive(before_);
      }
    }
    named_barrier_sync(kWarpgroupBarrier + l_.group, 128);
    if (add) {
      barrier_await(before_, parity_);
      parity_ ^= 1;
      each_word([&](int i, int e, uint32_t there) { pairs[i][e] = load_shared(there); });
#pragma unroll
      for (int n = 0; n < S::kSubtileOctets * kPairs; ++n)
        pairs[n / kPairs][n % kPairs] = transposed(pairs[n / kPairs][n % kPairs]);
    } else {
#pragma unroll
      for (int n = 0; n < S::kSubtileOctets * kPairs; ++n)
        pairs[n / kPairs][n % kPairs] = pack_bf16(bias_[n % kPairs], bias_[n % kPairs]);
    }
  }
  // pairs = sums * factor + pairs, rounded once.
  template <class Sum>
  __device__ __forceinline__ void merge(uint32_t (&pairs)[S::kSubtileOctets][kPairs], const Sum& sum) const {
#pragma unroll
    for (int i = 0; i < S::kSubtileOctets; ++i)
#pragma unroll
      for (int e = 0; e < kPairs; ++e) {
        const auto of = [&](int n) { return sum(i, e / 2, e % 2 * 2 + n); };
        pairs[i][e] = merged(of, e, pairs[i][e]);
      }
  }
  // The two sums of a pair * factor + before, rounded once.
  template <class Of>
  __device__ __forceinline__ uint32_t merged(const Of& of, int e, uint32_t before) const {
    const float low = __uint_as_float(before << 16), high = __uint_as_float(before & 0xffff0000u);
    return pack_bf16(fmaf(of(0), factor_[e], low), fmaf(of(1), factor_[e], high));
  }
  // Hands the subtile to the copy engine.
  __device__ __forceinline__ void finish(uint32_t (&pairs)[S::kSubtileOctets][kPairs], int first, int count) {
    // All of them one after another, since each has a long latency.
#pragma unroll
    for (int n = 0; n < S::kSubtileOctets * kPairs; ++n)
      pairs[n / kPairs][n % kPairs] = transposed(pairs[n / kPairs][n % kPairs]);
    each_word([&](int i, int e, uint32_t there) { store_shared(there, pairs[i][e]); });
    publish_shared();
    named_barrier_sync(kWarpgroupBarrier + l_.group, 128);
    if (l_.warp == 0 && elected()) {
      each_plane([&](uint32_t plane, int column) {
        if (count == S::kSubtileOctets) {
          bulk_store_box(&maps_.y_subtile[weight_], column, row_ + 8 * first, plane);
        } else {
          for (int i = 0; i < count; ++i)
            bulk_store_box(&maps_.y_octet[weight_], column, row_ + 8 * (first + i), plane + i * S::kBoxBytes);
        }
      });
      bulk_store_commit();
    }
    subtile_ = (subtile_ + 1) % S::kSubtiles;
  }
};

#endif  // FEWBIT_SM90A

}  // namespace fewbit::cuda::marlin_wide
