// A block has a token and an expert: it norms the token for itself, which costs less than a launch that all wait for,
// and its weights are there before the token is. The block of a token's first expert writes the normed row. The threads
// of a block and the order of a row's squares are those of rms_norm()'s kernel for rows wider than 1,024 values.
#include "kernels/decode/experts/router_logits.h"
#include "kernels/device/launch.cuh"
#include "kernels/grids/integer_grid.h"
#include "kernels/model/norm.cuh"
#include "kernels/model/norm.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kValues = 8;  // that a thread takes at once
using Values = Vec<__nv_bfloat16, kValues>;

struct Job {
  const __nv_bfloat16* x;       // [tokens, hidden]
  const __nv_bfloat16* weight;  // [hidden], of the norm
  float eps, offset;
  const __nv_bfloat16* w;     // [experts, hidden]
  const __nv_bfloat16* bias;  // [experts] or null
  __nv_bfloat16* normed;      // [tokens, hidden]
  float* logits;              // [tokens, experts]
  int hidden;
};

// Grid: experts x tokens. kHeld: vectors of a row that a thread has, at most.
template <int kHeld>
__global__ void __launch_bounds__(kThreads) router_logits_kernel(const __grid_constant__ Job job) {
  __shared__ float partial[32];
  const int64_t token = blockIdx.y, expert = blockIdx.x;
  const auto for_own = [&](auto&& f) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (const int c = kValues * static_cast<int>(i * kThreads + threadIdx.x); c < job.hidden) f(i, c);
  };
  allow_successor();
  Values x[kHeld], w[kHeld], scale[kHeld];
  for_own([&](int i, int c) {
    w[i] = load_vec<__nv_bfloat16, kValues>(job.w + expert * job.hidden + c);
    scale[i] = load_vec<__nv_bfloat16, kValues>(job.weight + c);
  });
  const float bias = job.bias ? __bfloat162float(job.bias[expert]) : 0.f;
  await_predecessor();
  for_own([&](int i, int c) { x[i] = load_vec<__nv_bfloat16, kValues>(job.x + token * job.hidden + c); });
  float sum = 0;
  for_own([&](int i, int) { sum = squares<__nv_bfloat16, kValues>(x[i], sum); });
  const float inv = inverse_root(block_sum(sum, partial), job.hidden, job.eps);
  float logit = 0;
  for_own([&](int i, int c) {
    x[i] = scaled<__nv_bfloat16, kValues>(x[i], scale[i], inv, job.offset);
    if (expert == 0) store_vec(job.normed + token * job.hidden + c, x[i]);
#pragma unroll
    for (int v = 0; v < kValues; ++v) logit = fmaf(to_f32(x[i][v]), to_f32(w[i][v]), logit);
  });
  logit = block_sum(logit, partial);
  if (threadIdx.x == 0) job.logits[token * gridDim.x + expert] = job.bias ? add_rn(logit, bias) : logit;
}

}  // namespace

void router_logits(Exec& ex, ConstTensorView x, const RowNorm& norm, ConstTensorView w, ConstTensorView bias,
                   TensorView normed, TensorView logits) {
  const int64_t tokens = x.rows(), hidden = x.cols(), experts = w.rows();
  if (tokens == 0 || experts == 0) return;
  const auto vectors = [&](ConstTensorView t) { return aligned16(t.as<__nv_bfloat16>(), hidden); };
  if (hidden > 2 * kThreads * kValues || !vectors(x) || !vectors(w) || !vectors(norm.weight) || !vectors(normed)) {
    cuda::rms_norm(ex, x, norm.weight, norm.eps, norm.offset, normed);
    return cuda::gemm(ex, normed, w, bias, logits);
  }
  const Job job{.x = x.as<__nv_bfloat16>(),
                .weight = norm.weight.as<__nv_bfloat16>(),
                .eps = norm.eps,
                .offset = norm.offset,
                .w = w.as<__nv_bfloat16>(),
                .bias = bias.data ? bias.as<__nv_bfloat16>() : nullptr,
                .normed = normed.as<__nv_bfloat16>(),
                .logits = logits.as<float>(),
                .hidden = static_cast<int>(hidden)};
  launch_overlapping(ex.cuda_state(), hidden <= kThreads * kValues ? router_logits_kernel<1> : router_logits_kernel<2>,
                     dim3(static_cast<unsigned>(experts), static_cast<unsigned>(tokens)), dim3(kThreads), 0, job);
}

}  // namespace fewbit::cuda
