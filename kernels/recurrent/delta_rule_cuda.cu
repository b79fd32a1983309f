// The gated delta rule: a block has 32 columns of one value head of one sequence and walks its tokens. Four lanes share
// a column of S and hold its rows in registers (lane p those with row % 4 == p), so that both products of a token are a
// loop over registers and two shuffles. Queries and keys of kTile tokens are staged in shared memory and brought to
// unit length there by a warp each. Bytes: q and k once for every block of 32 columns, v, out and the state once.
// A single token of many sequences is bound by reading and writing their states, for which step_kernel is.
#include "kernels/device/exponential.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/recurrent/delta_chunk.cuh"
#include "kernels/recurrent/delta_rule.h"
#include "src/core/error.h"

namespace fewbit::cuda {
namespace {

constexpr int kLanes = 4;     // of a column
constexpr int kColumns = 32;  // of a block
constexpr int kThreads = kLanes * kColumns;
constexpr int kTile = 8;  // tokens staged at a time

template <class T>
struct Delta {
  const T *q, *k, *v, *beta, *decay;
  int64_t q_width, k_width, v_width;  // from row to row
  const float *a_log, *dt_bias;
  float* state;  // or null
  T* out;
  int64_t len;
  int k_heads, v_heads, k_dim, v_dim;
};

// kRows: rows of S that a lane holds. kEach: a decay for every key channel.
template <class T, int kRows, bool kEach>
struct Tile {
  static constexpr int kWide = kRows * kLanes;
  float q[kTile][kWide], k[kTile][kWide];
  float keep[kTile][kEach ? kWide : 1];
  float v[kTile][kColumns], beta[kTile];
};

template <class T, int kRows, bool kEach>
__device__ __forceinline__ void stage(const Delta<T>& a, Tile<T, kRows, kEach>& s, int64_t first, int tokens, int head,
                                      int column) {
  const int k_head = head / (a.v_heads / a.k_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float rate = expf(a.a_log[head]);
  for (int t = warp; t < tokens; t += kThreads / 32) {
    const T* q = a.q + (first + t) * a.q_width + k_head * a.k_dim;
    const T* k = a.k + (first + t) * a.k_width + k_head * a.k_dim;
    float qq = 0, kk = 0;
    for (int i = lane; i < kRows * kLanes; i += 32) {
      const float x = i < a.k_dim ? to_f32(q[i]) : 0.f, y = i < a.k_dim ? to_f32(k[i]) : 0.f;
      s.q[t][i] = x, s.k[t][i] = y;
      qq += x * x, kk += y * y;
    }
    const float to_q = 1.f / (sqrtf(warp_sum(qq) + 1e-6f) * sqrtf(static_cast<float>(a.k_dim)));
    const float to_k = 1.f / sqrtf(warp_sum(kk) + 1e-6f);
    for (int i = lane; i < kRows * kLanes; i += 32) s.q[t][i] *= to_q, s.k[t][i] *= to_k;
    const int each = kEach ? a.k_dim : 1;
    const T* decay = a.decay + ((first + t) * a.v_heads + head) * each;
    for (int i = lane; i < each; i += 32)
      s.keep[t][i] = expf(-rate * softplus(to_f32(decay[i]) + a.dt_bias[head * each + i]));
    const T* v = a.v + (first + t) * a.v_width + head * a.v_dim + column;
    s.v[t][lane] = column + lane < a.v_dim ? to_f32(v[lane]) : 0.f;
    if (lane == 0) s.beta[t] = 1.f / (1.f + expf(-to_f32(a.beta[(first + t) * a.v_heads + head])));
  }
}

template <class T, int kRows, bool kEach>
__global__ void __launch_bounds__(kThreads) delta_rule_kernel(Delta<T> a) {
  __shared__ Tile<T, kRows, kEach> tile;
  const int head = static_cast<int>(blockIdx.y) % a.v_heads, first_column = static_cast<int>(blockIdx.x) * kColumns;
  const int64_t seq = blockIdx.y / a.v_heads;
  const int part = threadIdx.x % kLanes, own = threadIdx.x / kLanes, column = first_column + own;
  const bool inside = column < a.v_dim;
  float* state = a.state ? a.state + (seq * a.v_heads + head) * a.k_dim * a.v_dim + column : nullptr;
  float s[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = r * kLanes + part;
    s[r] = state && inside && row < a.k_dim ? state[static_cast<int64_t>(row) * a.v_dim] : 0.f;
  }
  for (int64_t begin = 0; begin < a.len; begin += kTile) {
    const int tokens = static_cast<int>(a.len - begin < kTile ? a.len - begin : kTile);
    __syncthreads();  // the tile before is read
    stage(a, tile, seq * a.len + begin, tokens, head, first_column);
    __syncthreads();
    for (int t = 0; t < tokens; ++t) {
      float found = 0, out = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int row = r * kLanes + part;
        s[r] *= kEach ? (row < a.k_dim ? tile.keep[t][kEach ? row : 0] : 0.f) : tile.keep[t][0];
        found = fmaf(s[r], tile.k[t][row], found);
      }
      found = warp_reduce(found, Sum{}, kLanes);
      const float change = tile.beta[t] * (tile.v[t][own] - found);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int row = r * kLanes + part;
        s[r] = fmaf(tile.k[t][row], change, s[r]);
        out = fmaf(s[r], tile.q[t][row], out);
      }
      out = warp_reduce(out, Sum{}, kLanes);
      if (inside && part == 0)
        a.out[((seq * a.len + begin + t) * a.v_heads + head) * a.v_dim + column] = from_f32<T>(out);
    }
  }
  if (!state || !inside) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (const int row = r * kLanes + part; row < a.k_dim) state[static_cast<int64_t>(row) * a.v_dim] = s[r];
}

// What a block of step_kernel knows of its token.
template <int kDim, bool kEach, int kAcross>
struct Token {
  float unit[2][kDim];  // the query and the key
  float keep[kEach ? kDim : 1], beta, v[kAcross];

  // Each warp brings a part, so that all of them are on their way at once. The arithmetic is that of stage().
  template <class T>
  __device__ __forceinline__ void bring(const Delta<T>& a, int64_t token, int head, int column) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k_head = head / (a.v_heads / a.k_heads);
    if (warp < 2) {
      const T* x = (warp == 0 ? a.q + token * a.q_width : a.k + token * a.k_width) + k_head * kDim;
      float own[kDim / 32], sum = 0;
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) own[i] = to_f32(x[32 * i + lane]);
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) sum += own[i] * own[i];
      const float length = sqrtf(warp_sum(sum) + 1e-6f);
      const float to_unit = 1.f / (warp == 0 ? length * sqrtf(static_cast<float>(kDim)) : length);
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) unit[warp][32 * i + lane] = own[i] * to_unit;
    } else if (warp == 2) {
      constexpr int kGates = kEach ? kDim : 1;
      const T* decay = a.decay + (token * a.v_heads + head) * kGates;
      for (int i = lane; i < kGates; i += 32)
        keep[i] = expf(-expf(a.a_log[head]) * softplus(to_f32(decay[i]) + a.dt_bias[head * kGates + i]));
      if (lane == 31) beta = 1.f / (1.f + expf(-to_f32(a.beta[token * a.v_heads + head])));
    } else {
#pragma unroll
      for (int i = lane; i < kAcross; i += 32) v[i] = to_f32(a.v[token * a.v_width + head * kDim + column + i]);
    }
  }
};

// One token of square states: a block has 64 columns, a lane two of them and a warp every fourth row, so that a warp's
// loads are whole lines. The sums are in the order of delta_rule_kernel, and so are the bits.
constexpr int kWide = 2;
template <class T, int kRows, bool kEach>
__global__ void __launch_bounds__(kThreads, kRows* kWide > 32 ? 5 : 8) step_kernel(Delta<T> a) {
  constexpr int kAcross = 32 * kWide, kDim = kRows * kLanes, kToNext = kLanes * kDim;  // to the lane's next row
  __shared__ Token<kDim, kEach, kAcross> token;
  __shared__ Vec<float, kWide> sums[2][kLanes][32];  // of found values and of outputs, by warps
  const int head = static_cast<int>(blockIdx.y) % a.v_heads, first_column = static_cast<int>(blockIdx.x) * kAcross;
  const int64_t seq = blockIdx.y / a.v_heads;
  const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* own = a.state + ((seq * a.v_heads + head) * kDim + part) * kDim + first_column + lane * kWide;
  allow_successor();
  await_predecessor();
  Vec<float, kWide> s[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) s[r] = load_vec<float, kWide>(own + r * kToNext);
  token.bring(a, seq, head, first_column);
  __syncthreads();
  const auto sum_of = [&](int which, int at, int i) {  // as warp_reduce() adds four lanes
    return (sums[which][0][at][i] + sums[which][2][at][i]) + (sums[which][1][at][i] + sums[which][3][at][i]);
  };
  Vec<float, kWide> found{}, out{}, change;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = r * kLanes + part;
    const float keep = token.keep[kEach ? row : 0], k = token.unit[1][row];
#pragma unroll
    for (int i = 0; i < kWide; ++i) s[r][i] *= keep, found[i] = fmaf(s[r][i], k, found[i]);
  }
  sums[0][part][lane] = found;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWide; ++i) change[i] = token.beta * (token.v[lane * kWide + i] - sum_of(0, lane, i));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = r * kLanes + part;
    const float q = token.unit[0][row], k = token.unit[1][row];
#pragma unroll
    for (int i = 0; i < kWide; ++i) s[r][i] = fmaf(k, change[i], s[r][i]), out[i] = fmaf(s[r][i], q, out[i]);
    store_vec(own + r * kToNext, s[r]);
  }
  sums[1][part][lane] = out;
  __syncthreads();
  if (const int i = threadIdx.x; i < kAcross)
    a.out[(seq * a.v_heads + head) * kDim + first_column + i] = from_f32<T>(sum_of(1, i / kWide, i % kWide));
}

// Takes one token of square states of 4 kRows, where each multiprocessor has one: of fewer, blocks of 32 columns bring
// more at once. Otherwise does nothing and returns false.
template <class T, int kRows, bool kEach>
bool launch_step(Exec& ex, const Delta<T>& a, int64_t seqs) {
  constexpr int kDim = kRows * kLanes;
  CudaState& s = ex.cuda_state();
  if (a.len != 1 || !a.state || a.k_dim != kDim || a.v_dim != kDim || !aligned16(a.state)) return false;
  if (seqs * a.v_heads < s.sms()) return false;
  const dim3 blocks(kDim / (32 * kWide), static_cast<unsigned>(seqs * a.v_heads));
  launch_overlapping(s, step_kernel<T, kRows, kEach>, blocks, dim3(kThreads), 0, a);
  return true;
}

template <class T, bool kEach>
void launch(Exec& ex, const Delta<T>& a, int64_t seqs) {
  if (launch_step<T, 32, kEach>(ex, a, seqs) || launch_step<T, 16, kEach>(ex, a, seqs)) return;
  auto* kernel = a.k_dim <= 32    ? delta_rule_kernel<T, 8, kEach>
                 : a.k_dim <= 64  ? delta_rule_kernel<T, 16, kEach>
                 : a.k_dim <= 128 ? delta_rule_kernel<T, 32, kEach>
                                  : delta_rule_kernel<T, 64, kEach>;
  const dim3 blocks(static_cast<unsigned>((a.v_dim + kColumns - 1) / kColumns),
                    static_cast<unsigned>(seqs * a.v_heads));
  kernel<<<blocks, kThreads, 0, ex.cuda_state().stream>>>(a);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace

void delta_rule(Exec& ex, const DeltaInputs& in, int64_t seqs, const DeltaArgs& args, TensorView state,
                TensorView out) {
  if (out.numel() == 0) return;
  if (args.k_dim > 256)
    fail(ErrorKind::unsupported,
         "delta_rule: keys of " + std::to_string(args.k_dim) + " features; a GPU takes up to 256");
  if (delta_rule_in_chunks(ex, in, seqs, args, state, out)) return;
  dispatch_f32_bf16(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto column = [](const ColumnsAt& c) { return c.x.as<T>() + c.begin; };
    const Delta<T> a{column(in.q),
                     column(in.k),
                     column(in.v),
                     in.beta.as<T>(),
                     in.decay.as<T>(),
                     in.q.x.cols(),
                     in.k.x.cols(),
                     in.v.x.cols(),
                     in.a_log.as<float>(),
                     in.dt_bias.as<float>(),
                     state.data ? state.as<float>() : nullptr,
                     out.as<T>(),
                     out.rows() / seqs,
                     args.k_heads,
                     args.v_heads,
                     static_cast<int>(args.k_dim),
                     static_cast<int>(args.v_dim)};
    if (in.decay.cols() == args.v_heads)
      launch<T, false>(ex, a, seqs);
    else
      launch<T, true>(ex, a, seqs);
  });
}

}  // namespace fewbit::cuda
