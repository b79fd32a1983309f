// The host's half of the step in one launch: which layers it takes, how they are laid out, the launch itself or, with
// attention apart, those around it. The kernel is decode_layers_kernel.cuh; here it is compiled for packed weights
// without zero points, in decode_layers_zeros_cuda.cu for those with them, in decode_layers_bytes_cuda.cu for bytes.
#include "kernels/decode/decode_layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/decode/decode_layers_kernel.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/model/hadamard.h"
#include "kernels/products/marlin/marlin_tile.cuh"

namespace fewbit::cuda {
namespace {

constexpr size_t kStaticShared = 7168;  // at most, of the kernel

// Blocks that run at the same time; of every kernel as many, all of which take a multiprocessor for a block.
int most_blocks(CudaState& s) {
  const StepKernel kernel = step_kernel<StepPacked>(128, DType::bf16, true);
  return kStepSlices *
         ClusterLaunch(s, kernel.function, kStepSlices, kStepSlices, kAllStepThreads, s.max_shared() - kStaticShared)
             .most_clusters();
}

std::array<const DecodeLinear*, kStepWeights> linears_of(const DecodeLayer& l) {
  return {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down};
}

// Why the kernel of packed weights, or that of bytes, does not take the linears of a layer; "" = it does.
std::string refuses_packed(const DecodeLayer& l) {
  for (const DecodeLinear* w : linears_of(l)) {
    const auto& m = std::get<MarlinView>(*w);
    if (m.bits != 4 || m.groups() < 2 || m.group() != kPieceK) return "packed linears of 4 bits in groups of 128 only";
    if (has_zeros(*w) != has_zeros(l.q)) return "packed linears with zero points and without";
  }
  return "";
}
std::string refuses_bytes(const DecodeLayer& l) {
  for (const DecodeLinear* w : linears_of(l)) {
    const auto& b = std::get<ByteView>(*w);
    if (b.w.codes.dtype != DType::f8_e4m3 || b.input.codes != DType::f8_e4m3 || b.input.group != 0)
      return "bytes in E4M3 with a scale for each output and row only";
    if (in_of(*w) % kPieceK != 0 || in_of(*w) < 2 * kPieceK || out_of(*w) % byte_step_kind().outputs != 0 ||
        !aligned16(b.w.codes.as<uint8_t>()))
      return "byte linears of whole pieces only";
  }
  const auto fixed = [](const DecodeLinear& w) { return std::get<ByteView>(w).input.fixed; };
  if (fixed(l.q) != fixed(l.k) || fixed(l.q) != fixed(l.v) || fixed(l.gate) != fixed(l.up))
    return "one x is rounded with several scales";
  return in_of(l.q) <= kMostNormedBytes ? "" : "too many hidden values";
}
std::string refuses_linears(const DecodeLayer& l, bool bytes) {
  for (const DecodeLinear* w : linears_of(l))
    if (std::holds_alternative<ByteView>(*w) != bytes) return "linears of several kinds";
  return bytes ? refuses_bytes(l) : refuses_packed(l);
}

// The same of all layers, and of their caches.
std::string refuses_layers(const std::vector<DecodeLayer>& layers) {
  const DecodeLayer& l = layers.front();
  const bool bytes = std::holds_alternative<ByteView>(l.q);
  for (const DecodeLayer& each : layers) {
    if (std::string why = refuses_linears(each, bytes); !why.empty()) return why;
    if (!bytes && has_zeros(each.q) != has_zeros(l.q)) return "layers with zero points and without";
    if (each.cache.k.dtype != l.cache.k.dtype || each.cache.k.shape != l.cache.k.shape) return "caches that differ";
  }
  return "";
}

struct StepLayout {
  StepJob job{};
  StepKernel kernel{};
  size_t shared = 0;     // bytes of a block
  size_t workspace = 0;  // bytes
  int layer_bytes = 0;   // of the table
  std::string refusal;
};

// Everything but the pointers.
StepLayout layout_of(const CudaState& s, int blocks, const std::vector<DecodeLayer>& layers, const DecodeForm& form) {
  StepLayout out;
  const auto refuse = [&](std::string why) { return out.refusal = std::move(why), out; };
  const AttentionArgs& a = form.attention;
  const DecodeLayer& l = layers.front();
  StepJob& job = out.job;
  const bool bytes = std::holds_alternative<ByteView>(l.q);
  const StepKind kind = bytes ? byte_step_kind() : has_zeros(l.q) ? zero_step_kind() : kind_of<StepPacked>();
  out.layer_bytes = kind.layer_bytes;
  out.kernel = kind.kernel(a.head_dim, l.cache.k.dtype, !form.attention_apart);
  if (!out.kernel.function) return refuse("heads of 64 or 128 values only");
  if (a.softcap > 0) return refuse("no soft cap");
  if (form.act != ActKind::silu) return refuse("SiLU only");
  int64_t outs[kStepWeights];
  for (int w = 0; w < kStepWeights; ++w) outs[w] = out_of(*linears_of(l)[w]), job.out[w] = static_cast<int>(outs[w]);
  const auto [q_out, k_out, v_out, hidden, inner, up_out, down_out] = outs;
  job.count = static_cast<int>(form.attention_apart ? std::min<size_t>(layers.size(), 2) : layers.size());  // at most
  job.hidden = static_cast<int>(hidden);
  job.inner = static_cast<int>(inner);
  job.heads = a.heads;
  job.kv_heads = a.kv_heads;
  const auto cut = [&](int64_t out_values, int64_t in) {
    return StepCut{static_cast<int>(out_values / kind.outputs), static_cast<int>(in / kPieceK)};
  };
  job.end_q = static_cast<int>(q_out / kind.outputs);
  job.end_k = static_cast<int>((q_out + k_out) / kind.outputs);
  job.cut[kQkv] = cut(q_out + k_out + v_out, hidden);
  job.cut[kOut] = cut(hidden, q_out);
  job.end_gate = static_cast<int>(inner / kind.outputs);
  job.cut[kGateUp] = cut(2 * inner, hidden);
  job.cut[kDown] = cut(hidden, inner);
  int pieces = 0;
  for (const StepCut& c : job.cut) pieces = std::max(pieces, (c.pieces + kStepSlices - 1) / kStepSlices);
  if (blocks == 0) return refuse("no room for a cluster of blocks");
  if (hidden > int64_t{kMostOwnOutputs} * blocks) return refuse("too many hidden values");
  const int q_heads = a.heads / a.kv_heads;
  job.sets = (q_heads + kHeadsTogether - 1) / kHeadsTogether;
  if (job.sets * a.kv_heads > blocks) return refuse("more sets of heads than multiprocessors");
  job.splits = blocks / (job.sets * a.kv_heads);
  const int64_t rows = static_cast<int64_t>(job.splits) * job.sets * a.kv_heads * kHeadsTogether;
  out.workspace = static_cast<size_t>(4 * rows * (a.head_dim + 2) + 2 * (2 * q_out + k_out + v_out + 2 * inner)) + 1024;

  job.input_bytes = pieces * kind.input_bytes;
  const size_t product = static_cast<size_t>(job.input_bytes) + sizeof(float) * kOutputsTogether * kStepWarps +
                         static_cast<size_t>(pieces) * kind.note_bytes;
  job.work_bytes = static_cast<int>((std::max<size_t>(product, out.kernel.attention_bytes) + 15) / 16 * 16);
  const size_t fixed =
      job.work_bytes + static_cast<size_t>(out.layer_bytes) * job.count + 4 * static_cast<size_t>(a.head_dim);
  for (job.slots = kMostSlots; job.slots >= kLeastSlots; --job.slots) {
    out.shared = fixed + static_cast<size_t>(kStepWarps) * job.slots * kind.piece_bytes;
    job.under_way = job.slots == kMostSlots ? 1 : kMostUnderWay;  // measured; a short ring must fill faster
    if (out.shared + kStaticShared <= s.max_shared()) return out;
  }
  return refuse("too little shared memory for the inputs of the largest linear");
}

}  // namespace

std::string refuses_stack(const Exec& ex, const std::vector<DecodeLayer>& layers, const DecodeForm& form) {
  CudaState& s = ex.cuda_state();
  if (layers.empty()) return "no layers";
  if (!s.sm90()) return "steps in one launch want compute capability 9.0";
  if (layers.front().cache.k.shape[0] != 1) return "one sequence only";
  if (std::string why = refuses_layers(layers); !why.empty()) return why;
  return layout_of(s, most_blocks(s), layers, form).refusal;
}

namespace {
StepWeight weight_of(const DecodeLinear& w) {
  if (const auto* b = std::get_if<ByteView>(&w)) return {.codes = b->w.codes.data, .scales = b->w.scales.data};
  const MarlinSource source = source_of(std::get<MarlinView>(w));
  return {.codes = source.b, .scales = source.s};
}
}  // namespace

void prepare_stack(Exec& ex, DecodeStack& stack) {
  stack.blocks = most_blocks(ex.cuda_state());
  const StepLayout layout = layout_of(ex.cuda_state(), stack.blocks, stack.layers, stack.form);
  FEWBIT_ASSERT(layout.refusal.empty());
  Tensor table = Tensor::host(DType::u8, {layout.layer_bytes * static_cast<int64_t>(stack.layers.size())});
  uint8_t* to = table.as<uint8_t>();
  for (const DecodeLayer& l : stack.layers) {
    StepZeroLayer t{};
    for (int w = 0; w < kStepWeights; ++w) {
      t.weights[w] = weight_of(*linears_of(l)[w]);
      if (const auto* m = std::get_if<MarlinView>(linears_of(l)[w])) t.zeros[w] = source_of(*m).z;
    }
    const DecodeLinear* firsts[kStepProducts] = {&l.q, &l.o, &l.gate, &l.down};
    for (int p = 0; p < kStepProducts; ++p)
      if (const auto* b = std::get_if<ByteView>(firsts[p])) t.fixed[p] = b->input.fixed;
    const auto values = [](ConstTensorView v) { return static_cast<const __nv_bfloat16*>(v.data); };
    t.input_norm = values(l.input_norm);
    t.middle_norm = values(l.middle_norm);
    t.bias[0] = values(l.q_bias), t.bias[1] = values(l.k_bias), t.bias[2] = values(l.v_bias);
    t.head_norm[0] = values(l.q_norm), t.head_norm[1] = values(l.k_norm);
    t.k = l.cache.k.data, t.v = l.cache.v.data;
    t.k_scales = static_cast<float*>(l.cache.k_scales.data), t.v_scales = static_cast<float*>(l.cache.v_scales.data);
    // without zero points: a StepLayer, which is the beginning
    std::memcpy(to, &t, static_cast<size_t>(layout.layer_bytes));
    to += layout.layer_bytes;
  }
  stack.table = ex.to_device(table);
  stack.workspace = ex.alloc(DType::u8, {static_cast<int64_t>(layout.workspace)});
}

void decode_layers(Exec& ex, const DecodeStack& stack, ConstTensorView position, TensorView x) {
  CudaState& s = ex.cuda_state();
  StepLayout layout = layout_of(s, stack.blocks, stack.layers, stack.form);
  StepJob& job = layout.job;
  const DecodeForm& form = stack.form;
  FEWBIT_ASSERT(x.dtype == DType::bf16 && x.numel() == job.hidden && position.dtype == DType::i32 &&
                position.numel() == 1);
  const ConstTensorView cache = stack.layers.front().cache.k;
  job.layers = stack.table.as<uint8_t>();
  job.eps = form.eps;
  job.head_eps = form.head_eps;
  job.weight_offset = form.weight_offset;
  job.scale = form.attention.scale;
  job.visible = static_cast<int>(std::min<int64_t>(form.attention.window, INT32_MAX));
  job.capacity = cache.shape[2];
  job.inv_freq = form.rope.inv_freq.as<float>();
  job.half = static_cast<int>(form.rope.inv_freq.numel());
  FEWBIT_ASSERT(2 * job.half <= form.attention.head_dim);
  job.attention_scale = form.rope.attention_scale;
  const int64_t run = hadamard_run(form.attention.head_dim);
  job.run = form.rope.hadamard ? static_cast<int>(run) : 0;
  job.run_scale = 1 / std::sqrt(static_cast<float>(run));
  job.position = position.as<int32_t>();
  job.x = x.as<__nv_bfloat16>();
  uint8_t* at = const_cast<uint8_t*>(stack.workspace.as<uint8_t>());
  const auto take = [&](size_t bytes) {
    uint8_t* from = at;
    at += (bytes + 15) / 16 * 16;
    return from;
  };
  const int64_t rows = static_cast<int64_t>(job.splits) * job.sets * job.kv_heads * kHeadsTogether;
  job.o_parts = reinterpret_cast<float*>(take(sizeof(float) * rows * form.attention.head_dim));
  job.ml_parts = reinterpret_cast<float2*>(take(sizeof(float2) * rows));
  const auto vector = [&](int64_t n) { return reinterpret_cast<__nv_bfloat16*>(take(2 * static_cast<size_t>(n))); };
  const DecodeLayer& first = stack.layers.front();
  job.qkv = vector(out_of(first.q) + out_of(first.k) + out_of(first.v));
  job.attended = vector(out_of(first.q));
  job.gate_up = vector(2 * int64_t{job.inner});
  FEWBIT_ASSERT(static_cast<size_t>(at - stack.workspace.as<uint8_t>()) <= layout.workspace);
  FEWBIT_ASSERT(2 + job.kv_heads * job.sets <= CudaState::kCounters);
  job.counters = s.counters;

  const ClusterLaunch launch(s, layout.kernel.function, kStepSlices, stack.blocks, kAllStepThreads, layout.shared);
  if (!form.attention_apart) return launch(job);
  const auto row = [&](__nv_bfloat16* of_heads) {
    return TensorView{of_heads, DType::bf16, {1, form.attention.heads * form.attention.head_dim}, x.device};
  };
  const auto launch_products = [&](size_t layer, int first_product, int end_product) {
    StepJob part = job;
    part.layers += layer * static_cast<size_t>(layout.layer_bytes);
    part.first = first_product, part.end = end_product;
    part.count = (end_product + kStepProducts - 1) / kStepProducts;
    launch(part);
  };
  AttentionArgs attention = form.attention;
  attention.behind_append = true;  // the launch before it ends with the append
  launch_products(0, kQkv, kQkv + 1);
  for (size_t i = 0; i < stack.layers.size(); ++i) {
    cuda::attention_cached(ex, row(job.qkv), position, stack.layers[i].cache, attention, row(job.attended));
    launch_products(i, kOut, i + 1 < stack.layers.size() ? kStepProducts + 1 : int{kStepProducts});
  }
}

}  // namespace fewbit::cuda
