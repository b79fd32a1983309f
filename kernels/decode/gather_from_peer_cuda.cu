// Values of which each of two GPUs has a part, handed over as the parts of sums are. A word has one place: between two
// gathers the GPUs exchange something else, which the other one begins when its gather has ended.
#include <algorithm>

#include "kernels/decode/peer_words.cuh"
#include "kernels/device/grid_barrier.cuh"
#include "kernels/device/launch.cuh"

namespace fewbit {
namespace cuda {
namespace {

constexpr int kThreads = 256;

// All blocks run at the same time, as those on the other GPU do: each sends before it waits.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(DecodePeer peer, float* values, int begin, int end, int count, uint32_t* arrivals) {
  await_predecessor();
  const uint32_t stamp = __ldcg(peer.state + 2) + 1;
  const int first = static_cast<int>(blockIdx.x * kThreads + threadIdx.x),
            step = static_cast<int>(gridDim.x) * kThreads;
  for (int i = begin + first; i < end; i += step) put_part(peer.theirs_gathered + i, values[i], stamp);
  for (int i = first; i < count - (end - begin); i += step) {
    const int at = i < begin ? i : i + (end - begin);
    values[at] = await_part(peer, peer.mine_gathered + at, stamp);
  }
  __syncthreads();
  if (threadIdx.x == 0 && arrives_last(arrivals, gridDim.x)) peer.state[2] = stamp;
}

}  // namespace
}  // namespace cuda

void gather_from_peer(Exec& ex, const DecodePeer& peer, TensorView t, int64_t begin, int64_t end) {
  CudaState& s = ex.cuda_state();
  FEWBIT_ASSERT(t.dtype == DType::f32 && begin >= 0 && begin <= end && end <= t.numel() && t.numel() <= INT32_MAX);
  const int64_t most = std::max(end - begin, t.numel() - (end - begin));
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(most / cuda::kThreads, 1, s.sms()));
  cuda::launch_overlapping(s, cuda::gather_kernel, dim3(blocks), dim3(cuda::kThreads), 0, peer, t.as<float>(),
                           static_cast<int>(begin), static_cast<int>(end), static_cast<int>(t.numel()), s.counters);
}

}  // namespace fewbit
