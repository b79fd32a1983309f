#pragma once
// What the launches of attention_cuda.cu and paged_attention_cuda.cu share.
#include <algorithm>
#include <type_traits>

#include "kernels/attention/attention_source.cuh"
#include "kernels/choice/kernel_choice.h"
#include "kernels/device/tensor_map.cuh"
#include "kernels/device/vec.cuh"

namespace fewbit::cuda {

// What queries, result and arguments say of a call.
template <class T, class C>
void set_queries(AttentionSource<T, C>& a, ConstTensorView q, const AttentionArgs& args, int64_t seqs, TensorView out) {
  FEWBIT_ASSERT(args.heads > 0 && args.kv_heads > 0 && args.heads % args.kv_heads == 0 && seqs > 0);
  FEWBIT_ASSERT(q.rows() % seqs == 0 && q.cols() == args.heads * args.head_dim);
  FEWBIT_ASSERT(out.dtype == q.dtype && out.numel() == q.numel());
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
}

// The same of the cache, whose pieces, for each sequence or a page, hold `keys` positions each; no sequence has more
// than `most`.
template <class T, class C>
void set_cache(AttentionSource<T, C>& a, const KvCache& cache, ConstTensorView positions, int64_t keys, int64_t most) {
  a.k = cache.k.as<C>();
  a.v = cache.v.as<C>();
  if (kIsCode<C>) {
    a.k_scales = static_cast<const float*>(cache.k_scales.data);
    a.v_scales = static_cast<const float*>(cache.v_scales.data);
  }
  a.positions = positions.as<int32_t>();
  a.keys = static_cast<int>(most);
  if (a.keys <= a.chunk) a.chunk = 0;
  a.kv_token = cache.k.shape[3];
  a.kv_head = keys * a.kv_token;
  a.kv_seq = a.kv_heads * a.kv_head;
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

}  // namespace fewbit::cuda
