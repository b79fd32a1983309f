// The Marlin product on a GPU: picks a kernel and cuts the work. Few rows go to marlin_stream.cuh and marlin_rows.cuh,
// which read each weight once; more to marlin_wide.cuh where it runs. Elsewhere, above 64 rows, the weight is
// dequantized into scratch memory, a slab of outputs at a time, and multiplied by cuBLAS. README.md in this folder has
// the table.
#include <algorithm>

#include "kernels/choice/kernel_choice.h"
#include "kernels/device/tensor_map.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/dense.cuh"
#include "kernels/products/marlin/marlin_gemm.h"
#include "kernels/products/marlin/marlin_stream.cuh"
#include "kernels/products/marlin/marlin_wide.h"

namespace fewbit::cuda {

MarlinSource source_of(const MarlinView& m) {
  FEWBIT_ASSERT((m.bits == 4 || m.bits == 8) && m.b.dtype == DType::i32 && m.s.dtype == DType::f16);
  FEWBIT_ASSERT(m.b.numel() == m.in / 16 * marlin::words_per_row(m.out, m.bits) && m.s.numel() == m.groups() * m.out);
  FEWBIT_ASSERT(marlin::admits(m.out, m.in, m.group(), m.bits) && m.groups() * m.group() == m.in);
  FEWBIT_ASSERT(!m.z.data || m.z.numel() == m.groups() * m.out * m.bits / 32);
  FEWBIT_ASSERT(aligned16(static_cast<const char*>(m.b.data)) && aligned16(static_cast<const char*>(m.s.data)) &&
                aligned16(static_cast<const char*>(m.z.data)));
  return {.b = static_cast<const uint32_t*>(m.b.data),
          .s = static_cast<const __half*>(m.s.data),
          .z = static_cast<const uint32_t*>(m.z.data),
          .out = static_cast<int>(m.out),
          .in = static_cast<int>(m.in),
          .group_tiles = m.groups() > 1 ? static_cast<int>(m.group() / marlin::kTileK) : 0};
}

namespace {

using marlin_split_k::Job;
using marlin_split_k::kWarpTiles;
using marlin_stream::Variant;

// Bytes of dequantized weight at a time; a larger weight is cut into slabs of outputs.
constexpr size_t kDenseScratch = size_t{256} << 20;

// How a product is cut for marlin_stream.cuh: a block has `warps` times 128 values of k, and `n_blocks` blocks share
// the chunks of 64 outputs. Of the ways whose blocks are all resident, make_plan() takes the one with the least work
// for the busiest block, and of equals the one with the fewest splits. A chunk costs a block 0.75 us plus 0.3 us for
// each warp on one of the four schedulers (fitted on an H200); only the ratio kFixed of the two counts.
struct Plan {
  int warps = 0, splits = 0, n_blocks = 0;
};
Plan make_plan(int sms, int runs, int chunks, int passes, int most_warps) {
  constexpr int kSchedulers = 4;
  constexpr double kFixed = 2.5;
  Plan best;
  double least = 0;
  for (int splits = 1; splits * passes <= sms && splits <= runs; ++splits) {
    const int warps = (runs + splits - 1) / splits, n_blocks = std::min(chunks, sms / (splits * passes));
    if (warps > most_warps) continue;
    const int rounds = (chunks + n_blocks - 1) / n_blocks;
    const double cost = rounds * (kFixed + (warps + kSchedulers - 1) / kSchedulers);
    if (best.warps > 0 && cost >= least) continue;
    best = {warps, splits, n_blocks};
    least = cost;
  }
  return best;
}

template <class V>
bool launch_stream(CudaState& s, Job job) {
  const int tokens = std::min(V::kTokens, job.rows);
  const size_t warp_bytes = V::kRingBytes + static_cast<size_t>(tokens) * V::kTokenBytes;
  const size_t room = s.max_shared() - marlin_split_k::kStaticShared;
  const int runs = (job.in / marlin::kTileK + kWarpTiles - 1) / kWarpTiles;
  job.passes = (job.rows + V::kTokens - 1) / V::kTokens;
  const Plan plan =
      make_plan(s.sms(), runs, job.chunks, job.passes, std::min(V::kMaxWarps, static_cast<int>(room / warp_bytes)));
  if (plan.warps == 0) return false;
  job.splits = plan.splits;
  job.n_blocks = plan.n_blocks;
  marlin_split_k::set_up_merge<V::kTokens>(s, job, tokens, 32 * plan.warps);
  const int rounds = (job.chunks + job.n_blocks - 1) / job.n_blocks;
  size_t used = plan.warps * warp_bytes, more = static_cast<size_t>(plan.warps) * tokens * V::kSumBytes;
  for (; job.batch_shift < V::kMostBatchShift && 1 << job.batch_shift < rounds && used + more <= room; more *= 2) {
    used += more;
    ++job.batch_shift;
  }
  // More than half of a multiprocessor's shared memory, so that each gets one block: two on one would hold up the rest.
  const size_t shared = std::max(used, room / 2 + 1);
  auto* kernel = marlin_stream::marlin_stream_kernel<V>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  launch_overlapping(s, kernel, dim3(job.n_blocks * job.splits * job.passes), dim3(32 * plan.warps), shared, job);
  return true;
}

// 8 rows serve decoding of up to 8 sequences; the variants for 16 and 32 read the words once for more rows. Groups of
// 32 and 64 end inside of a warp's 128 values, which takes registers, so there is no variant with 32 rows for them. 4
// bits in larger groups have kernels of their own: by limbs for one row without zero points, else marlin_rows.cuh.
template <int kBits, bool kZeros>
bool launch_for_rows(CudaState& s, const Job& job, Kernel kernel, bool fine) {
  if constexpr (kBits == 4) {
    if constexpr (!kZeros)
      if (kernel == Kernel::marlin_limbs) return launch_stream<Variant<4, 1, false, false>>(s, job);
    if (kernel == Kernel::marlin_rows) return marlin_rows::try_launch(s, job);
  } else if (!fine) {
    return job.rows <= 8    ? launch_stream<Variant<kBits, 8, false, kZeros>>(s, job)
           : job.rows <= 16 ? launch_stream<Variant<kBits, 16, false, kZeros>>(s, job)
                            : launch_stream<Variant<kBits, 32, false, kZeros>>(s, job);
  }
  return job.rows <= 8 ? launch_stream<Variant<kBits, 8, true, kZeros>>(s, job)
                       : launch_stream<Variant<kBits, 16, true, kZeros>>(s, job);
}

constexpr int kDequantTiles = 8;  // k-tiles of a block of marlin_dequantize_kernel, one for each warp

// Dequantizes outputs from chunk0 * 64 on into `to` [outputs, in]. A block has 64 outputs and 128 values of k: each
// warp turns one k-tile into values in shared memory, from where rows leave in pieces of 16 bytes.
template <int kBits, class Out>
__global__ void __launch_bounds__(32 * kDequantTiles)
    marlin_dequantize_kernel(const __grid_constant__ MarlinSource w, int chunk0, Out* __restrict__ to) {
  constexpr int kWidth = kDequantTiles * marlin::kTileK, kStride = kWidth + kVec16<Out>;
  extern __shared__ __align__(16) uint8_t shared[];
  auto* tile_sh = reinterpret_cast<Out*>(shared);  // [64, kStride]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunk = chunk0 + blockIdx.y, k0 = blockIdx.x * kWidth, tile = k0 / marlin::kTileK + warp;
  if (tile < w.k_tiles()) {
    const int64_t group = w.grouped() ? tile / w.group_tiles : 0;
    LaneZeros<kBits> zeros;
    zeros.set_middle();
    if (w.z) zeros.set_words(w.z + group * (w.out * kBits / 32) + chunk * (2 * kBits), lane);
    alignas(16) __half scales[8];
    if (w.grouped())
      *reinterpret_cast<uint4*>(scales) = *reinterpret_cast<const uint4*>(w.s + group * w.out + chunk * marlin::kTileN +
                                                                          marlin::fragment_scale(lane, 0, true));
    else
      lane_scales_one_group(scales, w, chunk, lane);
    uint32_t words[kBits];
    const auto* from = reinterpret_cast<const uint4*>(w.b + static_cast<int64_t>(tile) * (w.out * kBits / 2) +
                                                      chunk * marlin::tile_words(kBits) + lane * kBits);
#pragma unroll
    for (int p = 0; p < kBits / 4; ++p) *reinterpret_cast<uint4*>(&words[4 * p]) = from[p];
#pragma unroll
    for (int j = 0; j < marlin::kSubTiles; ++j) {
      uint32_t a[4];
      fragment<kBits>(a, words, j, zeros);
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) {
        const float scale = __half2float(scales[2 * j + reg % 2]);
        const float low = __uint_as_float(a[reg] << 16), high = __uint_as_float(a[reg] & 0xffff0000u);
        Out* at = tile_sh + marlin::fragment_output(lane, j, reg) * kStride + warp * marlin::kTileK +
                  marlin::fragment_k(lane, reg, 0);
        at[0] = from_f32<Out>(low * scale);
        at[1] = from_f32<Out>(high * scale);
      }
    }
  }
  __syncthreads();
  constexpr int kPieces = kWidth / kVec16<Out>;
  for (int e = threadIdx.x; e < marlin::kTileN * kPieces; e += 32 * kDequantTiles) {
    const int row = e / kPieces, col = e % kPieces * kVec16<Out>;
    if (k0 + col < w.in)
      *reinterpret_cast<uint4*>(to + (static_cast<int64_t>(blockIdx.y) * marlin::kTileN + row) * w.in + k0 + col) =
          *reinterpret_cast<const uint4*>(tile_sh + row * kStride + col);
  }
}

// Dequantizes outputs [n0, n1) (multiples of 64) into `to` [n1 - n0, in].
template <class Out>
void dequantize_outputs(CudaState& s, const MarlinSource& w, int bits, int64_t n0, int64_t n1, Out* to) {
  constexpr int kWidth = kDequantTiles * marlin::kTileK;
  const size_t shared = sizeof(Out) * marlin::kTileN * (kWidth + kVec16<Out>);
  auto* kernel = bits == 4 ? marlin_dequantize_kernel<4, Out> : marlin_dequantize_kernel<8, Out>;
  const dim3 grid(static_cast<unsigned>((w.in + kWidth - 1) / kWidth),
                  static_cast<unsigned>((n1 - n0) / marlin::kTileN));
  FEWBIT_ASSERT(grid.y <= 65535);
  kernel<<<grid, 32 * kDequantTiles, shared, s.stream>>>(w, static_cast<int>(n0 / marlin::kTileN), to);
  FEWBIT_CUDA_LAUNCHED();
}

void dense_path(CudaState& s, ConstTensorView x, const MarlinProduct& p) {
  const MarlinView& m = p.w;
  const MarlinSource w = source_of(m);
  const int64_t most = static_cast<int64_t>(kDenseScratch) / (2 * m.in) / marlin::kTileN * marlin::kTileN;
  const int64_t slab = std::min(m.out, std::max<int64_t>(most, marlin::kTileN));
  auto* weight = s.scratch_of<__nv_bfloat16>(slab * m.in);
  if (p.bias.data) lay_bias(s, p.bias, p.y);
  for (int64_t n0 = 0; n0 < m.out; n0 += slab) {
    const int64_t n1 = std::min(m.out, n0 + slab);
    dequantize_outputs(s, w, m.bits, n0, n1, weight);
    dense_product(s, {.x = x.data,
                      .w = weight,
                      .y = static_cast<char*>(p.y.data) + n0 * bytes_of(p.y.dtype),
                      .in_dtype = DType::bf16,
                      .y_dtype = p.y.dtype,
                      .rows = x.rows(),
                      .in = m.in,
                      .out = n1 - n0,
                      .y_stride = m.out,
                      .add = p.add || p.bias.data != nullptr});
  }
}

void check_product(ConstTensorView x, const MarlinProduct& p) {
  FEWBIT_ASSERT(x.dtype == DType::bf16 && (p.y.dtype == DType::bf16 || p.y.dtype == DType::f32));
  FEWBIT_ASSERT(!p.bias.data || (p.bias.dtype == DType::bf16 && p.bias.numel() == p.w.out));
  FEWBIT_ASSERT(!(p.add && p.bias.data));
  FEWBIT_ASSERT(x.cols() == p.w.in && p.y.rows() == x.rows() && p.y.cols() == p.w.out);
}

bool may_share_a_launch(const MarlinProduct& a, const MarlinProduct& b) {
  return a.w.bits == b.w.bits && a.w.groups() == b.w.groups() && (a.w.z.data != nullptr) == (b.w.z.data != nullptr) &&
         a.y.dtype == b.y.dtype;
}

KernelProblem problem_of(ConstTensorView x, const MarlinProduct& p) {
  return {.op = ChoiceOp::packed,
          .x = x.dtype,
          .bits = p.w.bits,
          .group = p.w.group(),
          .zeros = p.w.z.data != nullptr,
          .rows = x.rows(),
          .in = p.w.in,
          .out = p.w.out,
          .tensor_maps = tensor_map_encoder() != nullptr};
}

// The products by one of the kernels for few rows. False where no way to cut them keeps all blocks resident.
bool try_few_rows(CudaState& s, ConstTensorView x, std::span<const MarlinProduct> products, Kernel kernel) {
  FEWBIT_ASSERT(aligned16(static_cast<const char*>(x.data)));
  Job job{};
  for (size_t i = 0; i < products.size(); ++i) {
    const MarlinProduct& p = products[i];
    FEWBIT_ASSERT(aligned16(static_cast<const char*>(p.y.data)));
    job.chunks += static_cast<int>(p.w.out / marlin::kTileN);
    job.weights[i] = {.w = source_of(p.w),
                      .bias = static_cast<const __nv_bfloat16*>(p.bias.data),
                      .y = p.y.data,
                      .add = p.add,
                      .end_chunk = job.chunks};
  }
  const MarlinSource& w = job.weights[0].w;
  job.x = x.as<__nv_bfloat16>();
  job.rows = static_cast<int>(x.rows());
  job.in = w.in;
  job.y_f32 = products[0].y.dtype == DType::f32;
  job.group_shift = w.group_shift();
  const bool fine = w.grouped() && w.group_tiles < kWarpTiles;
  if (products[0].w.bits == 4)
    return w.z ? launch_for_rows<4, true>(s, job, kernel, fine) : launch_for_rows<4, false>(s, job, kernel, fine);
  return w.z ? launch_for_rows<8, true>(s, job, kernel, fine) : launch_for_rows<8, false>(s, job, kernel, fine);
}

}  // namespace

void marlin_gemms(Exec& ex, ConstTensorView x, std::span<const MarlinProduct> products) {
  if (x.rows() == 0) return;
  CudaState& s = ex.cuda_state();
  for (size_t first = 0; first < products.size();) {
    size_t count = 1;
    while (first + count < products.size() && count < kFusedProducts &&
           may_share_a_launch(products[first], products[first + count]))
      ++count;
    const std::span<const MarlinProduct> run = products.subspan(first, count);
    for (const MarlinProduct& p : run) check_product(x, p);
    first += count;
    const Kernel kernel = choose_kernel(problem_of(x, run.front()), s.traits()).kernel;
    if (kernel == Kernel::marlin_wide)
      marlin_wide::launch(s, x, run);
    else if (kernel == Kernel::marlin_dequantized || !try_few_rows(s, x, run, kernel))
      for (const MarlinProduct& p : run) dense_path(s, x, p);
  }
}

void marlin_gemm(Exec& ex, ConstTensorView x, const MarlinView& m, ConstTensorView bias, TensorView y) {
  const MarlinProduct product{m, bias, y};
  cuda::marlin_gemms(ex, x, std::span(&product, 1));
}

void marlin_dequantize(Exec& ex, const MarlinView& m, TensorView w) {
  FEWBIT_ASSERT(w.rows() == m.out && w.cols() == m.in && aligned16(static_cast<const char*>(w.data)));
  dispatch_f32_bf16(w.dtype, [&](auto type) {
    using Out = typename decltype(type)::type;
    for (int64_t n0 = 0; n0 < m.out; n0 += int64_t{65535} * marlin::kTileN) {
      const int64_t n1 = std::min(m.out, n0 + int64_t{65535} * marlin::kTileN);
      dequantize_outputs(ex.cuda_state(), source_of(m), m.bits, n0, n1, w.as<Out>() + n0 * m.in);
    }
  });
}

}  // namespace fewbit::cuda
