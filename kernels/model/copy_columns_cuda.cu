// Columns of one matrix into columns of another: a block has a group of a row, 16 bytes a thread where both matrices
// allow; bound by memory.
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/copy_columns.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

// kN: values per thread and step; 8 needs every row to begin at 16 bytes on both sides and cols % 8 == 0.
template <class T, int kN>
__global__ void copy_columns_kernel(const T* __restrict__ from, int64_t from_width,  // at the first column
                                    T* __restrict__ to, int64_t to_width, int64_t cols, ColumnGroups groups) {
  allow_successor();
  await_predecessor();
  from += blockIdx.x * from_width + blockIdx.y * groups.from_step;
  to += blockIdx.x * to_width + blockIdx.y * groups.to_step;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * kN; c < cols; c += kThreads * kN)
    store_vec(to + c, load_vec<T, kN>(from + c));
}

}  // namespace

void copy_columns(Exec& ex, ConstTensorView from, int64_t from_begin, TensorView to, int64_t to_begin, int64_t cols,
                  ColumnGroups groups) {
  if (to.rows() == 0 || cols == 0) return;
  dispatch_f32_bf16(to.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* source = from.as<T>() + from_begin;
    T* target = to.as<T>() + to_begin;
    const bool vectors = from.cols() % 8 == 0 && to.cols() % 8 == 0 && cols % 8 == 0 && groups.from_step % 8 == 0 &&
                         groups.to_step % 8 == 0 && aligned16(source) && aligned16(target);
    auto* kernel = vectors ? copy_columns_kernel<T, 8> : copy_columns_kernel<T, 1>;
    launch_overlapping(ex.cuda_state(), kernel,
                       dim3(static_cast<unsigned>(to.rows()), static_cast<unsigned>(groups.count)), dim3(kThreads), 0,
                       source, from.cols(), target, to.cols(), cols, groups);
  });
}

}  // namespace fewbit::cuda
