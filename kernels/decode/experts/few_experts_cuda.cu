// The mixture of experts on a few tokens on a GPU: what fits, the table of pointers, and the launches. No tensors are
// allocated: a recorded step works in scratch memory.
#include <algorithm>

#include "kernels/decode/experts/few_experts.h"
#include "kernels/decode/experts/few_experts_kernels.cuh"
#include "kernels/products/bytes/quantize_rows.cuh"

namespace fewbit::cuda {
namespace {

using namespace few_experts_step;

const ConstTensorView* dense_of(const ExpertLinear& l) { return std::get_if<ConstTensorView>(&l.w); }
const MarlinView* packed_of(const ExpertLinear& l) { return std::get_if<MarlinView>(&l.w); }
const ByteView* bytes_of(const ExpertLinear& l) { return std::get_if<ByteView>(&l.w); }
const Fp4View* fp4_of(const ExpertLinear& l) { return std::get_if<Fp4View>(&l.w); }

struct Size {
  int64_t in, out;
};
Size size_of(const ExpertLinear& l) {
  if (const MarlinView* m = packed_of(l)) return {m->in, m->out};
  if (const Fp4View* f = fp4_of(l)) return {f->in, f->out()};
  const ConstTensorView& w = dense_of(l) ? *dense_of(l) : bytes_of(l)->w.codes;
  return {w.cols(), w.rows()};
}

bool at_16(ConstTensorView t) { return aligned16(static_cast<const uint8_t*>(t.data)); }

// Why no kernel takes the linear; "" = one does.
std::string refuses(const ExpertLinear& l) {
  const Size z = size_of(l);
  if (l.bias.data && (l.bias.dtype != DType::bf16 || l.bias.numel() != z.out)) return "biases in another type";
  if (const MarlinView* m = packed_of(l))
    return at_16(m->b) && at_16(m->s) && at_16(m->z) ? "" : "packed words at no multiple of 16 bytes";
  if (const ConstTensorView* w = dense_of(l)) {
    if (w->dtype != DType::bf16) return "dense weights that are not bf16";
    return z.in % 32 == 0 && at_16(*w) ? "" : "dense weights whose inputs are no multiple of 32";
  }
  if (const Fp4View* f = fp4_of(l))
    return z.in % kFp4Block == 0 && f->tiles.cols() == fp4_tile_words(z.in) && at_16(f->tiles)
               ? ""
               : "MXFP4 weights of other sizes";
  const ByteView& b = *bytes_of(l);
  if (b.input.group != 0) return "inputs in 8 bits with scales of groups";
  const bool known = b.w.codes.dtype == DType::i8 ? b.input.codes == DType::i8
                                                  : b.input.codes == DType::f8_e4m3 || b.input.codes == DType::f16;
  if (!known) return "8-bit weights with inputs in another type";
  return z.in % 64 == 0 && at_16(b.w.codes) ? "" : "8-bit weights whose inputs are no multiple of 64";
}

bool alike(const ExpertLinear& a, const ExpertLinear& b) {
  const Size of_a = size_of(a), of_b = size_of(b);
  if (a.w.index() != b.w.index() || of_a.in != of_b.in || of_a.out != of_b.out) return false;
  if ((a.bias.data != nullptr) != (b.bias.data != nullptr)) return false;
  if (const MarlinView* m = packed_of(a)) {
    const MarlinView& o = *packed_of(b);
    return m->bits == o.bits && m->groups() == o.groups() && (m->z.data != nullptr) == (o.z.data != nullptr);
  }
  if (const ByteView* v = bytes_of(a)) {
    const ByteView& o = *bytes_of(b);
    return v->w.codes.dtype == o.w.codes.dtype && v->input.codes == o.input.codes && v->input.fixed == o.input.fixed;
  }
  return true;
}

std::string refuses_all(const std::vector<ExpertLinear>& linears, const ExpertLinear& like) {
  for (const ExpertLinear& l : linears) {
    if (std::string why = refuses(l); !why.empty()) return why;
    if (!alike(l, like)) return "experts that differ in kind, size, groups, zero points, biases or the scale of inputs";
  }
  return "";
}

Pointers pointers_of(const ExpertLinear& l) {
  Pointers p{.w = nullptr, .scales = nullptr, .zeros = nullptr, .bias = static_cast<const __nv_bfloat16*>(l.bias.data)};
  if (const MarlinView* m = packed_of(l)) {
    const MarlinSource s = source_of(*m);
    p.w = reinterpret_cast<const uint8_t*>(s.b), p.scales = s.s, p.zeros = s.z;
  } else if (const ByteView* b = bytes_of(l)) {
    FEWBIT_ASSERT(b->w.scales.dtype == DType::f32 && b->w.scales.numel() == b->w.codes.rows());
    p.w = static_cast<const uint8_t*>(b->w.codes.data), p.scales = b->w.scales.data;
  } else if (const Fp4View* f = fp4_of(l)) {
    p.w = static_cast<const uint8_t*>(f->tiles.data);
  } else {
    p.w = static_cast<const uint8_t*>(dense_of(l)->data);
  }
  return p;
}

Matrix matrix_of(const ExpertLinear& l, const Pointers* experts) {
  const Size z = size_of(l);
  const MarlinView* m = packed_of(l);
  return {.experts = experts,
          .in = static_cast<int>(z.in),
          .out = static_cast<int>(z.out),
          .group_tiles = m && m->groups() > 1 ? static_cast<int>(m->group() / marlin::kTileK) : 0,
          .stages = 0};
}

// Calls f(form of the linear's weights, as a null pointer).
template <class F>
void with_form(const ExpertLinear& l, F&& f) {
  using skinny::F8Input;
  if (const MarlinView* m = packed_of(l))
    return m->bits == 4 ? f(static_cast<PackedForm<4>*>(nullptr)) : f(static_cast<PackedForm<8>*>(nullptr));
  if (dense_of(l)) return f(static_cast<RowForm<skinny::Bf16Format>*>(nullptr));
  if (fp4_of(l)) return f(static_cast<BlockForm*>(nullptr));
  const ByteView& b = *bytes_of(l);
  if (b.input.codes == DType::i8) return f(static_cast<RowForm<skinny::I8Format>*>(nullptr));
  if (b.input.codes == DType::f16) return f(static_cast<RowForm<skinny::F8Format<F8Input::unrounded>>*>(nullptr));
  f(static_cast<RowForm<skinny::F8Format<F8Input::codes>>*>(nullptr));
}

template <class Form, int kRowBlocks, class Job>
void launch_product(CudaState& s, void (*kernel)(Job), Job job, Matrix Job::*matrix, int parts, int slots) {
  using S = Sums<Form, kRowBlocks>;
  Matrix& m = job.*matrix;
  FEWBIT_ASSERT(m.out % S::kOuts == 0);  // all are inputs of another linear too, or packed
  m.stages = Form::stages(m, parts, s.max_shared());
  const int shared = Form::kWarps * S::bytes_of_warp(m);
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  launch_overlapping(s, kernel, dim3(m.out / S::kOuts, slots), dim3(32 * Form::kWarps), static_cast<size_t>(shared),
                     job);
}

// A row block of 8 serves up to 8 tokens; an expert has as many rows as there are tokens, at most.
void launch_wide(CudaState& s, const ExpertLinear& up, int64_t tokens, const WideJob& job) {
  with_form(up, [&](auto* form) {
    using Form = std::remove_pointer_t<decltype(form)>;
    const int parts = job.gate.experts ? Form::kWarps / 2 : Form::kWarps;
    if (tokens <= 8)
      launch_product<Form, 1>(s, wide_kernel<Form, 1>, job, &WideJob::up, parts, job.pairs.slots);
    else
      launch_product<Form, 2>(s, wide_kernel<Form, 2>, job, &WideJob::up, parts, job.pairs.slots);
  });
}
void launch_down(CudaState& s, const ExpertLinear& down, const DownJob& job) {
  with_form(down, [&](auto* form) {
    using Form = std::remove_pointer_t<decltype(form)>;
    if (job.tokens <= 8)
      launch_product<Form, 1>(s, down_kernel<Form, 1>, job, &DownJob::down, Form::kWarps, job.pairs.slots);
    else
      launch_product<Form, 2>(s, down_kernel<Form, 2>, job, &DownJob::down, Form::kWarps, job.pairs.slots);
  });
}

// Pieces of one scratch space, one after another: sizes first, then places.
class Pieces {
 public:
  size_t add(int64_t bytes) {
    const size_t at = size_;
    size_ += (static_cast<size_t>(bytes) + 255) / 256 * 256;
    return at;
  }
  void place(CudaState& s) { base_ = static_cast<char*>(s.scratch(size_)); }
  template <class T>
  T* at(size_t place) const {
    return reinterpret_cast<T*>(base_ + place);
  }

 private:
  size_t size_ = 0;
  char* base_ = nullptr;
};

// The rows of a product's x as the form of its weights wants them: as they are, or as codes in scratch memory.
struct RowPieces {
  size_t codes = 0, scales = 0;
  void add(Pieces& p, const ExpertLinear& l, int64_t rows) {
    if (!bytes_of(l)) return;
    codes = p.add(rows * size_of(l).in * 2);
    scales = p.add(rows * 4);
  }
  Rows prepare(CudaState& s, const Pieces& p, const ExpertLinear& l, ConstTensorView x) const {
    const ByteView* b = bytes_of(l);
    if (!b) return {x.data, nullptr};
    launch_quantize_rows(s, x, b->input, p.at<uint8_t>(codes), p.at<float>(scales));
    return {p.at<uint8_t>(codes), p.at<float>(scales)};
  }
};

}  // namespace

std::string refuses_experts(const Exec&, const ExpertMixture& m, int64_t top_k) {
  if (m.up.empty()) return "no experts";
  if (top_k * kFewTokens > kMostPairs) return std::to_string(top_k) + " experts a token";
  if (std::string why = refuses_all(m.up, m.up[0]); !why.empty()) return why;
  if (std::string why = refuses_all(m.gate, m.up[0]); !why.empty()) return why;
  if (std::string why = refuses_all(m.down, m.down[0]); !why.empty()) return why;
  if (size_of(m.down[0]).out > 16 * int64_t{CudaState::kCounters}) return "too many outputs";
  return "";
}

void prepare_experts(Exec& ex, ExpertMixture& m) {
  std::vector<Pointers> all;
  for (const std::vector<ExpertLinear>* linears : {&m.up, &m.down, &m.gate})
    for (const ExpertLinear& l : *linears) all.push_back(pointers_of(l));
  constexpr int64_t kWords = sizeof(Pointers) / sizeof(int64_t);
  m.table = ex.to_device(ConstTensorView{all.data(), DType::i64, {static_cast<int64_t>(all.size()), kWords}, {}});
}

void few_experts(Exec& ex, ConstTensorView x, ConstTensorView ids, ConstTensorView shares, const ExpertMixture& m,
                 TensorView out, bool add) {
  CudaState& s = ex.cuda_state();
  const int64_t tokens = x.rows(), top_k = ids.cols(), experts = static_cast<int64_t>(m.up.size());
  const ExpertLinear &up = m.up[0], &down = m.down[0];
  const int64_t hidden = x.cols(), width = size_of(up).out, count = tokens * top_k,
                slots = tokens == 1 ? count : std::min(count, experts);
  FEWBIT_ASSERT(!m.table.empty() && count <= kMostPairs && size_of(up).in == hidden);
  FEWBIT_ASSERT(size_of(down).in == width && size_of(down).out == hidden && at_16(x));
  if (tokens == 0) return;

  Pieces pieces;
  const size_t numbers = pieces.add(4 * (1 + slots + slots + 1 + 2 * count));
  const size_t weighted = pieces.add(m.weigh_inputs ? 2 * count * hidden : 0);
  const size_t act = pieces.add(2 * count * width), answers = pieces.add(2 * count * hidden);
  RowPieces wide_rows, down_rows;
  wide_rows.add(pieces, up, m.weigh_inputs ? count : tokens);
  down_rows.add(pieces, down, count);
  pieces.place(s);
  int* number = pieces.at<int>(numbers);
  const Pairs pairs{.count = static_cast<int>(count),
                    .top_k = static_cast<int>(top_k),
                    .slots = static_cast<int>(slots),
                    .ids = tokens == 1 ? ids.as<int32_t>() : nullptr,
                    .active = number,
                    .expert = number + 1,
                    .begin = number + 1 + slots,
                    .pair = number + 2 + 2 * slots,
                    .place = number + 2 + 2 * slots + count};
  if (tokens > 1) launch_overlapping(s, order_kernel, dim3(1), dim3(kMostPairs), 0, ids.as<int32_t>(), pairs);
  if (m.weigh_inputs) {
    auto* to = pieces.at<__nv_bfloat16>(weighted);
    launch_overlapping(s, weigh_kernel, dim3(static_cast<unsigned>(count)), dim3(kThreads), 0, x.as<__nv_bfloat16>(),
                       shares.as<float>(), to, static_cast<int>(top_k), static_cast<int>(hidden));
    x = {to, DType::bf16, {count, hidden}, x.device};
  }
  const auto* table = static_cast<const Pointers*>(m.table.view().data);
  const WideJob wide{.pairs = pairs,
                     .gate = m.gate.empty() ? Matrix{} : matrix_of(up, table + 2 * experts),
                     .up = matrix_of(up, table),
                     .rows = wide_rows.prepare(s, pieces, up, x),
                     .by_pair = m.weigh_inputs,
                     .act = m.act,
                     .swiglu = m.swiglu,
                     .to = pieces.at<__nv_bfloat16>(act),
                     .table_lines = static_cast<int>(m.table.view().bytes() / 128)};
  launch_wide(s, up, tokens, wide);
  const ConstTensorView acted{wide.to, DType::bf16, {count, width}, x.device};
  const DownJob sum{.pairs = pairs,
                    .down = matrix_of(down, table + experts),
                    .rows = down_rows.prepare(s, pieces, down, acted),
                    .shares = m.weigh_inputs ? nullptr : shares.as<float>(),
                    .y = pieces.at<__nv_bfloat16>(answers),
                    .out = out.as<__nv_bfloat16>(),
                    .arrived = s.counters,
                    .tokens = static_cast<int>(tokens),
                    .add = add};
  launch_down(s, down, sum);
}

}  // namespace fewbit::cuda
