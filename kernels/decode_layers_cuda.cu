// One launch for all layers: a block lives on every multiprocessor, the phases of a layer (q k v, attention, o, gate and
// up, down) are divided by waiting for all blocks, and warps of their own fetch the weights of the phases to come meanwhile
// (decode_layers_product.cuh). Norms, RoPE and the activation are worked out by whoever reads them
// (decode_layers_input.cuh), the residual by whoever finishes an output. Bound by the weights, and by the waits between
// phases where they are longer than the rings of weights last.
#include "kernels/decode_layers.h"

#include <algorithm>
#include <cmath>

#include "kernels/decode_layers_attention.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/hadamard.h"
#include "kernels/hopper.cuh"
#include "kernels/launch.cuh"

namespace fewbit::cuda {
namespace {

// Registers of a computing and of a feeding thread: no more in all than the launch got.
constexpr int kComputeRegisters = 200, kFeedRegisters = 48;

template <int D, class C>
__global__ void __launch_bounds__(kAllStepThreads, 1) decode_layers_kernel(const __grid_constant__ StepJob job) {
#ifdef FEWBIT_SM90A
  extern __shared__ __align__(128) uint8_t shared[];  // rings, work, layers, cosines and sines
  __shared__ float reduce[kStepWarps], own_x[kMostOwnRounds * kOwnOutputs];
  __shared__ float mail_sums[2 * kStepSlices * kRoundsTogether * kOwnOutputs];
  __shared__ StepPart parts[kStepProducts];
  __shared__ uint64_t barriers[kStepWarps * 2 * kMostSlots], mail_barriers[2];
  const int slice = blockIdx.x % kStepSlices, cluster = blockIdx.x / kStepSlices;
  uint8_t* work = shared + kStepWarps * job.slots * kPieceBytes;
  auto* layers = reinterpret_cast<StepLayer*>(work + job.work_bytes);
  auto* turns = reinterpret_cast<float*>(layers + job.count);
  for (int i = threadIdx.x; i < job.count * static_cast<int>(sizeof(StepLayer) / 8); i += kAllStepThreads)
    reinterpret_cast<uint64_t*>(layers)[i] = reinterpret_cast<const uint64_t*>(job.layers)[i];
  if (threadIdx.x < kStepWarps) StepRing(shared, barriers, threadIdx.x, job.slots).init();
  if (threadIdx.x < 2) barrier_init(mail_barriers + threadIdx.x, 1);
  if (threadIdx.x < kStepProducts)
    parts[threadIdx.x].set(job.cut[threadIdx.x], slice, cluster, clusters());
  __syncthreads();
  cluster_meet();  // the barriers are ready
  if (threadIdx.x >= kStepThreads) {
    give_registers<kFeedRegisters>();
    const int warp = (threadIdx.x - kStepThreads) / 32;
    return step_feed(job, layers, parts, StepRing(shared, barriers, warp, job.slots), warp);
  }
  take_registers<kComputeRegisters>();

  auto* sums = reinterpret_cast<float*>(work + job.input_bytes);
  auto* input_pieces = reinterpret_cast<DigitGroup*>(sums + kRoundsTogether * kStepWarps * marlin::kTileN);
  StepTaker taker{StepRing(shared, barriers, threadIdx.x / 32, job.slots)};
  StepMail mail{mail_sums, mail_barriers};
  await_predecessor();  // the feeding warps do not: weights are nobody's output
  const int position = *job.position;
  rope_angles(turns, static_cast<float>(position), job.inv_freq, job.half, job.attention_scale, threadIdx.x, kStepThreads);
  for (int e = threadIdx.x; e < parts[kOut].rounds * kOwnOutputs; e += kStepThreads)
    own_x[e] = to_f32(job.x[(cluster + e / kOwnOutputs * clusters()) * marlin::kTileN + slice * kOwnOutputs + e % kOwnOutputs]);
  compute_sync();
  const StepAttention own(job, position, blockIdx.x);
  StepSync sync{job.counters};
#pragma unroll 1
  for (int i = 0; i < job.count; ++i) {
    const StepLayer& layer = layers[i];
    const StepEnd end{job, layer, own_x};
    step_prefetch_keys<D, C>(job, layer, own);
    // One place in the code for every kind of input and for the product: the instructions of a layer stay at hand.
#pragma unroll 1
    for (int product = 0; product < kStepProducts; ++product) {
      const StepPart& part = parts[product];
      const StepInput input{work, input_pieces, part.k0, part.length};
      if (product == kQkv || product == kGateUp)
        normed_input(job, input, product == kQkv ? layer.input_norm : layer.middle_norm, sync, reduce);
      else
        plain_input(job, product, input, sync);
      step_multiply(product, part, input, taker, mail, slice, sums, end);
      sync.arrive();
      if (product != kQkv) continue;
      sync.wait();
      step_attention<D, C>(job, layer, own, position, turns, work);
      sync.arrive();
    }
  }
  sync.wait();
  sync.leave();
#endif
}

// --- host --------------------------------------------------------------------------------------------------------

// Calls f with the kernel's variant; false where there is none.
template <class F>
bool dispatch(int64_t head_dim, DType cache, F&& f) {
  if (cache != DType::bf16 && cache != DType::f8_e4m3 && cache != DType::i8) return false;
  const auto with = [&](auto dim) {
    dispatch_stored(Type<__nv_bfloat16>{}, cache, [&](auto code) { f(dim, code); });
    return true;
  };
  if (head_dim == 64) return with(std::integral_constant<int, 64>{});
  return head_dim == 128 && with(std::integral_constant<int, 128>{});
}

template <int D, class C>
cudaLaunchConfig_t step_config(CudaState& s, size_t shared, int blocks, cudaLaunchAttribute (&attributes)[2]) {
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(decode_layers_kernel<D, C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared)));
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kStepSlices, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kAllStepThreads);
  config.dynamicSmemBytes = shared;
  config.stream = s.stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return config;
}

constexpr size_t kStaticShared = 7168;  // at most, of the kernel

// Blocks that run at the same time.
int most_blocks(CudaState& s) {
  using C = __nv_bfloat16;
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config = step_config<128, C>(s, s.max_shared() - kStaticShared, kStepSlices, attributes);
  int clusters = 0;
  FEWBIT_CUDA_CALL(cudaOccupancyMaxActiveClusters(&clusters, decode_layers_kernel<128, C>, &config));
  return clusters * kStepSlices;
}

struct StepLayout {
  StepJob job{};
  size_t shared = 0;      // bytes of a block
  size_t workspace = 0;   // bytes
  std::string refusal;
};

// Everything but the pointers.
StepLayout layout_of(const CudaState& s, int blocks, const std::vector<DecodeLayer>& layers, const DecodeForm& form) {
  StepLayout out;
  const auto refuse = [&](std::string why) { return out.refusal = std::move(why), out; };
  const AttentionArgs& a = form.attention;
  const DecodeLayer& l = layers.front();
  StepJob& job = out.job;
  const int64_t hidden = l.q.in, inner = l.gate.out;
  for (const DecodeLayer& each : layers) {
    for (const MarlinView* w : {&each.q, &each.k, &each.v, &each.o, &each.gate, &each.up, &each.down})
      if (w->bits != 4 || w->z.data || w->groups() < 2 || w->group() != kPieceK)
        return refuse("linears of 4 bits in groups of 128 without zero points only");
    if (each.cache.k.dtype != l.cache.k.dtype || each.cache.k.shape != l.cache.k.shape || each.cache.k.shape[0] != 1)
      return refuse("one sequence only, with caches alike");
  }
  if (!dispatch(a.head_dim, l.cache.k.dtype, [](auto, auto) {})) return refuse("heads of 64 or 128 values only");
  if (a.softcap > 0) return refuse("no soft cap");
  if (form.act != ActKind::silu) return refuse("SiLU only");
  job.count = static_cast<int>(layers.size());
  job.hidden = static_cast<int>(hidden);
  job.inner = static_cast<int>(inner);
  job.heads = a.heads;
  job.kv_heads = a.kv_heads;
  const int64_t outs[kStepWeights] = {l.q.out, l.k.out, l.v.out, l.o.out, inner, l.up.out, l.down.out};
  for (int w = 0; w < kStepWeights; ++w) job.out[w] = static_cast<int>(outs[w]);
  const auto cut = [](int64_t out, int64_t in) {
    return StepCut{static_cast<int>(out / marlin::kTileN), static_cast<int>(in / kPieceK)};
  };
  job.end_q = static_cast<int>(l.q.out / marlin::kTileN);
  job.end_k = static_cast<int>((l.q.out + l.k.out) / marlin::kTileN);
  job.cut[kQkv] = cut(l.q.out + l.k.out + l.v.out, hidden);
  job.cut[kOut] = cut(hidden, l.o.in);
  job.end_gate = static_cast<int>(inner / marlin::kTileN);
  job.cut[kGateUp] = cut(2 * inner, hidden);
  job.cut[kDown] = cut(hidden, inner);
  int pieces = 0;
  for (const StepCut& c : job.cut) pieces = std::max(pieces, (c.pieces + kStepSlices - 1) / kStepSlices);
  if (blocks == 0) return refuse("no room for a cluster of blocks");
  if (hidden / marlin::kTileN > int64_t{kMostOwnRounds} * (blocks / kStepSlices)) return refuse("too many hidden values");
  const int q_heads = a.heads / a.kv_heads;
  job.sets = (q_heads + kHeadsTogether - 1) / kHeadsTogether;
  if (job.sets * a.kv_heads > blocks) return refuse("more sets of heads than multiprocessors");
  job.splits = blocks / (job.sets * a.kv_heads);
  const int64_t rows = static_cast<int64_t>(job.splits) * job.sets * a.kv_heads * kHeadsTogether;
  out.workspace = static_cast<size_t>(4 * rows * (a.head_dim + 2) + 2 * (2 * l.q.out + 2 * l.k.out + 2 * inner)) + 1024;

  size_t space = 0;
  dispatch(a.head_dim, l.cache.k.dtype,
           [&](auto dim, auto) { space = sizeof(StepAttentionSpace<decltype(dim)::value>); });
  job.input_bytes = pieces * kGroupDigitBytes;
  const size_t product = static_cast<size_t>(job.input_bytes) + sizeof(float) * kRoundsTogether * kStepWarps * marlin::kTileN + sizeof(DigitGroup) * pieces;
  job.work_bytes = static_cast<int>((std::max(product, space) + 15) / 16 * 16);
  const size_t fixed = job.work_bytes + sizeof(StepLayer) * layers.size() + 4 * static_cast<size_t>(a.head_dim);
  for (job.slots = kMostSlots; job.slots >= kLeastSlots; --job.slots) {
    out.shared = fixed + static_cast<size_t>(kStepWarps) * job.slots * kPieceBytes;
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
  return layout_of(s, most_blocks(s), layers, form).refusal;
}

void prepare_stack(Exec& ex, DecodeStack& stack) {
  stack.blocks = most_blocks(ex.cuda_state());
  const StepLayout layout = layout_of(ex.cuda_state(), stack.blocks, stack.layers, stack.form);
  FEWBIT_ASSERT(layout.refusal.empty());
  Tensor table = Tensor::host(DType::u8, {static_cast<int64_t>(sizeof(StepLayer) * stack.layers.size())});
  auto* to = reinterpret_cast<StepLayer*>(table.as<uint8_t>());
  for (const DecodeLayer& l : stack.layers) {
    StepLayer& t = *to++;
    const MarlinView* views[kStepWeights] = {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down};
    for (int w = 0; w < kStepWeights; ++w) {
      const MarlinSource source = source_of(*views[w]);
      t.weights[w] = {.words = source.b, .scales = source.s};
    }
    const auto values = [](ConstTensorView v) { return static_cast<const __nv_bfloat16*>(v.data); };
    t.input_norm = values(l.input_norm);
    t.middle_norm = values(l.middle_norm);
    t.bias[0] = values(l.q_bias), t.bias[1] = values(l.k_bias), t.bias[2] = values(l.v_bias);
    t.head_norm[0] = values(l.q_norm), t.head_norm[1] = values(l.k_norm);
    t.k = l.cache.k.data, t.v = l.cache.v.data;
    t.k_scales = static_cast<float*>(l.cache.k_scales.data), t.v_scales = static_cast<float*>(l.cache.v_scales.data);
  }
  stack.table = ex.to_device(table);
  stack.workspace = ex.alloc(DType::u8, {static_cast<int64_t>(layout.workspace)});
}

void decode_layers(Exec& ex, const DecodeStack& stack, ConstTensorView position, TensorView x) {
  CudaState& s = ex.cuda_state();
  StepLayout layout = layout_of(s, stack.blocks, stack.layers, stack.form);
  StepJob& job = layout.job;
  const DecodeForm& form = stack.form;
  FEWBIT_ASSERT(x.dtype == DType::bf16 && x.numel() == job.hidden && position.dtype == DType::i32 && position.numel() == 1);
  const ConstTensorView cache = stack.layers.front().cache.k;
  job.layers = reinterpret_cast<const StepLayer*>(stack.table.as<uint8_t>());
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
  job.qkv = vector(first.q.out + first.k.out + first.v.out);
  job.attended = vector(first.q.out);
  job.gate_up = vector(2 * int64_t{job.inner});
  FEWBIT_ASSERT(static_cast<size_t>(at - stack.workspace.as<uint8_t>()) <= layout.workspace);
  FEWBIT_ASSERT(2 + job.kv_heads * job.sets <= CudaState::kCounters);
  job.counters = s.counters;

  dispatch(form.attention.head_dim, cache.dtype, [&](auto dim, auto code) {
    constexpr int kDim = decltype(dim)::value;
    using C = typename decltype(code)::type;
    cudaLaunchAttribute attributes[2]{};
    const cudaLaunchConfig_t config = step_config<kDim, C>(s, layout.shared, stack.blocks, attributes);
    FEWBIT_CUDA_CALL(cudaLaunchKernelEx(&config, decode_layers_kernel<kDim, C>, job));
  });
}

}  // namespace fewbit::cuda
