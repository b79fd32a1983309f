#pragma once
// One launch for all layers: a block lives on every multiprocessor, the phases of a layer (q k v, attention, o, gate
// and up, down) are divided by waiting for all blocks, and warps of their own fetch the weights of the phases to come
// meanwhile (decode_layers_product.cuh). Norms, RoPE and the activation are worked out by whoever reads them
// (decode_layers_input.cuh), the residual by whoever finishes an output. Bound by the weights, and by the waits between
// phases where they are longer than the rings of weights last.
//
// With attention outside a launch has the products from one run of attention to the next: o, gate and up, down, and q k
// v of the layer after, with what makes them queries and rows of the cache. Its weights stream from the start too,
// while the attention before it ends.
//
// What the weights are is a class `Weights`: StepPackedOf of decode_layers_product.cuh, StepBytes of
// decode_layers_bytes.cuh.
#include "kernels/decode/decode_layers_attention.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/launch.cuh"

namespace fewbit::cuda {

// kWhole: with attention, of heads of D values over a cache of C; else StepJob::first and end say which products.
template <class Weights, int D, class C, bool kWhole>
__global__ void __launch_bounds__(kAllStepThreads, 1) decode_layers_kernel(const __grid_constant__ StepJob job) {
#ifdef FEWBIT_SM90A
  // Rings, work, layers, cosines and sines. The rings begin on a line: off one, every copy and load takes a pass more.
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kOutputs = Weights::kOutputs, kOwnOutputs = Weights::kOwnOutputs, kPieceBytes = Weights::kPieceBytes;
  __shared__ float reduce[kStepWarps], most[kStepWarps + kStepSlices], own_x[kMostOwnOutputs];
  __shared__ float mail_sums[2 * kOutputsTogether];
  __shared__ StepPart parts[kStepProducts];
  __shared__ uint64_t barriers[kStepWarps * 2 * kMostSlots], mail_barriers[2], most_barrier;
  const int slice = blockIdx.x % kStepSlices, cluster = blockIdx.x / kStepSlices;
  uint8_t* work = shared + kStepWarps * job.slots * kPieceBytes;
  using Layer = typename Weights::Layer;
  auto* layers = reinterpret_cast<Layer*>(work + job.work_bytes);
  auto* turns = reinterpret_cast<float*>(layers + job.count);
  for (int i = threadIdx.x; i < job.count * static_cast<int>(sizeof(Layer) / 8); i += kAllStepThreads)
    reinterpret_cast<uint64_t*>(layers)[i] = reinterpret_cast<const uint64_t*>(job.layers)[i];
  if (threadIdx.x < kStepWarps) StepRing(shared, barriers, threadIdx.x, job.slots, kPieceBytes).init();
  if (threadIdx.x < 2) barrier_init(mail_barriers + threadIdx.x, 1);
  if (threadIdx.x == 0) barrier_init(&most_barrier, 1);
  if (threadIdx.x < kStepProducts) parts[threadIdx.x].set(job.cut[threadIdx.x], slice, cluster, clusters());
  __syncthreads();
  cluster_sync();  // the barriers are ready
  if (threadIdx.x >= kStepThreads) {
    give_registers<kFeedRegisters>();
    const int warp = (threadIdx.x - kStepThreads) / 32;
    return step_feed<Weights, kWhole>(job, layers, parts, StepRing(shared, barriers, warp, job.slots, kPieceBytes),
                                      warp);
  }
  take_registers<kComputeRegisters>();

  auto* sums = reinterpret_cast<float*>(work + job.input_bytes);
  const StepSpace space{work, reinterpret_cast<uint8_t*>(sums + kOutputsTogether * kStepWarps), most, &most_barrier};
  typename Weights::Taker taker{StepRing(shared, barriers, threadIdx.x / 32, job.slots, kPieceBytes)};
  StepMail<Weights> mail{mail_sums, mail_barriers};
  await_predecessor();  // the feeding warps do not: weights are nobody's output
  // Attention starts once every block has come here, so it takes no block's place; it finds room as they end. All
  // before this launch has ended by then, older keys are there (AttentionArgs::behind_append).
  if constexpr (!kWhole) allow_successor();
  const int position = *job.position;
  if constexpr (kWhole)
    rope_angles(turns, static_cast<float>(position), job.inv_freq, job.half, job.attention_scale, threadIdx.x,
                kStepThreads);
  for (int e = threadIdx.x; e < parts[kOut].rounds * kOwnOutputs; e += kStepThreads)
    own_x[e] =
        to_f32(job.x[(cluster + e / kOwnOutputs * clusters()) * kOutputs + slice * kOwnOutputs + e % kOwnOutputs]);
  compute_sync();
  const StepAttention own(job, position, blockIdx.x);
  StepSync<kWhole> sync{job.counters};
#pragma unroll 1
  for (int i = 0; i < job.count; ++i) {
    const StepLayer& layer = layers[i];
    const StepEnd<Weights> end{job, layer, own_x};
    if constexpr (kWhole) step_prefetch_keys<D, C>(job, layer, own);
    const int begin = kWhole || i > 0 ? 0 : job.first;
    const int stop = kWhole ? kStepProducts : min(job.end - i * kStepProducts, int{kStepProducts});
    // One place in the code for every kind of input and for the product: the instructions of a layer stay at hand.
#pragma unroll 1
    for (int product = begin; product < stop; ++product) {
      const StepPart& part = parts[product];
      auto input = Weights::input(space, part, product, layer, i);
      if (product == kQkv || product == kGateUp)
        normed_input(job, input, product == kQkv ? layer.input_norm : layer.middle_norm, sync, reduce);
      else
        plain_input(job, product, input, sync);
      step_multiply<Weights>(product, part, input, taker, mail, slice, sums, end);
      sync.arrive();
      if constexpr (kWhole) {
        if (product != kQkv) continue;
        sync.wait();
        step_attention<D, C>(job, layer, own, position, turns, work);
        sync.arrive();
      }
    }
  }
  if constexpr (kWhole) {
    sync.wait();
    sync.leave();
  } else {
    if ((job.end - 1) % kStepProducts == kQkv) {  // attention comes next
      rope_angles(turns, static_cast<float>(position), job.inv_freq, job.half, job.attention_scale, threadIdx.x,
                  kStepThreads);
      sync.wait();
      step_append<D, C>(job, layers[job.count - 1], position, turns, work);
    }
    sync.leave_unwaited();
  }
#endif
}

template <class Weights>
StepKernel step_kernel(int64_t head_dim, DType cache, bool whole) {
  StepKernel found;
  if (cache != DType::bf16 && cache != DType::f8_e4m3 && cache != DType::i8) return found;
  const auto with = [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    dispatch_stored(Type<__nv_bfloat16>{}, cache, [&](auto code) {
      using C = typename decltype(code)::type;
      if (whole)
        found = {reinterpret_cast<const void*>(&decode_layers_kernel<Weights, kDim, C, true>),
                 static_cast<int>(sizeof(StepAttentionSpace<kDim>))};
      else
        found = {reinterpret_cast<const void*>(&decode_layers_kernel<Weights, kDim, C, false>),
                 static_cast<int>(sizeof(StepAppendSpace<kDim>))};
    });
  };
  if (head_dim == 64) with(std::integral_constant<int, 64>{});
  if (head_dim == 128) with(std::integral_constant<int, 128>{});
  return found;
}
template <class Weights>
StepKind kind_of() {
  return {.outputs = Weights::kOutputs,
          .piece_bytes = Weights::kPieceBytes,
          .input_bytes = Weights::kInputBytes,
          .note_bytes = Weights::kNoteBytes,
          .layer_bytes = static_cast<int>(sizeof(typename Weights::Layer)),
          .kernel = &step_kernel<Weights>};
}

}  // namespace fewbit::cuda
