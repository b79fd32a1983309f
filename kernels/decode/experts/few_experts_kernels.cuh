#pragma once
// The kernels of few_experts(): pairs in the order of the experts; gate, up and activation; down and the weighted sum.
//
// A block has a tile of the outputs of one active expert, for all tokens that go there: each weight is read once. Its
// warps share the matrices (gate and up) and parts of k; their sums are added in shared memory, in their order. What
// the experts answer is added by the last block of a tile of outputs that arrives, in the order of the experts.
#include "kernels/decode/experts/few_experts_forms.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/gated_act.cuh"

namespace fewbit::cuda::few_experts_step {

inline constexpr int kMostPairs = 512;

// How many of [0, count) are below `mine`, and of those at it how many of [0, i); four at a time, as the rest of `of`
// is above all.
__device__ __forceinline__ int2 places_before(const int (&of)[kMostPairs], int count, int mine, int i) {
  int2 n{0, 0};
#pragma unroll 4
  for (int o = 0; o < count; o += 4) {
    const int4 v = *reinterpret_cast<const int4*>(of + o);
    n.x += (v.x < mine) + (v.y < mine) + (v.z < mine) + (v.w < mine);
    n.y +=
        (v.x == mine && o < i) + (v.y == mine && o + 1 < i) + (v.z == mine && o + 2 < i) + (v.w == mine && o + 3 < i);
  }
  return n;
}

// One block of kMostPairs threads, one a pair.
__global__ void __launch_bounds__(kMostPairs) order_kernel(const int32_t* __restrict__ ids,  // [tokens, top_k]
                                                           const __grid_constant__ Pairs p) {
  constexpr int kAboveAll = 0x7fffffff;
  __shared__ __align__(16) int id[kMostPairs],
      first[kMostPairs];  // of the pairs; of those that are their expert's first
  allow_successor();
  await_predecessor();
  const int i = threadIdx.x, mine = i < p.count ? ids[i] : kAboveAll;
  id[i] = mine;
  __syncthreads();
  const int2 before = places_before(id, p.count, mine, i);
  first[i] = before.y == 0 ? mine : kAboveAll;
  const int active = __syncthreads_count(i < p.count && before.y == 0);
  if (i < p.count) {
    const int own = i / p.top_k * p.top_k;
    int of_token = 0;
    for (int o = own; o < own + p.top_k; ++o) of_token += id[o] < mine;
    p.pair[before.x + before.y] = i;
    p.place[own + of_token] = before.x + before.y;
    if (before.y == 0) {
      const int slot = places_before(first, p.count, mine, i).x;
      p.expert[slot] = mine, p.begin[slot] = before.x;
    }
  }
  if (i >= active && i <= p.slots) p.begin[i] = p.count;
  if (i == 0) *p.active = active;
  // Of 512 pairs and as many slots the entry behind the last has no thread of its own.
  if (i == 0 && p.slots == kMostPairs) p.begin[p.slots] = p.count;
}

// to[pair, :] = the row of the pair's token times its share, rounded.
__global__ void __launch_bounds__(kThreads) weigh_kernel(const __nv_bfloat16* __restrict__ x,  // [tokens, hidden]
                                                         const float* __restrict__ shares,     // [tokens, top_k]
                                                         __nv_bfloat16* __restrict__ to,       // [pairs, hidden]
                                                         int top_k, int hidden) {
  allow_successor();
  await_predecessor();
  const int64_t pair = blockIdx.x;
  for (int c = threadIdx.x; c < hidden; c += kThreads)
    to[pair * hidden + c] = __float2bfloat16_rn(shares[pair] * __bfloat162float(x[pair / top_k * hidden + c]));
}

// The pairs of the block's slot.
struct Slot {
  int expert, begin, rows;
  __device__ __forceinline__ explicit Slot(const Pairs& p) {
    if (p.ids) {
      expert = __ldcg(p.ids + blockIdx.y), begin = static_cast<int>(blockIdx.y), rows = 1;
    } else {  // all at once; the expert of a slot without pairs is never looked at
      expert = __ldcg(p.expert + blockIdx.y), begin = __ldcg(p.begin + blockIdx.y);
      rows = __ldcg(p.begin + blockIdx.y + 1) - begin;
    }
  }
};
__device__ __forceinline__ int pair_at(const Pairs& p, int place) { return p.ids ? place : p.pair[place]; }

// Sums of a block's warps in shared memory: of each [rows of a variant, kPitch], where its words have been.
template <class Form, int kRowBlocks>
struct Sums {
  using Sum = typename Form::Sum;
  static constexpr int kOuts = 16 * Form::kSubs, kRows = 8 * kRowBlocks, kPitch = kOuts + 4;
  static constexpr int kBytes = kRows * kPitch * 4;  // of a warp
  uint8_t* shared;
  int warp_bytes;

  __host__ __device__ static int bytes_of_warp(const Matrix& m) {
    return Form::warp_bytes(m) > kBytes ? Form::warp_bytes(m) : kBytes;
  }
  __device__ __forceinline__ Sum& at(int warp, int row, int o) const {
    return reinterpret_cast<Sum*>(shared + warp * warp_bytes)[row * kPitch + o];
  }

  // row_of(r): where row r of the slot stands among the rows of x.
  template <class RowOf, class Await>
  __device__ __forceinline__ void multiply(const Matrix& m, const Pointers& p, const void* x, int rows, int part,
                                           int parts, const RowOf& row_of, const Await& await_x) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint8_t* own[kRowBlocks];
#pragma unroll
    for (int c = 0; c < kRowBlocks; ++c)  // rows past the last repeat it; nobody stores their sums
      own[c] = static_cast<const uint8_t*>(x) +
               static_cast<int64_t>(row_of(min(8 * c + lane / 4, rows - 1))) * m.in * Form::kXBytes;
    Sum sums[Form::kSubs][kRowBlocks][4] = {};
    Form::multiply(sums, p, m, blockIdx.x, part, parts, own, rows, shared + warp * warp_bytes, await_x);
    __syncwarp();  // the sums come where the words of other lanes have been
#pragma unroll
    for (int j = 0; j < Form::kSubs; ++j)
#pragma unroll
      for (int c = 0; c < kRowBlocks; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          at(warp, 8 * c + lane % 4 * 2 + i % 2, 16 * j + lane / 4 + 8 * (i / 2)) = sums[j][c][i];
  }
  // The output that a thread finishes, of every few rows.
  static __device__ __forceinline__ int own_output() { return blockIdx.x * kOuts + threadIdx.x % kOuts; }
  static __device__ __forceinline__ float bias_of(const Pointers& p) {
    static_assert(32 * Form::kWarps % kOuts == 0);
    return p.bias ? __bfloat162float(p.bias[own_output()]) : 0.f;
  }
  // own_output() of a row: of warps [first, end), with scales and bias, rounded to bf16.
  __device__ __forceinline__ float value(const Pointers& p, int row, int first, int end, const float* x_scale,
                                         float bias) const {
    const int o = threadIdx.x % kOuts;
    Sum sum = at(first, row, o);
    for (int w = first + 1; w < end; ++w) sum += at(w, row, o);
    float v = Form::value(sum, p, own_output(), x_scale);
    if (p.bias) v = add_rn(v, bias);
    return __bfloat162float(__float2bfloat16_rn(v));
  }
};

// Grid: tiles of outputs x slots.
template <class Form, int kRowBlocks>
__global__ void __launch_bounds__(32 * Form::kWarps, Form::kBlocks) wide_kernel(const __grid_constant__ WideJob job) {
  extern __shared__ __align__(16) uint8_t shared[];
  using S = Sums<Form, kRowBlocks>;
  // The experts' pointers, which nobody has looked at since the layer's last turn. One block asks for all of them:
  // those of hundreds of experts are more than an L1 holds.
  if (blockIdx.x == 0 && blockIdx.y == 0)
#pragma unroll 1
    for (int line = threadIdx.x; line < job.table_lines; line += 32 * Form::kWarps)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(job.up.experts) + 128 * line));
  await_predecessor();
  allow_successor();  // now, so that the next kernel finds what the ones before this one have written
  const Slot slot(job.pairs);
  if (slot.rows == 0) return;
  const S sums{shared, S::bytes_of_warp(job.up)};
  const bool two = job.gate.experts != nullptr;
  const int warp = threadIdx.x / 32, parts = two ? Form::kWarps / 2 : Form::kWarps;
  const Pointers up = job.up.experts[slot.expert], gate = two ? job.gate.experts[slot.expert] : up;
  const auto row_of = [&](int r) {
    const int pair = pair_at(job.pairs, slot.begin + r);
    return job.by_pair ? pair : pair / job.pairs.top_k;
  };
  const float up_bias = S::bias_of(up), gate_bias = S::bias_of(gate);  // asked for before the weights
  sums.multiply(job.up, warp < parts ? up : gate, job.rows.x, slot.rows, warp % parts, parts, row_of, [] {});
  __syncthreads();
  for (int row = threadIdx.x / S::kOuts; row < slot.rows; row += 32 * Form::kWarps / S::kOuts) {
    const float* x_scale = job.rows.scales ? job.rows.scales + row_of(row) : nullptr;
    const float u = sums.value(up, row, 0, parts, x_scale, up_bias);
    const float g = two ? sums.value(gate, row, parts, Form::kWarps, x_scale, gate_bias) : u;
    job.to[static_cast<int64_t>(slot.begin + row) * job.up.out + S::own_output()] =
        __float2bfloat16_rn(gated(g, u, job.act, job.swiglu));
  }
}

// The weighted sums of a tile of outputs, of all tokens; all y are there. places: room for those of one token.
__device__ __forceinline__ void add_answers(const DownJob& job, int first, int outs, int* places) {
  const Pairs& p = job.pairs;
  if (p.ids) {
    for (int i = threadIdx.x; i < p.count; i += blockDim.x) {
      int before = 0;
      for (int o = 0; o < p.count; ++o) before += p.ids[o] < p.ids[i] || (p.ids[o] == p.ids[i] && o < i);
      places[before] = i;
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < job.tokens * outs; i += blockDim.x) {
    const int token = i / outs, output = first + i % outs;
    float sum = 0;
    for (int e = 0; e < p.top_k; ++e) {
      const int place = p.ids ? places[e] : p.place[token * p.top_k + e];
      const __nv_bfloat16 y = __ldcg(job.y + static_cast<int64_t>(place) * job.down.out + output);
      sum = fmaf(job.shares ? job.shares[pair_at(p, place)] : 1.f, __bfloat162float(y), sum);
    }
    __nv_bfloat16* out = job.out + static_cast<int64_t>(token) * job.down.out + output;
    const __nv_bfloat16 rounded = __float2bfloat16_rn(sum);
    *out = job.add ? __float2bfloat16_rn(__bfloat162float(*out) + __bfloat162float(rounded)) : rounded;
  }
}

// Grid: tiles of outputs x slots. Its predecessor begins behind all that chose the experts, so these may be looked at
// before it has ended, and weights be on their way.
template <class Form, int kRowBlocks>
__global__ void __launch_bounds__(32 * Form::kWarps, Form::kBlocks) down_kernel(const __grid_constant__ DownJob job) {
  extern __shared__ __align__(16) uint8_t shared[];
  using S = Sums<Form, kRowBlocks>;
  allow_successor();
  const Slot slot(job.pairs);
  if (slot.rows == 0) return await_predecessor();
  const S sums{shared, S::bytes_of_warp(job.down)};
  const Pointers down = job.down.experts[slot.expert];
  const auto row_of = [&](int r) { return slot.begin + r; };
  const float bias = S::bias_of(down);
  sums.multiply(job.down, down, job.rows.x, slot.rows, threadIdx.x / 32, Form::kWarps, row_of,
                [] { await_predecessor(); });
  __syncthreads();
  for (int row = threadIdx.x / S::kOuts; row < slot.rows; row += 32 * Form::kWarps / S::kOuts)
    job.y[static_cast<int64_t>(row_of(row)) * job.down.out + S::own_output()] = __float2bfloat16_rn(
        sums.value(down, row, 0, Form::kWarps, job.rows.scales ? job.rows.scales + row_of(row) : nullptr, bias));
  __threadfence();  // the answers are seen before the arrival
  __syncthreads();
  int* room = reinterpret_cast<int*>(shared);  // of sums that are done with; static room would put rings off a line
  if (threadIdx.x == 0) {
    const int active = job.pairs.ids ? job.pairs.count : *job.pairs.active;
    room[0] = atomicAdd(job.arrived + blockIdx.x, 1u) + 1 == static_cast<uint32_t>(active);
  }
  __syncthreads();
  if (!room[0]) return;
  __threadfence();
  if (threadIdx.x == 0) job.arrived[blockIdx.x] = 0;
  add_answers(job, blockIdx.x * S::kOuts, S::kOuts, room + 1);
}

}  // namespace fewbit::cuda::few_experts_step
