// Chooses among three kernels: many query rows in bf16 go to the flash kernel, few over the cache to the
// split kernel, everything else (float32, odd head_dims) to the plain one. Also writes new keys and values
// into the cache.
#include <algorithm>

#include "kernels/attention.h"
#include "kernels/attention_decode.cuh"
#include "kernels/attention_flash.cuh"
#include "kernels/attention_plain.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/vec.cuh"

namespace fewbit::cuda {
namespace {

// Over the cache, up to so many rows (new tokens x heads of a kv head) are a split problem: beyond, the flash
// kernel's blocks of 64 rows fill the GPU by themselves.
constexpr int kFewRows = 64;
constexpr int kMaxTensorDim = 256;

template <class T>
AttentionSource<T> source(ConstTensorView q, const AttentionArgs& args, int64_t seqs, TensorView out) {
  FEWBIT_ASSERT(args.heads > 0 && args.kv_heads > 0 && args.heads % args.kv_heads == 0 && seqs > 0);
  FEWBIT_ASSERT(q.rows() % seqs == 0 && q.cols() == args.heads * args.head_dim);
  FEWBIT_ASSERT(out.dtype == q.dtype && out.numel() == q.numel());
  AttentionSource<T> a{};
  a.q = q.as<T>();
  a.out = out.as<T>();
  a.seqs = static_cast<int>(seqs);
  a.len = static_cast<int>(q.rows() / seqs);
  a.heads = args.heads;
  a.kv_heads = args.kv_heads;
  a.d = static_cast<int>(args.head_dim);
  a.window = static_cast<int>(std::min<int64_t>(args.window, 0x3fffffff));
  a.scale = args.scale;
  a.softcap = args.softcap;
  return a;
}

bool fits_tensor_kernels(const AttentionSource<__nv_bfloat16>& a) {
  return a.d % 8 == 0 && a.d <= kMaxTensorDim && aligned16(a.q) && aligned16(a.k) && aligned16(a.v) &&
         aligned16(a.out);
}

// Variants: the head_dims of the models in the field; others use the next larger one, padded with zeros.
template <class F>
void dispatch_head_dim(int d, F&& f) {
  if (d <= 16) return f(std::integral_constant<int, 16>{});
  if (d <= 32) return f(std::integral_constant<int, 32>{});
  if (d <= 64) return f(std::integral_constant<int, 64>{});
  if (d <= 80) return f(std::integral_constant<int, 80>{});
  if (d <= 96) return f(std::integral_constant<int, 96>{});
  if (d <= 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, 256>{});
}

template <class T>
void run(CudaState& s, const AttentionSource<T>& a, bool over_cache) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if (fits_tensor_kernels(a)) {
      const bool few = over_cache && a.len * (a.heads / a.kv_heads) <= kFewRows;
      return dispatch_head_dim(a.d, [&](auto dim) {
        if (few)
          launch_decode<decltype(dim)::value>(s, a);
        else
          launch_flash<decltype(dim)::value>(s, a);
      });
    }
  }
  launch_plain(s, a);
}

// kN: values per thread and step.
template <class T, int kN>
__global__ void kv_append_kernel(const T* __restrict__ k,  // [batch * len, kv_heads * d]
                                 const T* __restrict__ v, const int32_t* __restrict__ positions,
                                 T* __restrict__ k_cache,  // [batch, kv_heads, capacity, d]
                                 T* __restrict__ v_cache, int len, int kv_heads, int64_t capacity, int d) {
  const int64_t row = blockIdx.x, width = static_cast<int64_t>(kv_heads) * d;
  const int64_t seq = row / len, position = positions[row];
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * kN; c < width;
       c += static_cast<int64_t>(blockDim.x) * kN) {
    const int64_t to = ((seq * kv_heads + c / d) * capacity + position) * d + c % d;
    store_vec(k_cache + to, load_vec<T, kN>(k + row * width + c));
    store_vec(v_cache + to, load_vec<T, kN>(v + row * width + c));
  }
}

}  // namespace

void attention(Exec& ex, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs,
               const AttentionArgs& args, TensorView out) {
  if (q.numel() == 0) return;
  FEWBIT_ASSERT(k.dtype == q.dtype && v.dtype == q.dtype && k.shape == v.shape && k.rows() == q.rows());
  FEWBIT_ASSERT(k.cols() == args.kv_heads * args.head_dim);
  dispatch_f32_bf16(q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    AttentionSource<T> a = source<T>(q, args, seqs, out);
    a.k = k.as<T>();
    a.v = v.as<T>();
    a.keys = a.len;
    a.kv_token = k.cols();
    a.kv_head = args.head_dim;
    a.kv_seq = a.len * a.kv_token;
    run(ex.cuda_state(), a, false);
  });
}

void kv_append(Exec& ex, ConstTensorView k, ConstTensorView v, ConstTensorView positions, TensorView k_cache,
               TensorView v_cache) {
  const Shape& cache = k_cache.shape;
  FEWBIT_ASSERT(cache.rank() == 4 && v_cache.shape == cache && k.shape == v.shape);
  FEWBIT_ASSERT(k.dtype == k_cache.dtype && v.dtype == k_cache.dtype && v_cache.dtype == k_cache.dtype);
  const int64_t rows = k.rows(), batch = cache[0], kv_heads = cache[1], capacity = cache[2], d = cache[3];
  if (rows == 0) return;
  FEWBIT_ASSERT(k.cols() == kv_heads * d && rows % batch == 0 && positions.numel() == rows);
  FEWBIT_ASSERT(positions.dtype == DType::i32);
  dispatch_f32_bf16(k.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kN = kVec16<T>;
    const bool vectors = aligned16(k.as<T>(), d) && aligned16(v.as<T>()) && aligned16(k_cache.as<T>()) &&
                         aligned16(v_cache.as<T>());
    auto* kernel = vectors ? kv_append_kernel<T, kN> : kv_append_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(rows), 128, 0, ex.cuda_state().stream>>>(
        k.as<T>(), v.as<T>(), positions.as<int32_t>(), k_cache.as<T>(), v_cache.as<T>(),
        static_cast<int>(rows / batch), static_cast<int>(kv_heads), capacity, static_cast<int>(d));
  });
  FEWBIT_CUDA_LAUNCHED();
}

void attention_cached(Exec& ex, ConstTensorView q, ConstTensorView positions, ConstTensorView k_cache,
                      ConstTensorView v_cache, const AttentionArgs& args, TensorView out) {
  const Shape& cache = k_cache.shape;
  FEWBIT_ASSERT(cache.rank() == 4 && v_cache.shape == cache && cache[1] == args.kv_heads &&
                cache[3] == args.head_dim);
  FEWBIT_ASSERT(k_cache.dtype == q.dtype && v_cache.dtype == q.dtype);
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == q.rows());
  if (q.numel() == 0) return;
  dispatch_f32_bf16(q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    AttentionSource<T> a = source<T>(q, args, cache[0], out);
    a.k = k_cache.as<T>();
    a.v = v_cache.as<T>();
    a.positions = positions.as<int32_t>();
    a.keys = static_cast<int>(cache[2]);
    a.kv_token = args.head_dim;
    a.kv_head = cache[2] * args.head_dim;
    a.kv_seq = args.kv_heads * a.kv_head;
    run(ex.cuda_state(), a, true);
  });
}

}  // namespace fewbit::cuda
