// The routing of a mixture of experts and the experts themselves: one token with experts in MXFP4 by the kernels of
// token_experts.cuh, which choose for themselves, all else one after the other.
#include <algorithm>

#include "kernels/decode/experts/routed_experts.h"
#include "kernels/decode/experts/token_experts.cuh"
#include "kernels/device/vec.cuh"

namespace fewbit::cuda {
namespace {

using namespace token_experts_step;

constexpr int kMostExperts = 128;

bool chooses_by_logits(const RouteRule& rule) {
  return rule.score == RouteScore::softmax && rule.groups == 1 && rule.logit_scale == 1 && !rule.bias.data &&
         !rule.expert_scale.data;
}

int wide_shared(int64_t in) { return shared_bytes(static_cast<int>(in), kWideParts, kWideStages); }
int down_shared(int64_t in) { return shared_bytes(static_cast<int>(in), kDownParts, kDownStages); }

// A single expert is no cluster. The experts are those that refuses_experts() does not refuse: alike in everything.
bool takes(const CudaState& s, ConstTensorView x, const RouteRule& rule, const ExpertMixture& m, int64_t top_k) {
  const auto* up = std::get_if<Fp4View>(&m.up[0].w);
  const auto* down = std::get_if<Fp4View>(&m.down[0].w);
  const auto most = static_cast<int64_t>(s.max_shared()) - 1024;  // beside what the kernels have by name
  return s.sm90() && x.rows() == 1 && up && down && !m.gate.empty() && !m.weigh_inputs && chooses_by_logits(rule) &&
         std::ssize(m.up) <= kMostExperts && top_k >= 2 && top_k <= kMostChosen &&
         aligned16(static_cast<const uint8_t*>(x.data)) && wide_shared(up->in) <= most && down_shared(down->in) <= most;
}

// So much that no multiprocessor takes more than kBlocks: these blocks begin while the kernels before them hold part of
// the multiprocessors, and the others would be given as many as find room.
int padded(const CudaState& s, int shared) {
  constexpr int kOfSystem = 1024;  // of every block
  const int all = static_cast<int>(s.max_shared()) + kOfSystem;
  return std::max(shared, all / (kBlocks + 1) - kOfSystem + 16);
}

template <class Job>
void launch(CudaState& s, void (*kernel)(Job), int cluster, int shared, int64_t out, const Job& job) {
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const dim3 grid(static_cast<unsigned>(job.router.top_k), static_cast<unsigned>(out / kOuts));
  launch_clusters(s, cluster, kernel, grid, dim3(kThreads), static_cast<size_t>(shared), job);
}

template <int kEach>
void launch_both(CudaState& s, const WideJob& wide, const DownJob& down, int64_t hidden) {
  launch(s, wide_kernel<kEach>, 1, padded(s, wide_shared(wide.in)), wide.out, wide);
  launch(s, down_kernel<kEach>, down.router.top_k, down_shared(down.in), hidden, down);
}

}  // namespace

void routed_experts(Exec& ex, ConstTensorView x, ConstTensorView logits, const RouteRule& rule, TensorView ids,
                    TensorView shares, const ExpertMixture& m, TensorView out, bool add) {
  CudaState& s = ex.cuda_state();
  const int64_t experts = std::ssize(m.up), top_k = ids.cols(), hidden = x.cols();
  if (!takes(s, x, rule, m, top_k)) {
    fewbit::route(ex, logits, rule, ids, shares);
    return fewbit::few_experts(ex, x, ids, shares, m, out, add);
  }
  FEWBIT_ASSERT(!m.table.empty() && std::get<Fp4View>(m.up[0].w).in == hidden);
  const Router router{.logits = logits.as<float>(),
                      .experts = static_cast<int>(experts),
                      .top_k = static_cast<int>(top_k),
                      .renormalise = rule.renormalise,
                      .scaling = rule.scaling};
  const int64_t width = std::get<Fp4View>(m.up[0].w).out();
  const auto* table = static_cast<const Pointers*>(m.table.view().data);  // ups, downs, gates
  auto* act = s.scratch_of<__nv_bfloat16>(top_k * width);
  const WideJob wide{.router = router,
                     .gate = table + 2 * experts,
                     .up = table,
                     .x = x.as<__nv_bfloat16>(),
                     .to = act,
                     .in = static_cast<int>(hidden),
                     .out = static_cast<int>(width),
                     .act = m.act,
                     .swiglu = m.swiglu};
  const DownJob down{.router = router,
                     .down = table + experts,
                     .x = act,
                     .out = out.as<__nv_bfloat16>(),
                     .in = static_cast<int>(width),
                     .add = add};
  experts <= 32 ? launch_both<1>(s, wide, down, hidden) : launch_both<kMostExperts / 32>(s, wide, down, hidden);
}

}  // namespace fewbit::cuda
