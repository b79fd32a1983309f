// Rows of the embedding table: a block copies the row of one token, 16 bytes a thread where its width allows. Bound by
// memory: one row is read and one is written per token.
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/embed.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

// kN: values per thread and step; 8 needs hidden % 8 == 0 and both matrices aligned, 1 takes anything.
template <class In, class Out, int kN>
__global__ void embed_kernel(const int32_t* __restrict__ ids,  // [tokens]
                             const In* __restrict__ table,     // [vocab, hidden]
                             float scale,
                             Out* __restrict__ x,  // [tokens, hidden]
                             int64_t hidden) {
  allow_successor();
  await_predecessor();
  const In* from = table + ids[blockIdx.x] * hidden;
  Out* to = x + blockIdx.x * hidden;
  for (int64_t c = threadIdx.x * kN; c < hidden; c += kThreads * kN) {
    const auto in = load_vec<In, kN>(from + c);
    Vec<Out, kN> out;
#pragma unroll
    for (int i = 0; i < kN; ++i) out[i] = from_f32<Out>(to_f32(in[i]) * scale);
    store_vec(to + c, out);
  }
}

}  // namespace

void embed(Exec& ex, ConstTensorView ids, ConstTensorView table, float scale, TensorView x) {
  const int64_t tokens = ids.numel(), hidden = table.cols();
  FEWBIT_ASSERT(ids.dtype == DType::i32 && x.rows() == tokens && (tokens == 0 || x.cols() == hidden));
  if (tokens == 0) return;
  const auto grid = static_cast<unsigned>(tokens);
  dispatch_float(table.dtype, [&](auto in) {
    dispatch_f32_bf16(x.dtype, [&](auto out) {
      using In = typename decltype(in)::type;
      using Out = typename decltype(out)::type;
      const bool vectors = hidden % 8 == 0 && aligned16(table.as<In>()) && aligned16(x.as<Out>());
      auto* kernel = vectors ? embed_kernel<In, Out, 8> : embed_kernel<In, Out, 1>;
      launch_overlapping(ex.cuda_state(), kernel, dim3(grid), dim3(kThreads), 0, ids.as<int32_t>(), table.as<In>(),
                         scale, x.as<Out>(), hidden);
    });
  });
}

}  // namespace fewbit::cuda
