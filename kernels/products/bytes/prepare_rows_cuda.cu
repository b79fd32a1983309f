// A block has a row and keeps it in registers: it is read once, normed or activated, and leaves as codes. Values
// between two ops are rounded to bf16 as the ops round them. Bound by memory.
#include "kernels/products/bytes/prepare_rows.cuh"

#include "kernels/device/launch.cuh"
#include "kernels/model/gated_act.cuh"
#include "kernels/products/bytes/byte_codes.cuh"
#include "kernels/products/bytes/held_row.cuh"

namespace fewbit::cuda::prepare_rows {
namespace {

constexpr int kThreads = 512;       // as many as rms_norm has for a wide row, so that both add squares in one order
constexpr int kMostUnits = 8;       // of kHeldValues values a thread: 32,768 values of a row stay in registers
constexpr int kLeastNormed = 1025;  // values; narrower rows are normed by a warp, in another order (norm_cuda.cu)

struct Job {
  const __nv_bfloat16* x;       // [rows, in]
  const __nv_bfloat16* second;  // norm: its weight [in]; gated: up [rows, in]
  uint8_t* codes;               // [rows, in]
  float* scales;                // [rows]
  float fixed, eps, offset;
  int in;
};

enum class Origin : uint8_t { plain, norm, silu, gelu_tanh };

template <Origin kOrigin, int kUnits, bool kF8>
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ Job job) {
  __shared__ float partial[32];
  constexpr bool kGated = kOrigin == Origin::silu || kOrigin == Origin::gelu_tanh;
  allow_successor();
  await_predecessor();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * job.in;
  HeldUnit units[kUnits];
  const auto for_units = [&](auto&& f) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      if (const int c = kHeldValues * (static_cast<int>(threadIdx.x) + u * kThreads); c < job.in) f(units[u], c, u);
  };
  for_units([&](HeldUnit& unit, int c, int) { unit = load_vec<__nv_bfloat16, kHeldValues>(job.x + row + c); });
  if constexpr (kGated) {
    constexpr ActKind kAct = kOrigin == Origin::silu ? ActKind::silu : ActKind::gelu_tanh;
    HeldUnit ups[kUnits];
    for_units([&](HeldUnit&, int c, int u) { ups[u] = load_vec<__nv_bfloat16, kHeldValues>(job.second + row + c); });
    for_units([&](HeldUnit& unit, int, int u) {
#pragma unroll
      for (int i = 0; i < kHeldValues; ++i)
        unit[i] = from_f32<__nv_bfloat16>(activate<kAct>(to_f32(unit[i])) * to_f32(ups[u][i]));
    });
  }
  if constexpr (kOrigin == Origin::norm) norm_held_row(for_units, job.second, job.in, job.eps, job.offset, partial);
  const float most = largest_magnitude(for_units, partial);
  const float scale = row_scale(most, job.fixed, kF8 ? kF8Max : 127.f), inverse = 1.f / scale;
  if (threadIdx.x == 0) job.scales[blockIdx.x] = scale;
  for_units([&](HeldUnit& unit, int c, int) {
    const auto at = [&](int i) { return mul_rn(to_f32(unit[i]), inverse); };
    *reinterpret_cast<uint2*>(job.codes + row + c) = {codes_of<kF8>({at(0), at(1), at(2), at(3)}),
                                                      codes_of<kF8>({at(4), at(5), at(6), at(7)})};
  });
}

template <Origin kOrigin, int kUnits>
void launch_for(CudaState& s, const Job& job, bool f8, int64_t rows) {
  auto* kernel = f8 ? prepare_kernel<kOrigin, kUnits, true> : prepare_kernel<kOrigin, kUnits, false>;
  launch_overlapping(s, kernel, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, job);
}

template <Origin kOrigin>
void launch_for(CudaState& s, const Job& job, bool f8, int64_t rows) {
  const int units = (job.in + kThreads * kHeldValues - 1) / (kThreads * kHeldValues);
  if (units <= 1) return launch_for<kOrigin, 1>(s, job, f8, rows);
  if (units <= 2) return launch_for<kOrigin, 2>(s, job, f8, rows);
  if (units <= 4) return launch_for<kOrigin, 4>(s, job, f8, rows);
  launch_for<kOrigin, kMostUnits>(s, job, f8, rows);
}

}  // namespace

bool fits(const Source& source, const RowQuant& q) {
  const ConstTensorView& x = source.x;
  const int64_t in = x.cols();
  if (q.codes != DType::i8 && q.codes != DType::f8_e4m3) return false;
  if (x.dtype != DType::bf16 || q.group != 0 || in % kHeldValues != 0 ||
      in > int64_t{kThreads} * kHeldValues * kMostUnits)
    return false;
  if (x.rows() >= int64_t{1} << 31 || !aligned16(x.as<__nv_bfloat16>())) return false;
  if (source.norm) return in >= kLeastNormed && aligned16(source.norm->weight.as<__nv_bfloat16>());
  return !source.up.data || aligned16(source.up.as<__nv_bfloat16>());
}

void launch(CudaState& s, const Source& source, const RowQuant& q, void* codes, float* scales) {
  const ConstTensorView& x = source.x;
  FEWBIT_ASSERT(fits(source, q) && !(source.norm && source.up.data));
  if (x.rows() == 0) return;
  const bool f8 = q.codes == DType::f8_e4m3;
  Job job{.x = x.as<__nv_bfloat16>(),
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
    return launch_for<Origin::norm>(s, job, f8, x.rows());
  }
  if (!source.up.data) return launch_for<Origin::plain>(s, job, f8, x.rows());
  FEWBIT_ASSERT(source.up.shape == x.shape && source.up.dtype == x.dtype);
  job.second = source.up.as<__nv_bfloat16>();
  if (source.act == ActKind::silu)
    launch_for<Origin::silu>(s, job, f8, x.rows());
  else
    launch_for<Origin::gelu_tanh>(s, job, f8, x.rows());
}

}  // namespace fewbit::cuda::prepare_rows
