// The gated delta rule by chunks: pairs_kernel makes what does not depend on the state, for all chunks at once; then
// the chunks of a head are taken one after the other.
#include <algorithm>

#include "kernels/exec/exec_cuda.h"
#include "kernels/recurrent/delta_chunk.cuh"
#include "kernels/recurrent/delta_solve.cuh"
#include "kernels/recurrent/delta_walk_wide.cuh"

namespace fewbit::cuda {
namespace delta {
namespace {

constexpr size_t kMostScratch = size_t{64} << 20;

// What the copy engine reads and writes, all sequences of it. What lies past a sequence's last token becomes zeros.
Maps maps_of(const Rows& a, int64_t seqs) {
  const auto map = [&](const bf16* data, int64_t columns, int64_t width, int box, CUtensorMapSwizzle swizzle) {
    const auto size = [](int64_t n) { return static_cast<cuuint64_t>(n); };
    return map_of<3>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, {size(columns), size(a.len), size(seqs)},
                     {size(2 * width), size(2 * width * a.len)}, {static_cast<cuuint32_t>(box), kTokens, 1}, swizzle);
  };
  const int64_t keys = int64_t{a.k_heads} * kKeys, values = int64_t{a.v_heads} * a.v_dim;
  return {.q = map(a.q, keys, a.q_width, 64, CU_TENSOR_MAP_SWIZZLE_128B),
          .k = map(a.k, keys, a.k_width, 64, CU_TENSOR_MAP_SWIZZLE_128B),
          .v = map(a.v, values, a.v_width, 64, CU_TENSOR_MAP_SWIZZLE_128B),
          .out = map(a.out, values, values, kOutColumns, CU_TENSOR_MAP_SWIZZLE_NONE)};
}

// So many sequences and chunks at once as the scratch space may hold; a state that the caller does not keep goes from
// one part of a long sequence to the next in the scratch space too.
void run(Exec& ex, Rows a, int64_t seqs) {
  CudaState& cuda = ex.cuda_state();
  const int64_t chunks = (a.len + kTokens - 1) / kTokens, size = int64_t{a.v_heads} * kKeys * a.v_dim;
  const int64_t fits = std::max<int64_t>(1, kMostScratch / (sizeof(Chunk) * static_cast<size_t>(a.v_heads)));
  const int64_t part = std::min(chunks, fits), together = std::min<int64_t>({seqs, fits / part, 65535});
  const bool own_state = !a.state && part < chunks;
  const auto work = static_cast<size_t>(together * part * a.v_heads) * sizeof(Chunk);
  auto* space = static_cast<uint8_t*>(cuda.scratch(work + (own_state ? 4 * static_cast<size_t>(size) : 0)));
  a.work = reinterpret_cast<Chunk*>(space);
  const int ratio = a.v_heads / a.k_heads, groups = (ratio + kHeads - 1) / kHeads;
  const bool wide = cuda.sm90() && tensor_map_encoder() != nullptr;
  const Maps maps = wide ? maps_of(a, seqs) : Maps{};
  const auto allow_shared = [](auto* walk, size_t bytes) {
    FEWBIT_CUDA_CALL(cudaFuncSetAttribute(walk, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  };
  wide ? allow_shared(walk_wide_kernel, kWideShared) : allow_shared(walk_kernel, 2 * sizeof(Stage));
  for (int64_t seq = 0; seq < seqs; seq += together) {
    const auto n = static_cast<unsigned>(std::min(together, seqs - seq));
    for (int64_t chunk = 0; chunk < chunks; chunk += part) {
      Rows b = a;
      const int64_t row = seq * a.len;
      b.q += row * a.q_width, b.k += row * a.k_width, b.v += row * a.v_width;
      b.beta += row * a.v_heads, b.decay += row * a.v_heads, b.out += row * a.v_heads * a.v_dim;
      b.state = own_state ? reinterpret_cast<float*>(space + work) : a.state ? a.state + seq * size : nullptr;
      b.from_zero = !a.state && chunk == 0;
      b.chunks = static_cast<int>(std::min(part, chunks - chunk));
      b.first = chunk * kTokens, b.first_seq = static_cast<int>(seq);
      b.tokens = static_cast<int>(std::min(a.len - b.first, int64_t{b.chunks} * kTokens));
      const auto across = static_cast<unsigned>(b.chunks);
      launch_overlapping(cuda, pairs_kernel, dim3(across, static_cast<unsigned>(a.k_heads * groups), n), dim3(kThreads),
                         0, b);
      const dim3 blocks(static_cast<unsigned>(a.v_dim / kColumns), static_cast<unsigned>(a.v_heads), n);
      if (wide)
        launch_overlapping(cuda, walk_wide_kernel, blocks, dim3(kWideThreads), kWideShared, b, maps);
      else
        launch_overlapping(cuda, walk_kernel, blocks, dim3(kThreads), 2 * sizeof(Stage), b);
    }
  }
}

}  // namespace
}  // namespace delta

bool delta_rule_in_chunks(Exec& ex, const DeltaInputs& in, int64_t seqs, const DeltaArgs& args, TensorView state,
                          TensorView out) {
  const int64_t len = out.rows() / seqs;
  if (out.dtype != DType::bf16 || len < kFewestInChunks || in.decay.cols() != args.v_heads) return false;
  if (args.k_dim != delta::kKeys || args.v_dim % delta::kColumns != 0) return false;
  if (ex.cuda_state().max_shared() < 2 * sizeof(delta::Stage)) return false;
  const auto column = [](const ColumnsAt& c) { return c.x.as<delta::bf16>() + c.begin; };
  for (const ColumnsAt* c : {&in.q, &in.k, &in.v})
    if (!aligned16(column(*c), c->x.cols())) return false;
  if (!aligned16(out.as<delta::bf16>())) return false;
  delta::run(ex,
             {.q = column(in.q),
              .k = column(in.k),
              .v = column(in.v),
              .beta = in.beta.as<delta::bf16>(),
              .decay = in.decay.as<delta::bf16>(),
              .q_width = in.q.x.cols(),
              .k_width = in.k.x.cols(),
              .v_width = in.v.x.cols(),
              .a_log = in.a_log.as<float>(),
              .dt_bias = in.dt_bias.as<float>(),
              .state = state.data ? state.as<float>() : nullptr,
              .out = out.as<delta::bf16>(),
              .len = len,
              .k_heads = args.k_heads,
              .v_heads = args.v_heads,
              .v_dim = static_cast<int>(args.v_dim)},
             seqs);
  return true;
}

}  // namespace fewbit::cuda
