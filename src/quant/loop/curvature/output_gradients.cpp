#include "src/quant/loop/curvature/output_gradients.h"

#include <algorithm>

#include "kernels/exec/rough_products.h"
#include "kernels/exec/upload.h"
#include "kernels/model/cast.h"
#include "kernels/model/norm_grad.h"
#include "kernels/products/gemm.h"
#include "kernels/quantize/matrix_edit.h"
#include "kernels/statistics/fisher_draw.h"
#include "kernels/statistics/gram.h"
#include "src/model/checkpoint.h"
#include "src/model/op_slots.h"
#include "src/run/head.h"
#include "src/run/runner.h"
#include "src/run/upload_as.h"

namespace fewbit {
namespace {

// Sums of the gradients at a linear's outputs.
class Curved {
 public:
  Curved(Exec& ex, int64_t out) : ex_(ex), sets_(OutputCurvature::sets_of(out)) {
    for (int64_t s = 0; s < sets_; ++s) {
      const int64_t n = OutputCurvature::rows_of(out, s);
      curvature_.sets.push_back(ex.alloc_zeros(DType::f32, {n, n}));
      if (sets_ == 1) continue;
      std::vector<int32_t> columns;
      for (int64_t r = s; r < out; r += sets_) columns.push_back(static_cast<int32_t>(r));
      columns_.push_back(upload(ex, columns));
    }
  }
  void add(ConstTensorView gradients) {
    curvature_.tokens += gradients.rows();
    if (sets_ == 1) return add_gram_half(ex_, gradients, curvature_.sets[0]);
    for (size_t s = 0; s < columns_.size(); ++s) {
      const Tensor own = ex_.alloc(DType::f32, {gradients.rows(), columns_[s].numel()});
      permute(ex_, gradients, {}, columns_[s], own);
      add_gram_half(ex_, own, curvature_.sets[s]);
    }
  }
  OutputCurvature finish() {
    for (const Tensor& set : curvature_.sets) fill_gram_half(ex_, set);
    return std::move(curvature_);
  }

 private:
  Exec& ex_;
  int64_t sets_;
  OutputCurvature curvature_{};
  std::vector<Tensor> columns_{};
};

}  // namespace

int64_t curvature_windows(int64_t windows, int64_t length, int64_t most) {
  return std::min(windows, std::max<int64_t>(1, most / std::max<int64_t>(1, length)));
}

std::string without_curvature(const ModelSpec& spec) {
  if (spec.streams > 1) return "several residual streams";
  if (spec.final_norm_kind == NormKind::layer) return "norms that take a mean away";
  if (spec.logit_scale != 1) return "a scale of the logits";
  for (const std::vector<BlockOp>& ops : spec.kinds)
    if (const std::string_view what = without_gradient(ops); !what.empty()) return std::string(what);
  return "";
}

OutputGradients::OutputGradients(Exec& ex, const Checkpoint& c, StateStore& store, const Job& job)
    : ex_(ex),
      ckpt_(c),
      spec_(c.spec),
      ropes_(*job.ropes),
      dtype_(job.dtype),
      all_(job.windows->count),
      windows_(curvature_windows(job.windows->count, job.windows->length, job.tokens)),
      length_(job.windows->length) {
  FEWBIT_ASSERT(without_curvature(spec_).empty() && all_ > 0);
  const RoughProducts rough(ex);
  const Chunks chunks{.windows = windows_, .length = length_, .at_once = length_};
  for (int64_t l = 0; l <= spec_.layers; ++l) at_.emplace_back(std::in_place, store, chunks, dtype_, spec_.hidden);
  forward(job);
  through_the_head(job);
  backward(job);
}

void OutputGradients::tell(const Job& job, int64_t layers) {
  done_ += layers;
  if (job.progress) job.progress(std::min(1.0, static_cast<double>(done_) / static_cast<double>(4 * spec_.layers)));
}

BlockWeights OutputGradients::weights_of(int64_t layer) const {
  return load_block(ex_, ckpt_, layer, {.dtype = DType::f32, .weights = Weights::values}, nullptr);
}

void OutputGradients::read(const States& states, int64_t i, TensorView into) const {
  const Tensor stored = ex_.alloc(dtype_, into.shape);
  states.get(i * length_, (i + 1) * length_, stored);
  cast(ex_, stored, into);
}

void OutputGradients::write(ConstTensorView from, States& states, int64_t i) const {
  Tensor stored = ex_.alloc(dtype_, from.shape);
  cast(ex_, from, stored);
  states.put(i, std::move(stored));
}

void OutputGradients::forward(const Job& job) {
  for (int64_t i = 0; i < windows_; ++i) {
    const std::span<const int32_t> ids(job.windows->ids.data() + begin_of(i), static_cast<size_t>(length_));
    at_[0]->put(i, embed_rows(ex_, ckpt_, ids, dtype_));
  }
  for (int64_t l = 0; l < spec_.layers; ++l) {
    const BlockWeights weights = weights_of(l);
    BlockTape tape(ex_, spec_, l, 1, length_);
    for (int64_t i = 0; i < windows_; ++i) {
      read(*at_[static_cast<size_t>(l)], i, tape.states(1));
      tape.run(weights, ropes_, 1);
      write(tape.states(1), *at_[static_cast<size_t>(l) + 1], i);
    }
    tell(job, 1);
  }
}

// The states behind the last block become the gradients there.
void OutputGradients::through_the_head(const Job& job) {
  Ends ends = load_final_norm(ex_, ckpt_, DType::f32);
  const NamedLinear matrix = ends_of(spec_).back();
  Tensor head = ckpt_.packed(matrix.name)
                    ? upload_as(ex_, ckpt_.values(matrix), DType::f32)
                    : upload_stored(ex_, ckpt_.store, spec_.lm_head, {spec_.vocab, spec_.hidden}, DType::f32);
  const ConstTensorView table = head.view();
  ends.lm_head = DenseLinear{.weight = std::move(head), .bias = {}};
  const Tensor x = ex_.alloc(DType::f32, {length_, spec_.hidden}), dx = ex_.alloc(DType::f32, x.shape());
  const int64_t some = std::min(length_, logit_rows_at_once(ex_, spec_.vocab));
  for (int64_t i = 0; i < windows_; ++i) {
    read(*at_.back(), i, x);
    for (int64_t r = 0; r < length_; r += some) {
      const int64_t end = std::min(length_, r + some);
      const TensorView rows = x.view().row_range(r, end), d = dx.view().row_range(r, end);
      const Tensor g = logits_of(ex_, spec_, ends, rows);
      fisher_draw(ex_, spec_.logit_softcap, job.seed, i * length_ + r, g);
      matmul(ex_, {.a = mat<float>(g), .b = mat<float>(table), .c = mat<float>(d)});
      rms_norm_grad(ex_, rows, ends.final_norm, spec_.final_norm_eps, weight_offset(spec_.final_norm_kind), d, 0.f, d);
    }
    write(dx, *at_.back(), i);
  }
}

void OutputGradients::back(BlockTape& tape, const BlockWeights& weights, const States& behind, int64_t i,
                           TensorView grad, const BlockTape::ShowOutputs& show) const {
  tape.record(weights, ropes_, 1);
  read(behind, i, grad);
  tape.backward_through(weights, grad, show);
}

void OutputGradients::backward(const Job& job) {
  const Tensor grad = ex_.alloc(DType::f32, {length_, spec_.hidden});
  for (int64_t l = spec_.layers - 1; l > job.first; --l) {
    const BlockWeights weights = weights_of(l);
    BlockTape tape(ex_, spec_, l, 1, length_);
    States& in = *at_[static_cast<size_t>(l)];
    for (int64_t i = 0; i < windows_; ++i) {
      read(in, i, tape.states(1));
      back(tape, weights, *at_[static_cast<size_t>(l) + 1], i, grad, nullptr);
      write(grad, in, i);
    }
    tell(job, 3);
  }
  for (int64_t l = 0; l <= std::min(job.first, spec_.layers - 1); ++l) at_[static_cast<size_t>(l)].reset();
}

std::map<std::string, OutputCurvature> OutputGradients::of(int64_t layer, const BlockWeights& weights,
                                                           const Entering& entering) {
  std::optional<States>& behind = at_[static_cast<size_t>(layer) + 1];
  FEWBIT_ASSERT(behind);
  const RoughProducts rough(ex_);
  std::map<std::string, Curved> sums;
  for (const BlockOp& op : spec_.block(layer))
    for (const LinearDef& l : linears_of(op)) sums.emplace(l.name, Curved(ex_, l.out_features));
  {
    const Tensor stored = ex_.alloc(dtype_, {length_, spec_.hidden});
    const Tensor grad = ex_.alloc(DType::f32, {length_, spec_.hidden});
    BlockTape tape(ex_, spec_, layer, 1, length_);
    for (int64_t i = 0; i < windows_; ++i) {
      entering(begin_of(i), begin_of(i) + length_, stored);
      cast(ex_, stored, tape.states(1));
      back(tape, weights, *behind, i, grad, [&](const LinearDef& l, ConstTensorView g) { sums.at(l.name).add(g); });
    }
  }
  behind.reset();
  std::map<std::string, OutputCurvature> all;
  for (auto& [name, sum] : sums) all.emplace(name, sum.finish());
  return all;
}

int64_t curvature_bytes(const ModelSpec& spec, const std::vector<BlockOp>& ops, int64_t length) {
  // States and their gradient, what two norms saw, and of each slot its value, its gradient and what readers saw of it.
  int64_t features = 6 * spec.hidden, heads = 0, widest = 0, sums = 0;
  for (int s = 1; s < kSlots; ++s) features += 4 * slot_features(spec, ops, static_cast<Slot>(s));
  for (const BlockOp& op : ops) {
    if (std::holds_alternative<Attention>(op)) heads = 1;
    for (const LinearDef& l : linears_of(op)) {
      sums += OutputCurvature::bytes(l.out_features);
      if (OutputCurvature::sets_of(l.out_features) > 1)
        widest = std::max(widest, OutputCurvature::rows_of(l.out_features, 0));
    }
  }
  return sums + 4 * length * (features + widest) + heads * 8 * length * length;
}

int64_t curvature_head_bytes(Device::Kind kind, const ModelSpec& spec, int64_t length) {
  const int64_t at_once = (kind == Device::cuda ? kLogitBytes : kHostLogitBytes);
  return 4 * spec.vocab * spec.hidden + std::min(at_once, 4 * length * spec.vocab) + 5 * 4 * length * spec.hidden;
}

}  // namespace fewbit
