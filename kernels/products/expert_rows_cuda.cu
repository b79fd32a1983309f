// expert_lists: a block an expert, which goes through all entries twice: what lies in front of its own, then its own in
// their order. The entries of a chunk stay in L2.
// place_rows: a block a row; what the runs are travels with the launch.
// combine_rows: a block a token, which keeps the sum of a few columns in registers.
#include <algorithm>

#include "kernels/device/jobs.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/expert_rows.h"

namespace fewbit::cuda {
namespace {

constexpr int kListThreads = 1024, kRowThreads = 256;

// The sum of `own` over the threads before this one; `all`: over all of them. `shared` has room for 32 values.
__device__ __forceinline__ int sum_before(int own, int& all, int* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int upto = own;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, upto, step);
    if (lane >= step) upto += other;
  }
  if (lane == 31) shared[warp] = upto;
  __syncthreads();
  const int warps = warp_sum(lane < warp ? shared[lane] : 0);
  all = warp_sum(shared[lane]);
  __syncthreads();
  return warps + upto - own;
}

__global__ void __launch_bounds__(kListThreads) expert_lists_kernel(const int32_t* __restrict__ ids,   // [entries]
                                                                    const float* __restrict__ shares,  // [entries]
                                                                    int entries, int top_k,
                                                                    int32_t* __restrict__ rows,     // [entries]
                                                                    float* __restrict__ weights,    // [entries]
                                                                    int32_t* __restrict__ places,   // [entries]
                                                                    int32_t* __restrict__ begin) {  // [experts + 1]
  __shared__ int shared[32];
  const int expert = blockIdx.x;
  int before = 0;
  for (int i = threadIdx.x; i < entries; i += kListThreads) before += ids[i] < expert;
  int at = block_sum(before, shared);
  if (threadIdx.x == 0) begin[expert] = at;
  if (threadIdx.x == 0 && expert == static_cast<int>(gridDim.x) - 1) begin[gridDim.x] = entries;
  for (int first = 0; first < entries; first += kListThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool mine = i < entries && ids[i] == expert;
    int all = 0;
    const int place = at + sum_before(mine ? 1 : 0, all, shared);
    if (mine) {
      rows[place] = i / top_k;
      weights[place] = shares[i];
      places[i] = place;
    }
    at += all;
  }
}

// Runs of a launch, beside each other: blocks [end[i - 1], end[i]) have the rows of run i.
struct Runs {
  static constexpr int kMost = 128;
  int from[kMost], to[kMost], end[kMost];
  int count;
};

// T: what a thread copies at a time; `units` of them are a row.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    place_rows_kernel(const T* __restrict__ x, const int32_t* __restrict__ rows, const Runs runs, T* __restrict__ y,
                      int64_t units) {
  const int block = static_cast<int>(blockIdx.x);
  const int run = job_of_block(runs.end, runs.count, block);
  const int i = block - (run > 0 ? runs.end[run - 1] : 0);
  const T* from = x + rows[runs.from[run] + i] * units;
  T* to = y + (runs.to[run] + static_cast<int64_t>(i)) * units;
  for (int64_t c = threadIdx.x; c < units; c += kRowThreads) to[c] = from[c];
}

// kN: values per thread and step; 8 needs cols % 8 == 0 and both matrices aligned.
template <class T, int kN>
__global__ void __launch_bounds__(kRowThreads)
    combine_rows_kernel(const T* __restrict__ y,             // [n, cols]
                        const int32_t* __restrict__ places,  // [tokens, top_k]
                        const float* __restrict__ weights, int first, int n,
                        float* __restrict__ sum,  // [tokens, cols]
                        int64_t cols, int top_k) {
  __shared__ int sorted[kMostPlaces];
  const int64_t t = blockIdx.x;
  const int32_t* own = places + t * top_k;
  if (static_cast<int>(threadIdx.x) < top_k) {  // places are distinct
    const int p = own[threadIdx.x];
    int smaller = 0;
    for (int j = 0; j < top_k; ++j) smaller += own[j] < p;
    sorted[smaller] = p - first;
  }
  __syncthreads();
  for (int64_t c = threadIdx.x * kN; c < cols; c += kRowThreads * kN) {
    auto out = load_vec<float, kN>(sum + t * cols + c);
    bool any = false;
    for (int j = 0; j < top_k; ++j) {
      const int p = sorted[j];
      if (p < 0 || p >= n) continue;
      any = true;
      const float w = weights[first + p];
      const auto in = load_vec<T, kN>(y + p * cols + c);
#pragma unroll
      for (int i = 0; i < kN; ++i) out[i] = fmaf(w, to_f32(in[i]), out[i]);
    }
    if (any) store_vec(sum + t * cols + c, out);
  }
}

template <class T>
void start_place(CudaState& s, ConstTensorView x, ConstTensorView rows, const Runs& runs, TensorView y) {
  const int64_t units = x.cols() * bytes_of(x.dtype) / static_cast<int64_t>(sizeof(T));
  place_rows_kernel<T><<<static_cast<unsigned>(runs.end[runs.count - 1]), kRowThreads, 0, s.stream>>>(
      static_cast<const T*>(x.data), rows.as<int32_t>(), runs, static_cast<T*>(y.data), units);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace

void expert_lists(Exec& ex, ConstTensorView ids, ConstTensorView shares, const ExpertLists& to) {
  CudaState& s = ex.cuda_state();
  const auto experts = static_cast<unsigned>(to.begin.numel() - 1);
  expert_lists_kernel<<<experts, kListThreads, 0, s.stream>>>(
      ids.as<int32_t>(), shares.as<float>(), static_cast<int>(ids.numel()), static_cast<int>(ids.cols()),
      to.rows.as<int32_t>(), to.weights.as<float>(), to.places.as<int32_t>(), to.begin.as<int32_t>());
  FEWBIT_CUDA_LAUNCHED();
}

void place_rows(Exec& ex, ConstTensorView x, ConstTensorView rows, std::span<const PlacedRows> runs, TensorView y) {
  CudaState& s = ex.cuda_state();
  const bool vectors = x.cols() * bytes_of(x.dtype) % 16 == 0 && aligned16(static_cast<const char*>(x.data)) &&
                       aligned16(static_cast<const char*>(y.data));
  while (!runs.empty()) {
    Runs some{};
    const auto count = std::min<size_t>(runs.size(), Runs::kMost);
    for (size_t i = 0; i < count; ++i) {
      some.from[i] = static_cast<int>(runs[i].from);
      some.to[i] = static_cast<int>(runs[i].to);
      some.end[i] = (i > 0 ? some.end[i - 1] : 0) + static_cast<int>(runs[i].count);
    }
    some.count = static_cast<int>(count);
    runs = runs.subspan(count);
    if (some.end[count - 1] == 0) continue;
    if (vectors)
      start_place<uint4>(s, x, rows, some, y);
    else if (bytes_of(x.dtype) % 2 == 0)
      start_place<uint16_t>(s, x, rows, some, y);
    else
      start_place<uint8_t>(s, x, rows, some, y);
  }
}

void combine_rows(Exec& ex, ConstTensorView y, ConstTensorView places, ConstTensorView weights, int64_t first,
                  TensorView sum) {
  if (y.rows() == 0 || sum.rows() == 0) return;
  CudaState& s = ex.cuda_state();
  dispatch_f32_bf16(y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool vectors = y.cols() % 8 == 0 && aligned16(y.as<T>()) && aligned16(sum.as<float>());
    auto* kernel = vectors ? combine_rows_kernel<T, 8> : combine_rows_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(sum.rows()), kRowThreads, 0, s.stream>>>(
        y.as<T>(), places.as<int32_t>(), weights.as<float>(), static_cast<int>(first), static_cast<int>(y.rows()),
        sum.as<float>(), y.cols(), static_cast<int>(places.cols()));
    FEWBIT_CUDA_LAUNCHED();
  });
}

}  // namespace fewbit::cuda
