// The selective state space: a block has 32 rows of S of one head of one sequence and walks its tokens. Four lanes
// share a row and hold its columns in registers (lane p those with column % 4 == p), so that a token is a loop over
// registers and two shuffles. B, C and x of kTile tokens are staged in shared memory. Bytes: B and C once for every
// block of 32 rows, x, out and the state once.
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/recurrent/state_scan.h"
#include "src/core/error.h"

namespace fewbit::cuda {
namespace {

constexpr int kLanes = 4;  // of a row of S
constexpr int kRows = 32;  // of a block
constexpr int kThreads = kLanes * kRows;
constexpr int kTile = 8;  // tokens staged at a time

template <class T>
struct Scan {
  const T *x, *dt;
  const float *a_log, *dt_bias, *d;
  float* state;  // or null
  T* out;
  int64_t len;
  int heads, groups, head_dim, width;  // width: of x, B and C together
  int columns;                         // of S
};

// kHeld: columns of S that a lane holds.
template <int kHeld>
struct ScanTile {
  float b[kTile][kHeld * kLanes], c[kTile][kHeld * kLanes];
  float x[kTile][kRows], dt[kTile], keep[kTile];
};

template <class T, int kHeld>
__device__ __forceinline__ void stage(const Scan<T>& a, ScanTile<kHeld>& s, int64_t first, int tokens, int head,
                                      int row) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = head / (a.heads / a.groups);
  for (int t = warp; t < tokens; t += kThreads / 32) {
    const T* token = a.x + (first + t) * a.width;
    const T* b = token + a.heads * a.head_dim + group * a.columns;
    for (int i = lane; i < kHeld * kLanes; i += 32) {
      s.b[t][i] = i < a.columns ? to_f32(b[i]) : 0.f;
      s.c[t][i] = i < a.columns ? to_f32(b[a.groups * a.columns + i]) : 0.f;
    }
    s.x[t][lane] = row + lane < a.head_dim ? to_f32(token[head * a.head_dim + row + lane]) : 0.f;
    if (lane > 0) continue;
    const float raw = to_f32(a.dt[(first + t) * a.heads + head]) + a.dt_bias[head];
    const float dt = raw > 20.f ? raw : log1pf(expf(raw));
    s.dt[t] = dt;
    s.keep[t] = expf(-expf(a.a_log[head]) * dt);
  }
}

template <class T, int kHeld>
__global__ void __launch_bounds__(kThreads) state_scan_kernel(Scan<T> a) {
  __shared__ ScanTile<kHeld> tile;
  const int head = static_cast<int>(blockIdx.y) % a.heads, first_row = static_cast<int>(blockIdx.x) * kRows;
  const int64_t seq = blockIdx.y / a.heads;
  const int part = threadIdx.x % kLanes, own = threadIdx.x / kLanes, row = first_row + own;
  const bool inside = row < a.head_dim;
  float* state = a.state ? a.state + ((seq * a.heads + head) * a.head_dim + row) * a.columns : nullptr;
  float s[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = i * kLanes + part;
    s[i] = state && inside && column < a.columns ? state[column] : 0.f;
  }
  for (int64_t begin = 0; begin < a.len; begin += kTile) {
    const int tokens = static_cast<int>(a.len - begin < kTile ? a.len - begin : kTile);
    __syncthreads();  // the tile before is read
    stage(a, tile, seq * a.len + begin, tokens, head, first_row);
    __syncthreads();
    for (int t = 0; t < tokens; ++t) {
      const float keep = tile.keep[t], x = tile.x[t][own], added = tile.dt[t] * x;
      float out = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int column = i * kLanes + part;
        s[i] = fmaf(added, tile.b[t][column], s[i] * keep);
        out = fmaf(s[i], tile.c[t][column], out);
      }
      out = warp_reduce(out, Sum{}, kLanes);
      if (inside && part == 0)
        a.out[((seq * a.len + begin + t) * a.heads + head) * a.head_dim + row] = from_f32<T>(out + a.d[head] * x);
    }
  }
  if (!state || !inside) return;
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (const int column = i * kLanes + part; column < a.columns) state[column] = s[i];
}

}  // namespace

void state_scan(Exec& ex, const ScanInputs& in, int64_t seqs, const ScanArgs& args, TensorView state, TensorView out) {
  if (out.numel() == 0) return;
  if (args.state > 256)
    fail(ErrorKind::unsupported,
         "state_scan: states of " + std::to_string(args.state) + " features; a GPU takes up to 256");
  dispatch_f32_bf16(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Scan<T> a{in.x.as<T>(),
                    in.dt.as<T>(),
                    in.a_log.as<float>(),
                    in.dt_bias.as<float>(),
                    in.d.as<float>(),
                    state.data ? state.as<float>() : nullptr,
                    out.as<T>(),
                    out.rows() / seqs,
                    args.heads,
                    args.groups,
                    static_cast<int>(args.head_dim),
                    static_cast<int>(args.width()),
                    static_cast<int>(args.state)};
    auto* kernel = args.state <= 32    ? state_scan_kernel<T, 8>
                   : args.state <= 64  ? state_scan_kernel<T, 16>
                   : args.state <= 128 ? state_scan_kernel<T, 32>
                                       : state_scan_kernel<T, 64>;
    const dim3 blocks(static_cast<unsigned>((args.head_dim + kRows - 1) / kRows),
                      static_cast<unsigned>(seqs * args.heads));
    kernel<<<blocks, kThreads, 0, ex.cuda_state().stream>>>(a);
    FEWBIT_CUDA_LAUNCHED();
  });
}

}  // namespace fewbit::cuda
