// The experts of one token after another, in the order of their numbers.
#include <algorithm>
#include <numeric>

#include "kernels/decode/experts/few_experts.h"
#include "kernels/model/add.h"
#include "kernels/model/cast.h"
#include "kernels/model/route.h"
#include "kernels/products/bytes/byte_gemms.h"
#include "kernels/products/gemm.h"

namespace fewbit::cpu {
namespace {

int64_t out_of(const ExpertLinear& l) {
  if (const auto* m = std::get_if<MarlinView>(&l.w)) return m->out;
  if (const auto* b = std::get_if<ByteView>(&l.w)) return b->w.codes.rows();
  if (const auto* f = std::get_if<Fp4View>(&l.w)) return f->out();
  return std::get<ConstTensorView>(l.w).rows();
}

Tensor product(Exec& ex, ConstTensorView x, const ExpertLinear& l) {
  Tensor y = ex.alloc(x.dtype, {x.rows(), out_of(l)});
  if (const auto* m = std::get_if<MarlinView>(&l.w)) {
    cpu::marlin_gemm(ex, x, *m, l.bias, y);
  } else if (const auto* b = std::get_if<ByteView>(&l.w)) {
    const ByteProduct p{.w = b->w, .bias = l.bias, .y = y};
    cpu::byte_gemms(ex, x, b->input, std::span(&p, 1));
  } else if (const auto* f = std::get_if<Fp4View>(&l.w)) {
    const Tensor values = ex.alloc(x.dtype, {f->out(), f->in});
    cpu::fp4_values(ex, *f, values);
    cpu::gemm(ex, x, values, l.bias, y);
  } else {
    cpu::gemm(ex, x, std::get<ConstTensorView>(l.w), l.bias, y);
  }
  return y;
}

}  // namespace

std::string refuses_experts(const Exec&, const ExpertMixture&, int64_t) { return ""; }
void prepare_experts(Exec&, ExpertMixture&) {}

void few_experts(Exec& ex, ConstTensorView x, ConstTensorView ids, ConstTensorView shares, const ExpertMixture& m,
                 TensorView out, bool add) {
  const int64_t top_k = ids.cols();
  const Tensor first = Tensor::host_zeros(DType::i32, {1}), one = Tensor::host(DType::f32, {1});
  one.as<float>()[0] = 1;
  std::vector<int64_t> order(static_cast<size_t>(top_k));
  for (int64_t t = 0; t < x.rows(); ++t) {
    const int32_t* chosen = ids.as<int32_t>() + t * top_k;
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return chosen[a] < chosen[b]; });
    const Tensor sum = ex.alloc_zeros(DType::f32, {1, x.cols()});
    for (const int64_t i : order) {
      const auto e = static_cast<size_t>(chosen[i]);
      const Tensor share = Tensor::host(DType::f32, {1}), read = ex.alloc(x.dtype, {1, x.cols()});
      share.as<float>()[0] = shares.as<float>()[t * top_k + i];
      ex.copy(x.row_range(t, t + 1), read);
      if (m.weigh_inputs) {
        const Tensor weighted = ex.alloc_zeros(DType::f32, read.shape());
        cpu::scatter_add_rows(ex, read, first, share, weighted);
        cpu::cast(ex, weighted, read);
      }
      const Tensor up = product(ex, read, m.up[e]), gate = m.gate.empty() ? Tensor{} : product(ex, read, m.gate[e]);
      const ConstTensorView gated = m.gate.empty() ? up.view() : gate.view();
      if (m.swiglu.limit > 0)
        cpu::clamped_swiglu(ex, gated, up, m.swiglu, up);
      else
        cpu::gated_act(ex, gated, up, m.act, up);
      cpu::scatter_add_rows(ex, product(ex, up, m.down[e]), first, m.weigh_inputs ? one : share, sum);
    }
    const TensorView row = out.row_range(t, t + 1);
    if (!add) {
      cpu::cast(ex, sum, row);
      continue;
    }
    const Tensor rounded = ex.alloc(out.dtype, row.shape);
    cpu::cast(ex, sum, rounded);
    cpu::add(ex, rounded, row, 1);
  }
}

}  // namespace fewbit::cpu
