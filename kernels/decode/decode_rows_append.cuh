#pragma once
// The last of a launch of decode_rows.cuh: q and k are normed and turned, k and v go to the cache, as rope_append()
// does.
#include "kernels/attention/kv_quantize.cuh"
#include "kernels/decode/decode_rows_job.cuh"
#include "kernels/model/hadamard.cuh"
#include "kernels/model/rope.cuh"

namespace fewbit::cuda {

// Shared memory of a warp for heads of so many values: cosines and sines, the head, the head in f32.
constexpr int rows_append_bytes(int head_dim) {
  return head_dim * static_cast<int>(2 * sizeof(float) + sizeof(__nv_bfloat16));
}

// A head at a time for each warp, neighbouring heads in other blocks. C: what the cache holds.
template <class C>
struct RowsAppender {
  const RowsAppend& job;
  int rows;
  float* turns;  // this warp's place in shared memory
  float* wide;
  __nv_bfloat16* head;
  int turned_row = -1;  // whose angles are there
  int position = 0;

  __device__ __forceinline__ RowsAppender(const RowsAppend& j, int of_rows, uint8_t* shared) : job(j), rows(of_rows) {
    shared += threadIdx.x / 32 * rows_append_bytes(job.head_dim);
    turns = reinterpret_cast<float*>(shared);
    wide = turns + job.head_dim;
    head = reinterpret_cast<__nv_bfloat16*>(wide + job.head_dim);
  }
  __device__ __forceinline__ int of_row() const { return job.heads + 2 * job.kv_heads; }
  __device__ __forceinline__ int first() const { return blockIdx.x + threadIdx.x / 32 * gridDim.x; }
  // The angles of a row, which need not wait for its values.
  __device__ __forceinline__ void set_angles(int row) {
    if (row == turned_row || row >= rows) return;
    __syncwarp();
    position = job.positions[row];
    rope_angles(turns, static_cast<float>(position), job.inv_freq, job.half, job.attention_scale, threadIdx.x % 32, 32);
    __syncwarp();
    turned_row = row;
  }
  __device__ __forceinline__ void run() {
    const int lane = threadIdx.x % 32, d = job.head_dim;
#pragma unroll 1
    for (int task = first(); task < rows * of_row(); task += kStepWarps * gridDim.x) {
      const int row = task / of_row(), of_all = task % of_row();
      const int which = (of_all >= job.heads) + (of_all >= job.heads + job.kv_heads);
      const int n = of_all - (which == 0 ? 0 : job.heads + (which - 1) * job.kv_heads);
      __nv_bfloat16* values =
          job.qkv[which] + (static_cast<int64_t>(row) * (which == 0 ? job.heads : job.kv_heads) + n) * d;
      set_angles(row);
      for (int i = lane; i < d; i += 32)
        reinterpret_cast<unsigned short*>(head)[i] = __ldcg(reinterpret_cast<const unsigned short*>(values) + i);
      __syncwarp();
      if (which < 2 && job.head_norm[which]) norm(job.head_norm[which]);
      if (which < 2) turn_head(head, head, turns, job.half, lane);
      __syncwarp();
      if (which < 2 && job.run > 0) hadamard_head(head, head, wide, d, job.run, job.run_scale, lane);
      __syncwarp();
      if (which == 0)
        for (int i = lane; i < d; i += 32) values[i] = head[i];
      else
        store_row(head, static_cast<C*>(which == 2 ? job.v : job.k), which == 2 ? job.v_scales : job.k_scales,
                  (static_cast<int64_t>(row) * job.kv_heads + n) * job.capacity + position, n, d);
      __syncwarp();
    }
  }
  __device__ __forceinline__ void norm(const __nv_bfloat16* weight) const {
    const int lane = threadIdx.x % 32, d = job.head_dim;
    float squares = 0;
    for (int i = lane; i < d; i += 32) squares = fmaf(to_f32(head[i]), to_f32(head[i]), squares);
    const float inv = 1.f / sqrtf(warp_sum(squares) / static_cast<float>(d) + job.head_eps);
    for (int i = lane; i < d; i += 32)
      head[i] = __float2bfloat16_rn(to_f32(head[i]) * inv * (to_f32(weight[i]) + job.weight_offset));
    __syncwarp();
  }
};

}  // namespace fewbit::cuda
