// The host's half of decode_layers() on a GPU: which layers it takes, how they are laid out, and the launch itself or,
// with attention apart, those around attention. The kernel is decode_layers_kernel.cuh; here it is compiled for packed
// weights without zero points, in decode_layers_zeros_cuda.cu for those with them, in decode_layers_bytes_cuda.cu for
// bytes, in decode_layers_mixture_cuda.cu for packed experts.
#include "kernels/decode/decode_layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/decode/decode_layers_balance.cuh"
#include "kernels/decode/decode_layers_kernel.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/model/hadamard.h"
#include "kernels/products/marlin/marlin_tile.cuh"

namespace fewbit::cuda {
namespace decode_step {
namespace {

// Blocks that run at the same time; as many of every kernel, since a block of each takes a whole multiprocessor.
int resident_blocks(CudaState& s) {
  const Kernel kernel = find_kernel<SymmetricWeights>(128, DType::bf16, true);
  const size_t shared = s.max_shared() - static_cast<size_t>(SymmetricWeights::kStaticBytes);
  return kKSplits * ClusterLaunch(s, kernel.function, kKSplits, kKSplits, kBlockThreads, shared).most_clusters();
}

bool has_experts(const DecodeLayer& l) { return !l.mixture.up.empty(); }
// Of a mixture the first expert stands for all.
std::array<const DecodeLinear*, kWeights> linears_of(const DecodeLayer& l) {
  const DecodeMixture& m = l.mixture;
  if (has_experts(l)) return {&l.q, &l.k, &l.v, &l.o, &m.gate[0], &m.up[0], &m.down[0]};
  return {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down};
}
bool is_bytes(const DecodeLinear& l) { return std::holds_alternative<ByteView>(l); }
bool has_zeros(const DecodeLinear& packed) { return std::get<MarlinView>(packed).z.data != nullptr; }

// Why the kernel of packed weights, or that of bytes, does not take the linears of a layer; "" = it does.
std::string refuses_packed(const DecodeLinear& w, bool zeros) {
  const auto& m = std::get<MarlinView>(w);
  if (m.bits != 4 || m.groups() < 2 || m.group() != kStageK) return "packed linears of 4 bits in groups of 128 only";
  return has_zeros(w) == zeros ? "" : "packed linears with zero points and without";
}
std::string refuses_packed(const DecodeLayer& l) {
  for (const DecodeLinear* w : linears_of(l))
    if (std::string why = refuses_packed(*w, has_zeros(l.q)); !why.empty()) return why;
  return "";
}
// Why the kernel of mixtures does not take the experts of a layer.
std::string refuses_experts_of(const DecodeLayer& l, int top_k) {
  const DecodeMixture& m = l.mixture;
  const auto experts = static_cast<int64_t>(m.up.size());
  if (top_k < 1 || top_k > std::min<int64_t>(kMaxTopK, experts) || experts > kMaxExperts)
    return "too many experts of a token, or of all";
  if (m.router.dtype != DType::bf16 || m.router.rows() != experts || !aligned16(m.router.as<uint16_t>()))
    return "a router that is not bf16";
  if (in_of(m.up[0]) > kMaxRoutedHidden || in_of(m.up[0]) % 8 != 0) return "too many hidden values";
  if (has_zeros(l.q)) return "mixtures without zero points only";
  for (const auto* of : {&m.gate, &m.up, &m.down})
    for (const DecodeLinear& w : *of) {
      if (!std::holds_alternative<MarlinView>(w)) return "experts of several kinds";
      if (std::string why = refuses_packed(w, false); !why.empty()) return why;
      if (in_of(w) != in_of(of->front()) || out_of(w) != out_of(of->front())) return "experts of several sizes";
    }
  return "";
}
std::string refuses_bytes(const DecodeLayer& l) {
  for (const DecodeLinear* w : linears_of(l)) {
    const auto& b = std::get<ByteView>(*w);
    if (b.w.codes.dtype != DType::f8_e4m3 || b.input.codes != DType::f8_e4m3 || b.input.group != 0)
      return "bytes in E4M3 with a scale for each output and row only";
    if (in_of(*w) % kStageK != 0 || in_of(*w) < 2 * kStageK || out_of(*w) % byte_weights_kind().outputs != 0 ||
        !aligned16(b.w.codes.as<uint8_t>()))
      return "byte linears of whole tiles only";
  }
  const auto fixed = [](const DecodeLinear& w) { return std::get<ByteView>(w).input.fixed; };
  if (fixed(l.q) != fixed(l.k) || fixed(l.q) != fixed(l.v) || fixed(l.gate) != fixed(l.up))
    return "one x is rounded with several scales";
  return in_of(l.q) <= kMaxByteHidden ? "" : "too many hidden values";
}
std::string refuses_linears(const DecodeLayer& l, bool bytes) {
  for (const DecodeLinear* w : linears_of(l))
    if (is_bytes(*w) != bytes) return "linears of several kinds";
  return bytes ? refuses_bytes(l) : refuses_packed(l);
}

// The same of all layers, and of their caches.
std::string refuses_layers(const std::vector<DecodeLayer>& layers, int top_k) {
  const DecodeLayer& l = layers.front();
  const size_t experts = l.mixture.up.size();
  for (const DecodeLayer& each : layers)
    for (const auto* of : {&each.mixture.gate, &each.mixture.up, &each.mixture.down})
      if (of->size() != experts) return "mixtures without gates, or layers that differ";
  const bool bytes = is_bytes(l.q);
  for (const DecodeLayer& each : layers) {
    if (std::string why = refuses_linears(each, bytes); !why.empty()) return why;
    if (!bytes && has_zeros(each.q) != has_zeros(l.q)) return "layers with zero points and without";
    if (each.cache.k.dtype != l.cache.k.dtype || each.cache.k.shape != l.cache.k.shape) return "caches that differ";
    if (experts == 0) continue;
    if (bytes) return "experts in bytes";
    if (std::string why = refuses_experts_of(each, top_k); !why.empty()) return why;
  }
  return "";
}

struct LaunchPlan {
  Job job{};
  Kernel kernel{};
  size_t shared = 0;       // bytes of a block
  size_t workspace = 0;    // bytes
  size_t shared_sums = 0;  // bytes of Job::shared_sums
  int record_bytes = 0;    // of a layer in the table
  int static_bytes = 0;    // of the kernel's static shared memory that the plan leaves room for
  std::string refusal;     // "" = the layers have a kernel
};

// Sizes and tiles of the products.
void set_products(Job& job, const DecodeLayer& l, const DecodeForm& form, const WeightKind& kind) {
  int64_t outs[kWeights];
  for (int w = 0; w < kWeights; ++w) outs[w] = out_of(*linears_of(l)[w]), job.out[w] = static_cast<int>(outs[w]);
  const auto [q_out, k_out, v_out, hidden, inner, up_out, down_out] = outs;
  job.hidden = static_cast<int>(hidden);
  job.inner = static_cast<int>(inner);
  const auto shape = [&](int64_t out, int64_t in) {
    return ProductShape{
        .n_tiles = static_cast<int>(out / kind.outputs), .k_tiles = static_cast<int>(in / kStageK), .sharers = 1};
  };
  job.end_q = static_cast<int>(q_out / kind.outputs);
  job.end_k = static_cast<int>((q_out + k_out) / kind.outputs);
  job.end_gate = static_cast<int>(inner / kind.outputs);
  job.product[kQkv] = shape(q_out + k_out + v_out, hidden);
  job.product[kOut] = shape(hidden, q_out);
  job.product[kGateUp] = shape(2 * inner, hidden);
  job.product[kDown] = shape(hidden, inner);
  if (!has_experts(l)) return;
  job.experts = static_cast<int>(l.mixture.up.size());
  job.top_k = form.top_k;
  job.expert_k_tiles = job.product[kDown].k_tiles;
  job.product[kGateUp].n_tiles *= form.top_k;
  job.product[kDown].k_tiles *= form.top_k;
  job.slots_of_value = 1.f / static_cast<float>(inner);
  job.per_hidden = 1.f / static_cast<float>(hidden);
  job.renormalise = form.renormalise;
  job.route_scale = form.scaling;
}

// Shared memory: as many stages as find room beside inputs and the records of so many layers. False where they are too
// few.
bool plan_shared(LaunchPlan& plan, const WeightKind& kind, int64_t head_dim, int records, size_t most) {
  Job& job = plan.job;
  int k_tiles = 0;  // of an input that a block holds, at most
  for (int p = 0; p < kProducts; ++p) {
    const int splits = job.experts > 0 && (p == kQkv || p == kGateUp) ? 1 : kKSplits;
    k_tiles = std::max(k_tiles, (job.product[p].k_tiles + splits - 1) / splits);
  }
  job.input_bytes = k_tiles * kind.input_bytes;
  const size_t product = static_cast<size_t>(job.input_bytes) + sizeof(float) * kExchangeOutputs * kConsumerWarps +
                         static_cast<size_t>(k_tiles) * kind.group_bytes;
  job.work_bytes = static_cast<int>((std::max<size_t>(product, plan.kernel.attention_bytes) + 15) / 16 * 16);
  size_t fixed = job.work_bytes + static_cast<size_t>(plan.record_bytes) * records + 4 * static_cast<size_t>(head_dim);
  if (job.experts > 0)
    fixed += 16 + sizeof(MixtureShared) + 8 * static_cast<size_t>(job.experts + 7) +
             sizeof(Weight) * kExpertWeights * static_cast<size_t>(job.experts);
  for (job.stages = kMaxStages; job.stages >= kMinStages; --job.stages) {
    plan.shared = fixed + static_cast<size_t>(kConsumerWarps) * job.stages * kind.stage_bytes;
    // One in flight is faster where the ring is long (what is read between products waits behind the weights), two
    // where a short ring must fill.
    job.in_flight = job.experts > 0 ? kMixtureInFlight : job.stages == kMaxStages ? 1 : kMaxInFlight;
    if (plan.shared + static_cast<size_t>(kind.static_bytes) <= most) return true;
  }
  return false;
}

int64_t split_rows(const Job& job) {
  return int64_t{job.key_splits} * job.head_sets * job.kv_heads * job.heads_per_block;
}

// Everything about a launch but the pointers.
LaunchPlan plan_of(const CudaState& s, int blocks, const std::vector<DecodeLayer>& layers, const DecodeForm& form) {
  LaunchPlan plan;
  const auto refuse = [&](std::string why) { return plan.refusal = std::move(why), plan; };
  const AttentionArgs& a = form.attention;
  const DecodeLayer& l = layers.front();
  Job& job = plan.job;
  const WeightKind kind = is_bytes(l.q)    ? byte_weights_kind()
                          : has_experts(l) ? mixture_weights_kind()
                          : has_zeros(l.q) ? zero_weights_kind()
                                           : weights_kind<SymmetricWeights>(&packed_sharing_kernel);
  plan.record_bytes = kind.record_bytes;
  plan.kernel = kind.kernel(a.head_dim, l.cache.k.dtype, !form.attention_apart);
  if (!plan.kernel.function) return refuse("heads of 64 or 128 values only, of mixtures 128");
  if (a.softcap > 0) return refuse("no soft cap");
  if (form.act != ActKind::silu) return refuse("SiLU only");
  if (form.peer.present() && has_experts(l)) return refuse("no experts where two GPUs share the layers");
  // With attention apart a launch reaches into two layers at most.
  job.count = static_cast<int>(form.attention_apart ? std::min<size_t>(layers.size(), 2) : layers.size());
  job.heads = a.heads;
  job.kv_heads = a.kv_heads;
  set_products(job, l, form, kind);
  if (blocks == 0) return refuse("no room for a cluster of blocks");
  if (job.hidden > int64_t{kMaxOwnOutputs} * blocks) return refuse("too many hidden values");
  const int q_heads = a.heads / a.kv_heads;
  job.heads_per_block = kind.heads;
  job.head_sets = (q_heads + kind.heads - 1) / kind.heads;
  if (job.head_sets * a.kv_heads > blocks) return refuse("more sets of heads than multiprocessors");
  job.key_splits = blocks / (job.head_sets * a.kv_heads);
  // Of a mixture another round of keys is shorter than the exchange of two splits.
  job.split_keys = (has_experts(l) ? 2 : 1) * kRoundKeys;
  job.whole_keys = (has_experts(l) ? 4 : 1) * kRoundKeys;
  const int64_t wide = 2 * int64_t{job.inner} * std::max(1, job.top_k);
  const int64_t values = 2 * out_of(l.q) + out_of(l.k) + out_of(l.v) + wide;  // bf16
  plan.workspace = static_cast<size_t>(4 * split_rows(job) * (a.head_dim + 2) + 2 * values) + 1024;
  if (job.experts > 0)  // logits, and words with stamps
    plan.workspace += static_cast<size_t>(8 * job.experts + 4 * (job.hidden + values - wide) +
                                          8 * split_rows(job) * (a.head_dim + 2)) +
                      128;
  if (!plan_shared(plan, kind, a.head_dim, job.count, s.max_shared()))
    return refuse("too little shared memory for the inputs of the largest linear");
  if (kind.sharing && share_n_tiles(job, blocks / kKSplits)) {
    plan.kernel = kind.sharing(a.head_dim, l.cache.k.dtype, !form.attention_apart);
    plan_shared(plan, kind, a.head_dim, 0, s.max_shared());  // that kernel holds no records
  }
  plan.static_bytes = kind.static_bytes;
  plan.shared_sums = shared_sum_bytes(job, blocks / kKSplits, kind);
  return plan;
}

Weight weight_of(const DecodeLinear& w) {
  if (const auto* b = std::get_if<ByteView>(&w)) return {.codes = b->w.codes.data, .scales = b->w.scales.data};
  const MarlinSource source = source_of(std::get<MarlinView>(w));
  return {.codes = source.b, .scales = source.s};
}

// Without zero points and experts the beginning of either.
union AnyRecord {
  ZeroLayerRecord zeros;
  MixtureLayerRecord mixture;
};
// `experts`: the layer's in the table of all.
AnyRecord record_of(const DecodeLayer& l, const Weight* experts) {
  ZeroLayerRecord t{};
  for (int w = 0; w < kWeights; ++w) {
    t.weights[w] = weight_of(*linears_of(l)[w]);
    if (const auto* m = std::get_if<MarlinView>(linears_of(l)[w])) t.zeros[w] = source_of(*m).z;
  }
  const DecodeLinear* firsts[kProducts] = {&l.q, &l.o, &l.gate, &l.down};
  for (int p = 0; p < kProducts; ++p)
    if (const auto* b = std::get_if<ByteView>(firsts[p])) t.fixed[p] = b->input.fixed;
  const auto values = [](ConstTensorView v) { return static_cast<const __nv_bfloat16*>(v.data); };
  t.input_norm = values(l.input_norm);
  t.middle_norm = values(l.middle_norm);
  t.bias[0] = values(l.q_bias), t.bias[1] = values(l.k_bias), t.bias[2] = values(l.v_bias);
  t.head_norm[0] = values(l.q_norm), t.head_norm[1] = values(l.k_norm);
  t.k = l.cache.k.data, t.v = l.cache.v.data;
  t.k_scales = static_cast<float*>(l.cache.k_scales.data), t.v_scales = static_cast<float*>(l.cache.v_scales.data);
  if (!has_experts(l)) return {.zeros = t};
  MixtureLayerRecord m{};
  static_cast<LayerRecord&>(m) = t;
  m.router = values(l.mixture.router), m.experts = experts;
  return {.mixture = m};
}

// Gate, up and down of every expert of every layer.
Tensor expert_table(Exec& ex, const std::vector<DecodeLayer>& layers) {
  std::vector<Weight> all;
  for (const DecodeLayer& l : layers)
    for (size_t e = 0; e < l.mixture.up.size(); ++e)
      for (const auto* of : {&l.mixture.gate, &l.mixture.up, &l.mixture.down}) all.push_back(weight_of((*of)[e]));
  if (all.empty()) return {};
  constexpr int64_t kWords = sizeof(Weight) / sizeof(int64_t);
  return ex.to_device(ConstTensorView{all.data(), DType::i64, {static_cast<int64_t>(all.size()), kWords}, {}});
}

// What the form says, and the step's vectors in the workspace.
void bind(LaunchPlan& plan, CudaState& s, const DecodeStack& stack) {
  Job& job = plan.job;
  const DecodeForm& form = stack.form;
  job.layers = stack.table.as<uint8_t>();
  job.eps = form.eps;
  job.head_eps = form.head_eps;
  job.weight_offset = form.weight_offset;
  job.score_scale = form.attention.scale;
  job.peer = form.peer;
  job.window = static_cast<int>(std::min<int64_t>(form.attention.window, INT32_MAX));
  job.capacity = stack.layers.front().cache.k.shape[2];
  job.inv_freq = form.rope.inv_freq.as<float>();
  job.rope_pairs = static_cast<int>(form.rope.inv_freq.numel());
  FEWBIT_ASSERT(2 * job.rope_pairs <= form.attention.head_dim);
  job.rope_scale = form.rope.attention_scale;
  const int64_t run = hadamard_run(form.attention.head_dim);
  job.hadamard_run = form.rope.hadamard ? static_cast<int>(run) : 0;
  job.hadamard_scale = 1 / std::sqrt(static_cast<float>(run));
  uint8_t* at = const_cast<uint8_t*>(stack.workspace.as<uint8_t>());
  const auto take = [&](size_t bytes) {
    uint8_t* from = at;
    at += (bytes + 15) / 16 * 16;
    return from;
  };
  const int64_t rows = split_rows(job);
  job.split_o = reinterpret_cast<float*>(take(sizeof(float) * rows * form.attention.head_dim));
  job.split_ml = reinterpret_cast<float2*>(take(sizeof(float2) * rows));
  const auto vector = [&](int64_t n) { return reinterpret_cast<__nv_bfloat16*>(take(2 * static_cast<size_t>(n))); };
  const DecodeLayer& first = stack.layers.front();
  job.qkv = vector(out_of(first.q) + out_of(first.k) + out_of(first.v));
  job.attended = vector(out_of(first.q));
  job.gate_up = vector(job.experts > 0 ? 0 : 2 * int64_t{job.inner});
  job.logits = reinterpret_cast<uint64_t*>(take(sizeof(uint64_t) * job.experts));
  job.stream = reinterpret_cast<uint32_t*>(take(job.experts > 0 ? sizeof(uint32_t) * job.hidden : 0));
  const auto words = [&](int64_t n) {
    return reinterpret_cast<uint32_t*>(take(job.experts > 0 ? sizeof(uint32_t) * static_cast<size_t>(n) : 0));
  };
  job.qkv_words = words(out_of(first.q) + out_of(first.k) + out_of(first.v));
  job.attended_words = words(out_of(first.q));
  job.activated_words = words(int64_t{job.inner} * job.top_k);
  const auto floats = [&](int64_t n) {
    return reinterpret_cast<uint64_t*>(take(job.experts > 0 ? sizeof(uint64_t) * static_cast<size_t>(n) : 0));
  };
  job.split_words = floats(rows * form.attention.head_dim), job.split_ml_words = floats(2 * rows);
  job.launches = reinterpret_cast<uint32_t*>(take(sizeof(uint32_t)));
  job.stamp_stride = static_cast<int>(2 * stack.layers.size()) + 1;
  FEWBIT_ASSERT(static_cast<size_t>(at - stack.workspace.as<uint8_t>()) <= plan.workspace);
  FEWBIT_ASSERT(2 + job.kv_heads * job.head_sets <= CudaState::kCounters);
  job.counters = s.counters;
  job.shared_sums = plan.shared_sums > 0 ? static_cast<float*>(s.flagged_partials(plan.shared_sums)) : nullptr;
}

// The launches with attention apart: q k v of the first layer, then for each layer attention and what follows it.
void launch_apart(Exec& ex, const ClusterLaunch& launch, const LaunchPlan& plan, const DecodeStack& stack,
                  ConstTensorView position) {
  AttentionArgs attention = stack.form.attention;
  attention.behind_append = true;  // the launch before it ends with the append
  const auto row = [&](__nv_bfloat16* of_heads) {
    return TensorView{of_heads, DType::bf16, {1, attention.heads * attention.head_dim}, position.device};
  };
  const auto launch_products = [&](size_t layer, int first_product, int end_product) {
    Job job = plan.job;
    job.layers += layer * static_cast<size_t>(plan.record_bytes);
    job.first_product = first_product, job.end_product = end_product;
    job.count = (end_product + kProducts - 1) / kProducts;
    launch(job);
  };
  launch_products(0, kQkv, kQkv + 1);
  for (size_t i = 0; i < stack.layers.size(); ++i) {
    cuda::attention_cached(ex, row(plan.job.qkv), position, stack.layers[i].cache, attention, row(plan.job.attended));
    launch_products(i, kOut, i + 1 < stack.layers.size() ? kProducts + 1 : int{kProducts});
  }
}

}  // namespace
}  // namespace decode_step

std::string refuses_stack(const Exec& ex, const std::vector<DecodeLayer>& layers, const DecodeForm& form) {
  CudaState& s = ex.cuda_state();
  if (layers.empty()) return "no layers";
  if (!s.sm90()) return "steps in one launch want compute capability 9.0";
  if (layers.front().cache.k.shape[0] != 1) return "one sequence only";
  if (std::string why = decode_step::refuses_layers(layers, form.top_k); !why.empty()) return why;
  return decode_step::plan_of(s, decode_step::resident_blocks(s), layers, form).refusal;
}

void prepare_stack(Exec& ex, DecodeStack& stack) {
  CudaState& s = ex.cuda_state();
  stack.blocks = decode_step::resident_blocks(s);
  const decode_step::LaunchPlan plan = decode_step::plan_of(s, stack.blocks, stack.layers, stack.form);
  FEWBIT_ASSERT(plan.refusal.empty());
  FEWBIT_ASSERT(static_shared_bytes(plan.kernel.function) <= static_cast<size_t>(plan.static_bytes));
  Tensor table = Tensor::host(DType::u8, {plan.record_bytes * static_cast<int64_t>(stack.layers.size())});
  stack.experts = decode_step::expert_table(ex, stack.layers);
  const auto* experts = static_cast<const decode_step::Weight*>(stack.experts.view().data);
  uint8_t* to = table.as<uint8_t>();
  for (const DecodeLayer& l : stack.layers) {
    const decode_step::AnyRecord record = decode_step::record_of(l, experts);
    std::memcpy(to, &record, static_cast<size_t>(plan.record_bytes));
    to += plan.record_bytes;
    experts += decode_step::kExpertWeights * plan.job.experts;
  }
  stack.table = ex.to_device(table);
  stack.workspace = ex.alloc_zeros(DType::u8, {static_cast<int64_t>(plan.workspace)});
  if (plan.shared_sums > 0) s.flagged_partials(plan.shared_sums);  // grows now, in front of any recording
}

void decode_layers(Exec& ex, const DecodeStack& stack, ConstTensorView position, TensorView x) {
  CudaState& s = ex.cuda_state();
  decode_step::LaunchPlan plan = decode_step::plan_of(s, stack.blocks, stack.layers, stack.form);
  FEWBIT_ASSERT(x.dtype == DType::bf16 && x.numel() == plan.job.hidden && position.dtype == DType::i32 &&
                position.numel() == 1);
  decode_step::bind(plan, s, stack);
  plan.job.position = position.as<int32_t>();
  plan.job.x = x.as<__nv_bfloat16>();
  const ClusterLaunch launch(s, plan.kernel.function, decode_step::kKSplits, stack.blocks, decode_step::kBlockThreads,
                             plan.shared);
  if (stack.form.attention_apart)
    decode_step::launch_apart(ex, launch, plan, stack, position);
  else
    launch(plan.job);
}

}  // namespace fewbit::cuda
