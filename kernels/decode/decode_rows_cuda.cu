// The host's half of decode_rows.cuh: which layers it takes, how the products are cut, the launches.
#include "kernels/decode/decode_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/decode/decode_rows.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/model/hadamard.h"
#include "kernels/model/norm.h"

namespace fewbit::cuda {
namespace {

constexpr size_t kStaticShared = 3072;  // at most, of the kernel
constexpr int kLeastSlots = 16;         // pieces that the rings of a block must have room for
// Measured (docs/performance.md): up to so many rows a warp's own part comes in bulk copies, and RoPE and the append
// are in the launch.
constexpr int kMostOwnRows = 2;
constexpr int64_t kMostAppendedRows = 8;

struct RowsLayout {
  RowsStepJob job{};  // everything but the pointers to what goes from launch to launch
  const void* kernel = nullptr;
  size_t shared = 0;
  std::string refusal;
};

const __nv_bfloat16* values(ConstTensorView v) { return static_cast<const __nv_bfloat16*>(v.data); }

const void* kernel_of(int64_t rows, bool zeros, DType cache) {
  if (rows > kMostAppendedRows)
    return reinterpret_cast<const void*>(zeros ? &decode_rows_kernel<2, true, __nv_bfloat16>
                                               : &decode_rows_kernel<2, false, __nv_bfloat16>);
  const void* kernel = nullptr;
  dispatch_stored(Type<__nv_bfloat16>{}, cache, [&](auto code) {
    using C = typename decltype(code)::type;
    kernel = reinterpret_cast<const void*>(zeros ? &decode_rows_kernel<1, true, C> : &decode_rows_kernel<1, false, C>);
  });
  return kernel;
}

RowsProduct product_of(std::initializer_list<const DecodeLinear*> linears, RowsEnd end) {
  RowsProduct p{};
  int i = 0, chunks = 0;
  for (const DecodeLinear* l : linears) {
    const MarlinSource source = source_of(std::get<MarlinView>(*l));
    p.weights[i] = {.codes = source.b, .scales = source.s};
    p.zeros[i] = source.z;
    p.out[i] = source.out;
    chunks += source.out / marlin::kTileN;
    p.end_chunk[i++] = chunks;
    p.pieces = source.in / kPieceK;
  }
  p.end = end;
  p.unit = end == RowsEnd::activated ? 2 : 1;
  p.units = chunks / p.unit;
  return p;
}

// As many warps for a chunk as leave a team for each of the cluster's; one where these are more than the warps.
int member_shift(int local, bool paired) {
  for (int shift = paired ? 2 : 3; shift > 0; --shift)
    if (local <= kStepWarps >> shift) return shift;
  return 0;
}

// The products from the end of `ended` (attention has left its values) to q, k, v of `begun`, which may be null.
RowsLayout layout_of(const CudaState& s, int blocks, int64_t rows, const DecodeForm& form, const DecodeLayer& ended,
                     const DecodeLayer* begun) {
  RowsLayout layout;
  RowsStepJob& job = layout.job;
  const int clusters = blocks / kStepSlices, piece_bytes = packed_piece_bytes(has_zeros(ended.q));
  layout.kernel = kernel_of(rows, has_zeros(ended.q), ended.cache.k.dtype);
  job.rows = static_cast<int>(rows);
  job.hidden = static_cast<int>(out_of(ended.o));
  job.inner = static_cast<int>(out_of(ended.gate));
  job.eps = form.eps;
  job.weight_offset = form.weight_offset;
  RowsProduct& o = job.products[job.count++] = product_of({&ended.o}, RowsEnd::residual);
  o.plain = true;
  o.next_norm = values(ended.middle_norm);
  RowsProduct& wide = job.products[job.count++] = product_of({&ended.gate, &ended.up}, RowsEnd::activated);
  wide.normed = true;
  RowsProduct& down = job.products[job.count++] = product_of({&ended.down}, RowsEnd::residual);
  if (begun) {
    down.next_norm = values(begun->input_norm);
    RowsProduct& qkv = job.products[job.count++] = product_of({&begun->q, &begun->k, &begun->v}, RowsEnd::store);
    qkv.normed = true;
    qkv.shift = clusters / 2;  // not the clusters that have most of gate and up
    const ConstTensorView biases[3] = {begun->q_bias, begun->k_bias, begun->v_bias};
    for (int i = 0; i < 3; ++i) qkv.bias[i] = values(biases[i]);
  }
  if (begun && rows <= kMostAppendedRows) {
    const AttentionArgs& a = form.attention;
    FEWBIT_ASSERT(2 * form.rope.inv_freq.numel() <= a.head_dim);
    const int64_t run = hadamard_run(a.head_dim);
    job.appends = true;
    job.append = {.head_norm = {values(begun->q_norm), values(begun->k_norm)},
                  .k = begun->cache.k.data,
                  .v = begun->cache.v.data,
                  .k_scales = static_cast<float*>(begun->cache.k_scales.data),
                  .v_scales = static_cast<float*>(begun->cache.v_scales.data),
                  .inv_freq = form.rope.inv_freq.as<float>(),
                  .capacity = begun->cache.k.shape[2],
                  .heads = a.heads,
                  .kv_heads = a.kv_heads,
                  .head_dim = static_cast<int>(a.head_dim),
                  .half = static_cast<int>(form.rope.inv_freq.numel()),
                  .run = form.rope.hadamard ? static_cast<int>(run) : 0,
                  .attention_scale = form.rope.attention_scale,
                  .run_scale = 1 / std::sqrt(static_cast<float>(run)),
                  .head_eps = form.head_eps,
                  .weight_offset = form.weight_offset};
  }
  int most = 0;  // pieces of a slice of x that all warps read
  for (int i = 0; i < job.count; ++i) {
    RowsProduct& p = job.products[i];
    p.member_shift = member_shift((p.units + clusters - 1) / clusters * p.unit, p.unit == 2);
    if (p.normed) most = std::max(most, (p.pieces + kStepSlices - 1) / kStepSlices);
  }
  job.x_row = most * kPieceRowBytes + 16;
  job.x_bytes = (std::max(job.rows * job.x_row, kRunsBytes) + 127) / 128 * 128;
  job.x_own = job.x_bytes / kStepWarps / 128 * 128;
  for (int i = 0; i < job.count; ++i) {
    RowsProduct& p = job.products[i];
    const int of_block = (p.pieces + kStepSlices - 1) / kStepSlices,
              own = (of_block + (1 << p.member_shift) - 1) >> p.member_shift;
    const bool fits = job.rows <= kMostOwnRows && job.rows * (own * kPieceRowBytes + 16) <= job.x_own;
    p.input = p.normed ? RowsInput::slice : fits ? RowsInput::own : RowsInput::runs;
  }
  const size_t fixed = static_cast<size_t>(job.x_bytes) + kStepWarps * kMailBytes +
                       sizeof(float) * kMostRows * static_cast<size_t>(most);
  const size_t room = s.max_shared() - kStaticShared;
  const int slots = fixed >= room ? 0
                                  : std::min(static_cast<int>((room - fixed) / static_cast<size_t>(piece_bytes)),
                                             kStepWarps * kMostSlots);
  if (kStepWarps * rows_append_bytes(static_cast<int>(form.attention.head_dim)) > job.x_bytes)
    layout.refusal = "too many values in a head";
  if (slots < kLeastSlots) layout.refusal = "too little shared memory for the inputs of the products";
  job.slots = slots / kStepWarps;
  job.more = slots % kStepWarps;
  layout.shared = fixed + static_cast<size_t>(slots) * static_cast<size_t>(piece_bytes);
  return layout;
}

// Blocks that run at the same time.
int most_blocks(CudaState& s) {
  const void* kernel = kernel_of(kMostRows, false, DType::bf16);
  const ClusterLaunch launch(s, kernel, kStepSlices, kStepSlices, kAllStepThreads, s.max_shared() - kStaticShared);
  return std::min(kStepSlices * launch.most_clusters(), kMostRowsBlocks);
}

// What goes from launch to launch.
struct RowsSpace {
  __nv_bfloat16 *q, *k, *v, *attended;  // [rows, outputs]
  __nv_bfloat16 *weighed, *activated;   // [rows, hidden], [rows, inner]
  float* squares;                       // [blocks, kMostRows]
  size_t bytes = 0;

  RowsSpace(uint8_t* at, const DecodeLayer& l, int64_t rows, int blocks) {
    const auto take = [&](size_t n) {
      uint8_t* from = at + bytes;
      bytes += (n + 127) / 128 * 128;
      return from;
    };
    const auto matrix = [&](int64_t cols) {
      return reinterpret_cast<__nv_bfloat16*>(take(2 * static_cast<size_t>(rows * cols)));
    };
    q = matrix(out_of(l.q)), k = matrix(out_of(l.k)), v = matrix(out_of(l.v)), attended = matrix(out_of(l.q));
    weighed = matrix(out_of(l.o)), activated = matrix(out_of(l.gate));
    squares = reinterpret_cast<float*>(take(sizeof(float) * static_cast<size_t>(blocks) * kMostRows));
  }
};

}  // namespace

std::string refuses_rows(const Exec& ex, const std::vector<DecodeLayer>& layers, const DecodeForm& form) {
  CudaState& s = ex.cuda_state();
  const DecodeLayer& l = layers.front();
  const int64_t rows = l.cache.k.shape[0];
  if (rows > kMostRows) return "more than " + std::to_string(kMostRows) + " sequences";
  if (form.act != ActKind::silu) return "SiLU only";
  const int blocks = most_blocks(s);
  if (blocks == 0) return "no room for a cluster of blocks";
  // Two chunks for a cluster cost it twice the time; with most of the clusters at rest meanwhile, ops are faster
  // (docs/performance.md).
  if (out_of(l.o) > int64_t{marlin::kTileN} * blocks / kStepSlices)
    return "several sequences, and more hidden values than the blocks take at once";
  return layout_of(s, blocks, rows, form, l, &l).refusal;
}

void prepare_rows(Exec& ex, DecodeStack& stack) {
  stack.blocks = most_blocks(ex.cuda_state());
  const DecodeLayer& l = stack.layers.front();
  stack.workspace =
      ex.alloc(DType::u8, {static_cast<int64_t>(RowsSpace(nullptr, l, l.cache.k.shape[0], stack.blocks).bytes)});
}

void decode_rows(Exec& ex, const DecodeStack& stack, ConstTensorView positions, TensorView x) {
  CudaState& s = ex.cuda_state();
  const DecodeForm& form = stack.form;
  const DecodeLayer& first = stack.layers.front();
  const int64_t rows = x.rows();
  FEWBIT_ASSERT(x.dtype == DType::bf16 && x.cols() == out_of(first.o) && positions.dtype == DType::i32 &&
                positions.numel() == rows && rows == first.cache.k.shape[0]);
  const RowsSpace space(const_cast<uint8_t*>(stack.workspace.as<uint8_t>()), first, rows, stack.blocks);
  const auto matrix = [&](__nv_bfloat16* data, const DecodeLinear& of) {
    return TensorView{data, DType::bf16, {rows, out_of(of)}, x.device};
  };
  const TensorView q = matrix(space.q, first.q), k = matrix(space.k, first.k), v = matrix(space.v, first.v);
  const TensorView attended = matrix(space.attended, first.q), normed = matrix(space.weighed, first.o);
  cuda::rms_norm(ex, x, first.input_norm, form.eps, form.weight_offset, normed);
  const auto product = [&](const DecodeLinear& w, ConstTensorView bias, TensorView y) {
    return MarlinProduct{.w = std::get<MarlinView>(w), .bias = bias, .y = y};
  };
  const MarlinProduct qkv[] = {product(first.q, first.q_bias, q), product(first.k, first.k_bias, k),
                               product(first.v, first.v_bias, v)};
  cuda::marlin_gemms(ex, normed, qkv);
  const auto norm_heads = [&](TensorView heads, ConstTensorView weight) {
    const TensorView of_heads = heads.reshaped({heads.numel() / form.attention.head_dim, form.attention.head_dim});
    if (weight.data) cuda::rms_norm(ex, of_heads, weight, form.head_eps, form.weight_offset, of_heads);
  };
  AttentionArgs attention = form.attention;
  attention.behind_append = true;
  for (size_t i = 0; i < stack.layers.size(); ++i) {
    const DecodeLayer& l = stack.layers[i];
    if (i == 0 || rows > kMostAppendedRows) {
      norm_heads(q, l.q_norm);
      norm_heads(k, l.k_norm);
      cuda::rope_append(ex, q, k, v, positions, form.rope, l.cache);
    }
    cuda::attention_cached(ex, q, positions, l.cache, attention, attended);
    RowsLayout layout =
        layout_of(s, stack.blocks, rows, form, l, i + 1 < stack.layers.size() ? &stack.layers[i + 1] : nullptr);
    RowsStepJob& job = layout.job;
    job.stream = static_cast<__nv_bfloat16*>(x.data);
    job.weighed = space.weighed, job.activated = space.activated, job.squares = space.squares;
    job.counters = s.counters;
    job.append.positions = positions.as<int32_t>();
    for (int n = 0; n < job.count; ++n) {
      RowsProduct& p = job.products[n];
      p.x = p.normed ? space.weighed : n == 0 ? space.attended : space.activated;
      if (p.end == RowsEnd::store)
        for (__nv_bfloat16** each : {p.y, job.append.qkv}) each[0] = space.q, each[1] = space.k, each[2] = space.v;
    }
    ClusterLaunch(s, layout.kernel, kStepSlices, stack.blocks, kAllStepThreads, layout.shared)(job);
  }
}

}  // namespace fewbit::cuda
