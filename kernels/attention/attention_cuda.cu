// Launches one of four kernels, or widens a cache of 4 bits first, as kernels/choice/kernel_choice.h says, and writes
// new keys and values into the cache, as they are or as codes.
#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_decode.cuh"
#include "kernels/attention/attention_flash.cuh"
#include "kernels/attention/attention_plain.cuh"
#include "kernels/attention/attention_wide.cuh"
#include "kernels/attention/kv_quantize.cuh"
#include "kernels/choice/kernel_choice.h"
#include "kernels/device/vec.cuh"
#include "kernels/model/hadamard.h"

namespace fewbit::cuda {
namespace {

template <class T, class C>
AttentionSource<T, C> source(ConstTensorView q, const AttentionArgs& args, int64_t seqs, TensorView out) {
  FEWBIT_ASSERT(args.heads > 0 && args.kv_heads > 0 && args.heads % args.kv_heads == 0 && seqs > 0);
  FEWBIT_ASSERT(q.rows() % seqs == 0 && q.cols() == args.heads * args.head_dim);
  FEWBIT_ASSERT(out.dtype == q.dtype && out.numel() == q.numel());
  AttentionSource<T, C> a{};
  a.q = q.as<T>();
  a.out = out.as<T>();
  a.seqs = static_cast<int>(seqs);
  a.len = static_cast<int>(q.rows() / seqs);
  a.heads = args.heads;
  a.kv_heads = args.kv_heads;
  a.d = static_cast<int>(args.head_dim);
  a.window = static_cast<int>(std::min<int64_t>(args.window, 0x3fffffff));
  a.chunk = static_cast<int>(std::min<int64_t>(args.chunk, 0x3fffffff));
  a.scale = args.scale;
  a.softcap = args.softcap;
  a.sinks = args.sinks.data ? args.sinks.as<float>() : nullptr;
  return a;
}

// What kernels/choice/kernel_choice.h asks of a call.
template <class T, class C>
KernelProblem problem_of(const AttentionSource<T, C>& a, bool over_cache) {
  constexpr DType kActivations = std::is_same_v<T, float> ? DType::f32 : DType::bf16;
  return {.op = ChoiceOp::attention,
          .x = kActivations,
          .weight = !kIsCode<C>                 ? kActivations
                    : kGroupScales<C>           ? DType::u8
                    : std::is_same_v<C, I8Code> ? DType::i8
                                                : DType::f8_e4m3,
          .rows = a.len,
          .over_cache = over_cache,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_dim = a.d,
          .sequences = a.seqs,
          .scale = a.scale,
          .aligned = aligned16(a.q) && aligned16(a.k) && aligned16(a.v) && aligned16(a.out),
          .tensor_maps = tensor_map_encoder() != nullptr};
}

// Calls f with the instantiation for a head_dim: those of common models; others use the next larger one, padded with
// zeros. 16 and 32 are those of tests' models and exist without codes only.
template <class C, class F>
void dispatch_head_dim(int d, F&& f) {
  if constexpr (!kIsCode<C>) {
    if (d <= 16) return f(std::integral_constant<int, 16>{});
    if (d <= 32) return f(std::integral_constant<int, 32>{});
  }
  if (d <= 64) return f(std::integral_constant<int, 64>{});
  if constexpr (!kGroupScales<C>)
    if (d <= 80) return f(std::integral_constant<int, 80>{});
  if (d <= 96) return f(std::integral_constant<int, 96>{});
  if (d <= 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, 256>{});
}

// Keys and values of 4 bits as a bf16 cache in scratch memory, `a` over it; which of them are in sight the host does
// not know.
AttentionSource<__nv_bfloat16> widened(CudaState& s, const AttentionSource<__nv_bfloat16, I4Codes>& a) {
  const int64_t rows = static_cast<int64_t>(a.seqs) * a.kv_heads * a.keys, values = rows * a.d;
  __nv_bfloat16* room = s.scratch_of<__nv_bfloat16>(2 * (values + 8));
  __nv_bfloat16 *k = room, *v = room + (values + 7) / 8 * 8;
  const auto widen = [&](const I4Codes* codes, const float* scales, __nv_bfloat16* to) {
    const auto blocks =
        static_cast<unsigned>((values / 2 + nibble_rows::kWidenThreads - 1) / nibble_rows::kWidenThreads);
    nibble_rows::widen_kernel<nibble_rows::kWidenThreads><<<blocks, nibble_rows::kWidenThreads, 0, s.stream>>>(
        codes, reinterpret_cast<const uint32_t*>(scales), reinterpret_cast<__nv_bfloat162*>(to), values / 2, a.d / 2,
        static_cast<int>(int4_groups(a.d)));
    FEWBIT_CUDA_LAUNCHED();
  };
  widen(a.k, a.k_scales, k);
  widen(a.v, a.v_scales, v);
  AttentionSource<__nv_bfloat16> wide{};
  wide.q = a.q, wide.k = k, wide.v = v, wide.positions = a.positions, wide.out = a.out;
  wide.seqs = a.seqs, wide.len = a.len, wide.heads = a.heads, wide.kv_heads = a.kv_heads, wide.d = a.d;
  wide.kv_token = a.d, wide.kv_head = static_cast<int64_t>(a.keys) * a.d, wide.kv_seq = a.kv_heads * wide.kv_head;
  wide.keys = a.keys, wide.window = a.window, wide.scale = a.scale, wide.softcap = a.softcap;
  wide.sinks = a.sinks, wide.chunk = a.chunk, wide.turn_back = a.turn_back;
  return wide;
}

// Returns whether the output is turned back already where that is asked.
template <class T, class C>
bool run(CudaState& s, const AttentionSource<T, C>& a, bool over_cache, bool behind_append = false) {
  Kernel kernel = a.chunk > 0 ? Kernel::attention_plain : choose_kernel(problem_of(a, over_cache), s.traits()).kernel;
  if (a.sinks && kernel != Kernel::attention_decode) kernel = Kernel::attention_plain;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (!kIsCode<C>)
      if (kernel == Kernel::attention_wide) {
        a.d == 64 ? attention_wide::launch<64>(s, a) : attention_wide::launch<128>(s, a);
        return false;
      }
    if constexpr (kGroupScales<C>) {
      // Not split along the keys: the scratch memory is taken.
      if (kernel == Kernel::attention_widened) return run(s, widened(s, a), false);
    }
    if (kernel != Kernel::attention_plain) {
      bool turned = false;
      dispatch_head_dim<C>(a.d, [&](auto dim) {
        if (kernel == Kernel::attention_decode)
          turned = attention_decode::launch<decltype(dim)::value>(s, a, behind_append);
        else if constexpr (!kGroupScales<C>)
          attention_flash::launch<decltype(dim)::value>(s, a);
      });
      return turned;
    }
  }
  attention_plain::launch(s, a);
  return false;
}

// Copies new keys and values to their positions. Grid: new tokens. kN: values a thread copies at once.
template <class T, int kN>
__global__ void kv_append_kernel(const T* __restrict__ k,  // [batch * len, kv_heads * d]
                                 const T* __restrict__ v, const int32_t* __restrict__ positions,
                                 T* __restrict__ k_cache,  // [batch, kv_heads, capacity, d]
                                 T* __restrict__ v_cache, int len, int kv_heads, int64_t capacity, int d) {
  allow_successor();
  await_predecessor();
  const int64_t row = blockIdx.x, width = static_cast<int64_t>(kv_heads) * d;
  const int64_t seq = row / len, position = positions[row];
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * kN; c < width; c += static_cast<int64_t>(blockDim.x) * kN) {
    const int64_t to = ((seq * kv_heads + c / d) * capacity + position) * d + c % d;
    store_vec(k_cache + to, load_vec<T, kN>(k + row * width + c));
    store_vec(v_cache + to, load_vec<T, kN>(v + row * width + c));
  }
}

// Quantizes new keys and values to their positions. Grid: new tokens x kv heads; one warp has the key, the other the
// value.
template <class T, class C>
__global__ void kv_quantize_kernel(const T* __restrict__ k,  // [batch * len, kv_heads * d]
                                   const T* __restrict__ v, const int32_t* __restrict__ positions,
                                   C* __restrict__ k_cache,  // [batch, kv_heads, capacity, d]
                                   C* __restrict__ v_cache, float* __restrict__ k_scales, float* __restrict__ v_scales,
                                   int len, int64_t capacity, int d) {
  allow_successor();
  await_predecessor();
  const int64_t row = blockIdx.x, head = blockIdx.y, kv_heads = gridDim.y;
  const int64_t at = (row / len * kv_heads + head) * capacity + positions[row];
  const bool value = threadIdx.x >= 32;
  const T* x = (value ? v : k) + (row * kv_heads + head) * d;
  C* cache = value ? v_cache : k_cache;
  float* scales = value ? v_scales : k_scales;
  if constexpr (kGroupScales<C>) {
    __shared__ nibble_rows::FitRoom<2, 1> room;
    store_int4_row<1>(x, cache, scales, at, d, room, 1, 0);
  } else {
    store_row(x, cache, scales, at, static_cast<int>(head), d);
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
    AttentionSource<T> a = source<T, T>(q, args, seqs, out);
    a.k = k.as<T>();
    a.v = v.as<T>();
    a.keys = a.len;
    a.kv_token = k.cols();
    a.kv_head = args.head_dim;
    a.kv_seq = a.len * a.kv_token;
    if (a.keys <= a.chunk) a.chunk = 0;
    run(ex.cuda_state(), a, false);
  });
}

void kv_append(Exec& ex, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache& cache) {
  const Shape& shape = cache.k.shape;
  FEWBIT_ASSERT(consistent(cache, k.dtype) && v.dtype == k.dtype && k.shape == v.shape);
  const int64_t rows = k.rows(), batch = shape[0], kv_heads = shape[1], capacity = shape[2], d = head_dim_of(cache);
  if (rows == 0) return;
  FEWBIT_ASSERT(k.cols() == kv_heads * d && rows % batch == 0 && positions.numel() == rows);
  FEWBIT_ASSERT(positions.dtype == DType::i32);
  CudaState& s = ex.cuda_state();
  const auto blocks = static_cast<unsigned>(rows), heads = static_cast<unsigned>(kv_heads);
  const int len = static_cast<int>(rows / batch), width = static_cast<int>(d);
  dispatch_cache(k.dtype, cache.k.dtype, [&](auto type, auto code) {
    using T = typename decltype(type)::type;
    using C = typename decltype(code)::type;
    if constexpr (kIsCode<C>) {
      launch_overlapping(s, kv_quantize_kernel<T, C>, dim3(blocks, heads), dim3(64), 0, k.as<T>(), v.as<T>(),
                         positions.as<int32_t>(), cache.k.as<C>(), cache.v.as<C>(),
                         static_cast<float*>(cache.k_scales.data), static_cast<float*>(cache.v_scales.data), len,
                         capacity, width);
    } else {
      constexpr int kN = kVec16<T>;
      const bool vectors =
          aligned16(k.as<T>(), d) && aligned16(v.as<T>()) && aligned16(cache.k.as<T>()) && aligned16(cache.v.as<T>());
      auto* kernel = vectors ? kv_append_kernel<T, kN> : kv_append_kernel<T, 1>;
      launch_overlapping(s, kernel, dim3(blocks), dim3(128), 0, k.as<T>(), v.as<T>(), positions.as<int32_t>(),
                         cache.k.as<T>(), cache.v.as<T>(), len, static_cast<int>(kv_heads), capacity, width);
    }
  });
}

void attention_cached(Exec& ex, ConstTensorView q, ConstTensorView positions, const KvCache& cache,
                      const AttentionArgs& args, TensorView out) {
  const Shape& shape = cache.k.shape;
  FEWBIT_ASSERT(consistent(cache, q.dtype) && shape[1] == args.kv_heads && head_dim_of(cache) == args.head_dim);
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == q.rows());
  if (q.numel() == 0) return;
  bool turned = false;
  dispatch_cache(q.dtype, cache.k.dtype, [&](auto type, auto code) {
    using T = typename decltype(type)::type;
    using C = typename decltype(code)::type;
    AttentionSource<T, C> a = source<T, C>(q, args, shape[0], out);
    a.turn_back = args.turn_back;
    a.k = cache.k.as<C>();
    a.v = cache.v.as<C>();
    if (kIsCode<C>) {
      a.k_scales = static_cast<const float*>(cache.k_scales.data);
      a.v_scales = static_cast<const float*>(cache.v_scales.data);
    }
    a.positions = positions.as<int32_t>();
    a.keys = static_cast<int>(shape[2]);
    if (a.keys <= a.chunk) a.chunk = 0;
    a.kv_token = shape[3];
    a.kv_head = shape[2] * shape[3];
    a.kv_seq = args.kv_heads * a.kv_head;
    turned = run(ex.cuda_state(), a, true, args.behind_append);
  });
  if (args.turn_back && !turned) cuda::hadamard(ex, out, out.row_range(0, 0), args.head_dim);
}

}  // namespace fewbit::cuda
