// Writes new keys and values into the cache, as they are or as codes.
#include <algorithm>

#include "kernels/attention/cache_place.cuh"
#include "kernels/attention/kv_quantize.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"

namespace fewbit::cuda {
namespace {

// Copies new keys and values to their positions. Grid: new tokens. kN: values a thread copies at once.
template <class T, int kN>
__global__ void kv_append_kernel(const T* __restrict__ k,  // [batch * len, kv_heads * d]
                                 const T* __restrict__ v, const int32_t* __restrict__ positions,
                                 T* __restrict__ k_cache,  // [batch or pages, kv_heads, positions, d]
                                 T* __restrict__ v_cache, CachePlace place, int kv_heads, int d) {
  allow_successor();
  await_predecessor();
  const int64_t row = blockIdx.x, width = static_cast<int64_t>(kv_heads) * d;
  const int position = positions[row];
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * kN; c < width; c += static_cast<int64_t>(blockDim.x) * kN) {
    const int64_t at = place.row(row, static_cast<int>(c / d), kv_heads, position), to = at * d + c % d;
    if (at < 0) return;
    store_vec(k_cache + to, load_vec<T, kN>(k + row * width + c));
    store_vec(v_cache + to, load_vec<T, kN>(v + row * width + c));
  }
}

// Quantizes new keys and values to their positions. Grid: new tokens x kv heads; one warp has the key, the other the
// value.
template <class T, class C>
__global__ void kv_quantize_kernel(const T* __restrict__ k,  // [batch * len, kv_heads * d]
                                   const T* __restrict__ v, const int32_t* __restrict__ positions,
                                   C* __restrict__ k_cache,  // [batch or pages, kv_heads, positions, d]
                                   C* __restrict__ v_cache, float* __restrict__ k_scales, float* __restrict__ v_scales,
                                   CachePlace place, int d) {
  allow_successor();
  await_predecessor();
  const int head = blockIdx.y, kv_heads = gridDim.y;
  const int64_t row = blockIdx.x, at = place.row(row, head, kv_heads, positions[row]);
  if (at < 0) return;
  const bool value = threadIdx.x >= 32;
  const T* x = (value ? v : k) + (row * kv_heads + head) * d;
  C* cache = value ? v_cache : k_cache;
  float* scales = value ? v_scales : k_scales;
  if constexpr (kGroupScales<C>) {
    __shared__ nibble_rows::FitRoom<2, 1> room;
    store_int4_row<1>(x, cache, scales, at, d, room, 1, 0);
  } else {
    store_row(x, cache, scales, at, head, d);
  }
}

void append(Exec& ex, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache& cache,
            const CachePlace& place) {
  const int64_t rows = k.rows(), kv_heads = cache.k.shape[1], d = head_dim_of(cache);
  FEWBIT_ASSERT(consistent(cache, k.dtype) && v.dtype == k.dtype && k.shape == v.shape);
  FEWBIT_ASSERT(k.cols() == kv_heads * d && positions.dtype == DType::i32 && positions.numel() == rows);
  if (rows == 0) return;
  CudaState& s = ex.cuda_state();
  const auto blocks = static_cast<unsigned>(rows), heads = static_cast<unsigned>(kv_heads);
  const int width = static_cast<int>(d);
  dispatch_cache(k.dtype, cache.k.dtype, [&](auto type, auto code) {
    using T = typename decltype(type)::type;
    using C = typename decltype(code)::type;
    if constexpr (kIsCode<C>) {
      launch_overlapping(s, kv_quantize_kernel<T, C>, dim3(blocks, heads), dim3(64), 0, k.as<T>(), v.as<T>(),
                         positions.as<int32_t>(), cache.k.as<C>(), cache.v.as<C>(),
                         static_cast<float*>(cache.k_scales.data), static_cast<float*>(cache.v_scales.data), place,
                         width);
    } else {
      constexpr int kN = kVec16<T>;
      const bool vectors =
          aligned16(k.as<T>(), d) && aligned16(v.as<T>()) && aligned16(cache.k.as<T>()) && aligned16(cache.v.as<T>());
      auto* kernel = vectors ? kv_append_kernel<T, kN> : kv_append_kernel<T, 1>;
      launch_overlapping(s, kernel, dim3(blocks), dim3(128), 0, k.as<T>(), v.as<T>(), positions.as<int32_t>(),
                         cache.k.as<T>(), cache.v.as<T>(), place, static_cast<int>(kv_heads), width);
    }
  });
}

}  // namespace

void kv_append(Exec& ex, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache& cache) {
  const int64_t batch = cache.k.shape[0];
  FEWBIT_ASSERT(k.rows() % batch == 0);
  append(ex, k, v, positions, cache,
         {.len = static_cast<int>(std::max<int64_t>(k.rows() / batch, 1)), .capacity = cache.k.shape[2]});
}

void kv_append_paged(Exec& ex, ConstTensorView k, ConstTensorView v, const PagedRows& rows, const KvCache& cache) {
  append(ex, k, v, rows.positions, cache, place_of(rows, cache, k.rows()));
}

}  // namespace fewbit::cuda
