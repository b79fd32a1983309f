#pragma once
// The kernel that runs all layers of a decode step in one launch. A block lives on every multiprocessor; a barrier of
// the grid, or of a mixture words with a stamp, stand between two phases of a layer (q k v, attention, o, gate and up,
// down), and producer warps fetch the weights of the phases to come meanwhile (decode_layers_pipeline.cuh). Norms, RoPE
// and the activation are computed by whoever reads them (decode_layers_input.cuh, decode_layers_append.cuh), the
// residual by whoever finishes an output. Bound by the memory bandwidth for the weights, and by the barriers where they
// last longer than the rings of weights.
//
// With attention apart a launch has the products from one run of attention to the next: o, gate and up, down, and q k v
// of the layer after, with what makes of these the queries and the rows of the cache. Its weights too stream from the
// start, while the attention before it ends.
//
// The kind of weights is a class `Weights`: PackedWeights of decode_layers_product.cuh, ByteWeights of
// decode_layers_bytes.cuh.
#include "kernels/decode/decode_layers_attention.cuh"
#include "kernels/decode/decode_layers_long_input.cuh"
#include "kernels/decode/decode_layers_mixture.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/launch.cuh"

namespace fewbit::cuda::decode_step {

#ifdef FEWBIT_SM90A
// The block's outputs of the residual stream, which its epilogue keeps in shared memory through all layers. Of a
// mixture they also become the words that q, k and v of the first layer read.
template <class Weights, bool kWhole>
__device__ __forceinline__ void load_own_x(const Job& job, const WorkRange& range, int k_split, int cluster,
                                           float* own_x) {
  constexpr int kOutputs = Weights::kOutputs, kOwnOutputs = Weights::kOwnOutputs;
  for (int e = threadIdx.x; e < range.finished * kOwnOutputs; e += kConsumerThreads) {
    const int n = (cluster + e / kOwnOutputs * clusters()) * kOutputs + k_split * kOwnOutputs + e % kOwnOutputs;
    own_x[e] = to_f32(job.x[n]);
    if constexpr (Weights::kMixture && kWhole)
      put_value(job.stream + n, own_x[e], stamp_of(job, __ldcg(job.launches), 0) - 1);
  }
}
// The input of a product. stamp: of a mixture's stream behind o of the layer; reduce, reduce_again: kConsumerWarps
// values each.
template <class Weights, bool kWhole, class Barrier>
__device__ __forceinline__ void load_input(const Job& job, int product, const WorkRange& range, int layer_index,
                                           uint32_t stamp, typename Weights::Input& input,
                                           const typename Weights::Record& layer, Barrier& barrier, float* reduce,
                                           float* reduce_again, MixtureShared* mixture, const WorkRange* ranges) {
  if constexpr (Weights::kMixture) {
    if (kWhole || (product != kOut && (product != kQkv || layer_index > 0))) {
      load_words(job, product, ranges, input, layer, stamp, reduce, reduce_again, *mixture);
      if (product == kDown && threadIdx.x == 0) {
        // A block without work here knows nothing of the others, and its reading would be in their way.
        constexpr int kOthersNeed = 1500;  // ns
        if (range.n_count == 0) __nanosleep(kOthersNeed);
        barrier_arrive(&mixture->open);
      }
      return;
    }
  }
  const __nv_bfloat16* norm = product == kQkv ? layer.input_norm : product == kGateUp ? layer.middle_norm : nullptr;
  if constexpr (Weights::kShares)
    load_values(job, product, input, norm, barrier, reduce);
  else if (norm)
    load_normed(job, input, norm, barrier, reduce);
  else
    load_plain(job, product, input, barrier);
}
#endif

// kWhole: with attention, of heads of D values over a cache of C; else Job::first_product and end_product say which
// products.
// Long because: the block's shared memory is declared and initialised here, for all phases.
template <class Weights, int D, class C, bool kWhole>
__global__ void __launch_bounds__(kBlockThreads, 1) decode_layers_kernel(const __grid_constant__ Job job) {
#ifdef FEWBIT_SM90A
  // Rings, working space, layers, angles. The rings begin on a line of 128 bytes: off one, every copy and load takes
  // one more pass.
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kStageBytes = Weights::kStageBytes;
  __shared__ alignas(16) float reduce[kConsumerWarps], max_abs[kConsumerWarps + kKSplits], own_x[kMaxOwnOutputs];
  __shared__ float sum_buffers[2 * kExchangeOutputs];
  __shared__ WorkRange ranges[kProducts];
  __shared__ uint64_t barriers[kConsumerWarps * 2 * kMaxStages], sum_barriers[2], max_barrier;
  const int k_split = blockIdx.x % kKSplits, cluster = blockIdx.x / kKSplits;
  uint8_t* work = shared + kConsumerWarps * job.stages * kStageBytes;
  using Record = typename Weights::Record;
  // Where n tiles are shared the rings need the room of the layers' records more than these need it.
  constexpr bool kHoldsRecords = !Weights::kShares;
  auto* held = reinterpret_cast<Record*>(work + job.work_bytes);
  auto* angles = reinterpret_cast<float*>(held + (kHoldsRecords ? job.count : 0));
  const Record* layers = kHoldsRecords ? held : reinterpret_cast<const Record*>(job.layers);
  MixtureShared* mixture = nullptr;
  if constexpr (Weights::kMixture) {
    const auto behind = static_cast<int>(reinterpret_cast<uint8_t*>(angles + D) - shared);
    mixture = reinterpret_cast<MixtureShared*>(shared + (behind + 15) / 16 * 16);
    if (threadIdx.x == 0)
      barrier_init(&mixture->known, kConsumerWarps * kArrivingLanes), barrier_init(&mixture->open, 1);
  }
  if constexpr (kHoldsRecords)
    for (int i = threadIdx.x; i < job.count * static_cast<int>(sizeof(Record) / 8); i += kBlockThreads)
      reinterpret_cast<uint64_t*>(held)[i] = reinterpret_cast<const uint64_t*>(job.layers)[i];
  if (threadIdx.x < kConsumerWarps) StageRing(shared, barriers, threadIdx.x, job.stages, kStageBytes).init();
  if (threadIdx.x < 2) barrier_init(sum_barriers + threadIdx.x, 1);
  if (threadIdx.x == 0) barrier_init(&max_barrier, 1);
  if (threadIdx.x < kProducts) {
    const ProductShape& shape = job.product[threadIdx.x];
    if constexpr (Weights::kMixture)
      ranges[threadIdx.x].set_mixture(threadIdx.x, shape, blockIdx.x, gridDim.x);
    else
      ranges[threadIdx.x].set<Weights::kShares>(shape, k_split, cluster, clusters());
  }
  __syncthreads();
  cluster_sync();  // the barriers are ready in all blocks of the cluster
  if (threadIdx.x >= kConsumerThreads) {
    give_registers<kProducerRegisters>();
    const int warp = (threadIdx.x - kConsumerThreads) / 32;
    return produce<Weights, kWhole>(job, layers, ranges, StageRing(shared, barriers, warp, job.stages, kStageBytes),
                                    warp, mixture);
  }
  take_registers<kConsumerRegisters>();

  auto* sums = reinterpret_cast<float*>(work + job.input_bytes);
  const InputShared space{work, reinterpret_cast<uint8_t*>(sums + kExchangeOutputs * kConsumerWarps), max_abs,
                          &max_barrier};
  typename Weights::Consumer consumer{StageRing(shared, barriers, threadIdx.x / 32, job.stages, kStageBytes)};
  ClusterSums<Weights> cluster_sums{sum_buffers, sum_barriers};
  await_predecessor();  // the producer warps do not wait: no launch before this one writes weights
  // Attention, the successor, starts once every block has come here, so it takes no block's place; it finds room as
  // they end. All launches before this one have ended by then, so older keys are there (AttentionArgs::behind_append).
  if constexpr (!kWhole) allow_successor();
  const int position = *job.position;
  const uint32_t exchanges = !Weights::kMixture && job.peer.present() ? __ldcg(job.peer.state) : 0;  // so far
  if constexpr (kWhole)
    rope_angles(angles, static_cast<float>(position), job.inv_freq, job.rope_pairs, job.rope_scale, threadIdx.x,
                kConsumerThreads);
  load_own_x<Weights, kWhole>(job, ranges[kOut], k_split, cluster, own_x);
  AttentionRange range_here(job, position, blockIdx.x);
  const AttentionRange* range_at = &range_here;
  if constexpr (Weights::kMixture) {  // in shared memory: a mixture's consumers have no registers left
    range_at = reinterpret_cast<AttentionRange*>(mixture->attention);
    if (threadIdx.x == 0) {
      *reinterpret_cast<AttentionRange*>(mixture->attention) = range_here;
      mixture->launch = __ldcg(job.launches);
    }
  }
  consumer_sync();
  const AttentionRange& own = *range_at;
  GridBarrier<kWhole> barrier{job.counters};
  bool last = false;
#pragma unroll 1
  for (int i = 0; i < job.count; ++i) {
    const Record& layer = layers[i];
    const Epilogue<Weights> epilogue{job, layer, own_x,
                                     Weights::kMixture ? stamp_of(job, mixture->launch, i) : exchanges + 2 * i + 1};
    if constexpr (!kHoldsRecords) {  // the next layer's, to the L1
      constexpr int kLine = 128;
      if (i + 1 < job.count && threadIdx.x * kLine < sizeof(Record) + kLine)
        asm volatile(
            "prefetch.global.L1 [%0];" ::"l"(reinterpret_cast<const uint8_t*>(layers + i + 1) +
                                             min(threadIdx.x * kLine, static_cast<unsigned>(sizeof(Record)) - 1)));
    }
    if constexpr (kWhole) prefetch_keys<D, C>(job, layer, own);
    const int begin = kWhole || i > 0 ? 0 : job.first_product;
    const int end = kWhole ? kProducts : min(job.end_product - i * kProducts, int{kProducts});
    if constexpr (Weights::kMixture)
      if (end > kGateUp) fetch_table(job, layer, *mixture);
        // One place in the code for every kind of input and for the product: a layer's instructions stay in the cache.
#pragma unroll 1
    for (int product = begin; product < end; ++product) {
      const WorkRange& range = ranges[product];
      auto input = Weights::input(space, range, product, layer, i);
      load_input<Weights, kWhole>(job, product, range, i, epilogue.stamp, input, layer, barrier, reduce, max_abs,
                                  mixture, ranges);
      run_product<Weights>(product, range, input, consumer, cluster_sums, k_split, sums, epilogue);
      constexpr bool kWords = Weights::kMixture && kWhole;
      if constexpr (Weights::kMixture)
        if (product != kQkv) continue;  // all else has its stamps
      if (!kWords) barrier.arrive();
      if constexpr (kWhole) {
        if (product != kQkv) continue;
        if constexpr (kWords)
          consumer_sync();
        else
          barrier.wait();
        attend<D, Weights::kHeads, C, kWords>(job, layer, own, angles, work, epilogue.stamp);
        if constexpr (kWords)
          consumer_sync();  // the input of o comes where attention has worked
        else
          barrier.arrive();
      }
    }
  }
  if constexpr (kWhole) {
    barrier.wait();
    last = barrier.leave();
  } else {
    if ((job.end_product - 1) % kProducts == kQkv) {  // attention comes next
      rope_angles(angles, static_cast<float>(position), job.inv_freq, job.rope_pairs, job.rope_scale, threadIdx.x,
                  kConsumerThreads);
      barrier.wait();
      append_new_token<D, C>(job, layers[job.count - 1], position, angles, work);
    }
    last = barrier.leave_unwaited();
  }
  if constexpr (Weights::kMixture) {
    if (last) *job.launches = mixture->launch + 1;
  } else if (last && job.peer.present()) {
    // A launch with attention apart has o and down of one layer, or neither.
    const int layers_here = kWhole ? job.count : job.first_product == kOut ? 1 : 0;
    *job.peer.state = exchanges + 2 * layers_here;
  }
#endif
}

// Null where there is no kernel for heads of this size or this type of cache.
template <class Weights>
Kernel find_kernel(int64_t head_dim, DType cache, bool whole_step) {
  Kernel found;
  if (cache != DType::bf16 && cache != DType::f8_e4m3 && cache != DType::i8) return found;
  const auto with = [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    dispatch_stored(Type<__nv_bfloat16>{}, cache, [&](auto code) {
      using C = typename decltype(code)::type;
      if (whole_step)
        found = {reinterpret_cast<const void*>(&decode_layers_kernel<Weights, kDim, C, true>),
                 static_cast<int>(sizeof(AttentionShared<kDim, Weights::kHeads>))};
      else
        found = {reinterpret_cast<const void*>(&decode_layers_kernel<Weights, kDim, C, false>),
                 static_cast<int>(sizeof(AppendShared<kDim>))};
    });
  };
  if constexpr (!Weights::kMixture)
    if (head_dim == 64) with(std::integral_constant<int, 64>{});
  if (head_dim == 128) with(std::integral_constant<int, 128>{});
  return found;
}
template <class Weights>
WeightKind weights_kind(KernelFinder sharing = nullptr) {
  return {.outputs = Weights::kOutputs,
          .stage_bytes = Weights::kStageBytes,
          .input_bytes = Weights::kInputBytes,
          .group_bytes = Weights::kGroupBytes,
          .record_bytes = static_cast<int>(sizeof(typename Weights::Record)),
          .static_bytes = Weights::kStaticBytes,
          .heads = Weights::kHeads,
          .kernel = &find_kernel<Weights>,
          .sharing = sharing};
}

}  // namespace fewbit::cuda::decode_step
