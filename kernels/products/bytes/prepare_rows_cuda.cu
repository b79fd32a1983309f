// A block has a row and keeps it in registers: it is read once, normed or activated, and leaves as codes.
// Values between two ops are rounded to bf16 as the ops round them, and the sum of squares has rms_norm's
// order, hence its number of threads. Bound by memory.
#include "kernels/products/bytes/prepare_rows.cuh"

#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/gated_act.cuh"
#include "kernels/products/bytes/byte_codes.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kN = 8;               // values of a thread and step
constexpr int kMostUnits = 8;       // steps
constexpr int kLeastNormed = 1025;  // narrower rows are normed in another order (norm_cuda.cu)

using Unit = Vec<__nv_bfloat16, kN>;

struct RowJob {
  const __nv_bfloat16* x;       // [rows, in]
  const __nv_bfloat16* second;  // norm: its weight [in]; gated: up [rows, in]
  uint8_t* codes;               // [rows, in]
  float* scales;                // [rows]
  float fixed, eps, offset;
  int in;
};

enum class From : uint8_t { plain, norm, silu, gelu_tanh };

template <From kFrom, int kUnits, bool kF8>
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ RowJob job) {
  __shared__ float partial[32];
  constexpr bool kGated = kFrom == From::silu || kFrom == From::gelu_tanh;
  allow_successor();
  await_predecessor();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * job.in;
  Unit v[kUnits];
  const auto for_units = [&](auto&& f) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      if (const int c = kN * (static_cast<int>(threadIdx.x) + u * kThreads); c < job.in) f(v[u], c, u);
  };
  for_units([&](Unit& unit, int c, int) { unit = load_vec<__nv_bfloat16, kN>(job.x + row + c); });
  if constexpr (kGated) {
    constexpr ActKind kAct = kFrom == From::silu ? ActKind::silu : ActKind::gelu_tanh;
    Unit ups[kUnits];
    for_units([&](Unit&, int c, int u) { ups[u] = load_vec<__nv_bfloat16, kN>(job.second + row + c); });
    for_units([&](Unit& unit, int, int u) {
#pragma unroll
      for (int i = 0; i < kN; ++i)
        unit[i] = from_f32<__nv_bfloat16>(activate<kAct>(to_f32(unit[i])) * to_f32(ups[u][i]));
    });
  }
  if constexpr (kFrom == From::norm) {
    float squares = 0;
    for_units([&](Unit& unit, int, int) {
#pragma unroll
      for (int i = 0; i < kN; ++i) squares = fmaf(to_f32(unit[i]), to_f32(unit[i]), squares);
    });
    const float inverse = 1.f / sqrtf(block_sum(squares, partial) / static_cast<float>(job.in) + job.eps);
    for_units([&](Unit& unit, int c, int) {
      const auto weight = load_vec<__nv_bfloat16, kN>(job.second + c);
#pragma unroll
      for (int i = 0; i < kN; ++i)
        unit[i] = from_f32<__nv_bfloat16>(to_f32(unit[i]) * inverse * (to_f32(weight[i]) + job.offset));
    });
  }
  float most = 0;
  for_units([&](Unit& unit, int, int) {
#pragma unroll
    for (int i = 0; i < kN; ++i) most = larger_abs(most, to_f32(unit[i]));
  });
  most = block_reduce(
      most, [](float a, float b) { return larger_abs(a, b); }, 0.f, partial);
  const float scale = row_scale(most, job.fixed, kF8 ? kF8Max : 127.f), inverse = 1.f / scale;
  if (threadIdx.x == 0) job.scales[blockIdx.x] = scale;
  for_units([&](Unit& unit, int c, int) {
    const auto at = [&](int i) { return mul_rn(to_f32(unit[i]), inverse); };
    *reinterpret_cast<uint2*>(job.codes + row + c) = {codes_of<kF8>({at(0), at(1), at(2), at(3)}),
                                                      codes_of<kF8>({at(4), at(5), at(6), at(7)})};
  });
}

template <From kFrom, int kUnits>
void launch(CudaState& s, const RowJob& job, bool f8, int64_t rows) {
  auto* kernel = f8 ? prepare_kernel<kFrom, kUnits, true> : prepare_kernel<kFrom, kUnits, false>;
  launch_overlapping(s, kernel, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, job);
}

template <From kFrom>
void launch(CudaState& s, const RowJob& job, bool f8, int64_t rows) {
  const int units = (job.in + kThreads * kN - 1) / (kThreads * kN);
  if (units <= 1) return launch<kFrom, 1>(s, job, f8, rows);
  if (units <= 2) return launch<kFrom, 2>(s, job, f8, rows);
  if (units <= 4) return launch<kFrom, 4>(s, job, f8, rows);
  launch<kFrom, kMostUnits>(s, job, f8, rows);
}

}  // namespace

bool prepares_rows(const RowSource& source, const RowQuant& q) {
  const ConstTensorView& x = source.x;
  const int64_t in = x.cols();
  if (q.codes != DType::i8 && q.codes != DType::f8_e4m3) return false;
  if (x.dtype != DType::bf16 || q.group != 0 || in % kN != 0 || in > int64_t{kThreads} * kN * kMostUnits) return false;
  if (x.rows() >= int64_t{1} << 31 || !aligned16(x.as<__nv_bfloat16>())) return false;
  if (source.norm) return in >= kLeastNormed && aligned16(source.norm->weight.as<__nv_bfloat16>());
  return !source.up.data || aligned16(source.up.as<__nv_bfloat16>());
}

void launch_prepare_rows(CudaState& s, const RowSource& source, const RowQuant& q, void* codes, float* scales) {
  const ConstTensorView& x = source.x;
  FEWBIT_ASSERT(prepares_rows(source, q) && !(source.norm && source.up.data));
  if (x.rows() == 0) return;
  const bool f8 = q.codes == DType::f8_e4m3;
  RowJob job{.x = x.as<__nv_bfloat16>(),
             .second = nullptr,
             .codes = static_cast<uint8_t*>(codes),
             .scales = scales,
             .fixed = q.fixed,
             .eps = 0,
             .offset = 0,
             .in = static_cast<int>(x.cols())};
  if (source.norm) {
    FEWBIT_ASSERT(source.norm->weight.dtype == DType::bf16 && source.norm->weight.numel() == x.cols());
    job.second = source.norm->weight.as<__nv_bfloat16>();
    job.eps = source.norm->eps;
    job.offset = source.norm->offset;
    return launch<From::norm>(s, job, f8, x.rows());
  }
  if (!source.up.data) return launch<From::plain>(s, job, f8, x.rows());
  FEWBIT_ASSERT(source.up.shape == x.shape && source.up.dtype == x.dtype);
  job.second = source.up.as<__nv_bfloat16>();
  if (source.act == ActKind::silu)
    launch<From::silu>(s, job, f8, x.rows());
  else
    launch<From::gelu_tanh>(s, job, f8, x.rows());
}

}  // namespace fewbit::cuda
