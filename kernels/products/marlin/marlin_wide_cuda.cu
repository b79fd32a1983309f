// Launches of the kernel of marlin_wide.cuh: for which products, and with which variant.
#include "kernels/products/marlin/marlin_wide.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <type_traits>

#include "kernels/device/tensor_map.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/products/marlin/marlin_wide.cuh"

namespace fewbit::cuda::marlin_wide {
namespace {

template <class S>
Maps maps_of(ConstTensorView x, const Job& job, int count) {
  const auto in = static_cast<cuuint64_t>(job.weights[0].w.in), rows = static_cast<cuuint64_t>(job.rows);
  Maps maps{};
  maps.x = map_of<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x.data, {in, rows}, {in * sizeof(__nv_bfloat16)},
                     {kBoxDepth, S::kTokens / S::kCluster}, CU_TENSOR_MAP_SWIZZLE_128B);
  for (int i = 0; i < count; ++i) {
    const MarlinSource& w = job.weights[i].w;
    const auto out = static_cast<cuuint64_t>(w.out);
    constexpr cuuint32_t kWords = marlin::tile_words(S::kBits);
    maps.words[i] = map_of<3>(CU_TENSOR_MAP_DATA_TYPE_UINT32, w.b, {kWords, out / marlin::kTileN, in / marlin::kTileK},
                              {kWords * 4, out / marlin::kTileN * kWords * 4}, {kWords, S::kChunks, S::kStageTiles},
                              CU_TENSOR_MAP_SWIZZLE_NONE);
    if (job.y_f32) continue;
    for (const bool subtile : {true, false})
      (subtile ? maps.y_subtile : maps.y_octet)[i] =
          map_of<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, job.weights[i].y, {out, rows}, {out * sizeof(__nv_bfloat16)},
                    {marlin::kTileN, 8u * (subtile ? S::kSubtileOctets : 1)}, CU_TENSOR_MAP_SWIZZLE_128B);
  }
  return maps;
}

// How many clusters run at the same time; 0 where the GPU has no room for one. The driver is asked once for each GPU.
template <class S>
int most_clusters(CudaState& s) {
  if constexpr (S::kCluster == 1) return s.sms();
  static std::array<std::atomic<int>, 16> known;  // of each device, plus one; 0: not asked yet
  const auto ask = [&] {
    return ClusterLaunch(s, reinterpret_cast<const void*>(marlin_wide_kernel<S>), S::kCluster, S::kCluster, kThreads,
                         S::kShared)
        .most_clusters();
  };
  if (static_cast<size_t>(s.device) >= known.size()) return ask();
  std::atomic<int>& most = known[static_cast<size_t>(s.device)];
  if (most == 0) most = ask() + 1;
  return most - 1;
}

// Cuts the job into tiles of S, and says how they are shared.
template <class S>
Plan cut(CudaState& s, Job& job, int count) {
  job.out_tiles = 0;
  for (Weight& w : std::span(job.weights).first(static_cast<size_t>(count)))
    w.end_tile = job.out_tiles += (w.w.out + S::kTileOuts - 1) / S::kTileOuts;
  job.row_tiles = (job.rows + S::kTokens - 1) / S::kTokens;
  job.steps = (job.weights[0].w.in + S::kStageDepth - 1) / S::kStageDepth;
  const int64_t tiles = static_cast<int64_t>(job.out_tiles) * job.row_tiles;
  FEWBIT_ASSERT(tiles < int64_t{1} << 30);
  const Plan plan = make_plan(most_clusters<S>(s), tiles, job.steps, S::kMerge, S::kTwoMerges);
  job.shared_tiles = plan.shared_tiles;
  FEWBIT_ASSERT(int64_t{plan.shared_tiles} * job.steps * (plan.clusters + 1) < int64_t{1} << 31);
  return plan;
}

template <class S>
void launch_shape(CudaState& s, ConstTensorView x, Job job, int count) {
  const int grid = cut<S>(s, job, count).clusters * S::kCluster;
  FEWBIT_ASSERT(2 * S::kCluster * job.shared_tiles <= CudaState::kCounters);
  job.counters = s.counters;
  if (job.shared_tiles > 0) {
    const int64_t sums = static_cast<int64_t>(grid) * 2 * 4 * S::kPartialQuads;
    job.partials = S::kFew ? static_cast<float*>(s.flagged_partials(static_cast<size_t>(sums) * sizeof(float)))
                           : s.scratch_of<float>(sums);
  }
  auto* kernel = marlin_wide_kernel<S>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  launch_clusters(s, S::kCluster, kernel, dim3(grid), dim3(kThreads), S::kShared, job, maps_of<S>(x, job, count));
}

// Few rows: blocks of 256 outputs take fewer instructions and read x less often, those of 128 leave each other half of
// the sums.
template <int kBits>
void launch_few(CudaState& s, ConstTensorView x, Job job, int count) {
  using Wide = Shape<kBits, 64, 256, false, false, true>;
  using Narrow = Shape<kBits, 64, 128, false, false, true>;
  const int64_t wide = cut<Wide>(s, job, count).cost * Wide::kStageCost,
                narrow = cut<Narrow>(s, job, count).cost * Narrow::kStageCost;
  narrow < wide ? launch_shape<Narrow>(s, x, job, count) : launch_shape<Wide>(s, x, job, count);
}

}  // namespace

void launch(CudaState& s, ConstTensorView x, std::span<const MarlinProduct> products) {
  FEWBIT_ASSERT(products.size() <= kWeights && aligned16(static_cast<const char*>(x.data)));
  Job job{};
  for (size_t i = 0; i < products.size(); ++i) {
    const MarlinProduct& p = products[i];
    FEWBIT_ASSERT(aligned16(static_cast<const char*>(p.y.data)));
    job.weights[i] = {.w = source_of(p.w),
                      .bias = static_cast<const __nv_bfloat16*>(p.bias.data),
                      .y = p.y.data,
                      .add = p.add,
                      .end_tile = 0};
  }
  const MarlinSource& w = job.weights[0].w;
  job.rows = static_cast<int>(x.rows());
  job.y_f32 = products[0].y.dtype == DType::f32;
  job.group_shift = w.group_shift();
  const auto count = static_cast<int>(products.size());
  const auto launch_for_rows = [&]<int kBits, bool kZeros, bool kFine>(std::integral_constant<int, kBits>,
                                                                       std::bool_constant<kZeros>,
                                                                       std::bool_constant<kFine>) {
    if (job.rows <= 32)
      launch_shape<Shape<kBits, 32, 256, kZeros, kFine>>(s, x, job, count);
    else if (job.rows <= 64 && w.group_tiles == 8 && !kZeros)
      launch_few<kBits>(s, x, job, count);
    else if (job.rows <= 64)
      launch_shape<Shape<kBits, 64, 256, kZeros, kFine>>(s, x, job, count);
    else if ((job.rows + 127) / 128 % 2 == 1 ||  // a last tile of 256 rows would be half empty
             most_clusters<Shape<kBits, 256, 128, kZeros, kFine>>(s) == 0)
      launch_shape<Shape<kBits, 128, 256, kZeros, kFine>>(s, x, job, count);
    else
      launch_shape<Shape<kBits, 256, 128, kZeros, kFine>>(s, x, job, count);
  };
  const auto for_groups = [&](auto bits, auto zeros) {
    w.group_tiles == 2 ? launch_for_rows(bits, zeros, std::true_type{})
                       : launch_for_rows(bits, zeros, std::false_type{});
  };
  const auto for_zeros = [&](auto bits) {
    w.z ? for_groups(bits, std::true_type{}) : for_groups(bits, std::false_type{});
  };
  products[0].w.bits == 4 ? for_zeros(std::integral_constant<int, 4>{}) : for_zeros(std::integral_constant<int, 8>{});
}

}  // namespace fewbit::cuda::marlin_wide
