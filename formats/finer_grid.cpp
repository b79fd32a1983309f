#include "formats/finer_grid.h"

#include <cmath>

#include "src/core/error.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

bool type_holds(DType to, DType from) {
  if (to == from) return true;
  if (from == DType::f8_e4m3 || to == DType::f8_e4m3) return false;  // those stand under a global scale
  if (to == DType::f32) return true;
  return to == DType::bf16 && from == DType::f8_e8m0;
}

// Groups of `to` that never reach over the end of one of `from`, of n in all; the last of either may be short.
bool nested(int64_t to, int64_t from, int64_t n) { return from >= n || (to <= from && from % to == 0); }

}  // namespace

bool has_grid(const QuantSpec& to, const QuantSpec& from, int64_t out, int64_t in) {
  if (to.grid != from.grid || to.bits != from.bits) return false;
  if (!from.symmetric && to.symmetric) return false;
  return type_holds(to.scale_dtype, from.scale_dtype) && nested(to.group_size(in), from.group_size(in), in) &&
         nested(to.out_group, from.out_group, out);
}

double exact_global(float least, float largest) {
  constexpr int kLargest = 8, kLeast = -9;  // 2^8 = 256 is E4M3's largest power of two, 2^-9 its least value
  const int high = std::ilogb(largest), low = std::ilogb(least);
  constexpr int kLeastGlobal = -126;  // of a normal f32
  if (high - low > kLargest - kLeast || high - kLargest < kLeastGlobal) return 0;
  return std::ldexp(1.0, high - kLargest);
}

QuantizedLinear on_finer_grid(const QuantizedLinear& q, const QuantSpec& to, double global) {
  const int64_t out = q.out(), in = q.in(), groups = to.groups(in), g = to.group_size(in);
  FEWBIT_ASSERT(to.two_level() == q.spec.two_level() ? has_grid(to, q.spec, out, in) : global > 0);
  QuantizedLinear r;
  r.spec = to;
  r.codes = clone_host(q.codes);
  if (q.group_of) r.group_of = clone_host(*q.group_of);
  if (to.activations == ActQuant::tensor) r.input_scale = q.input_scale;
  if (to.two_level()) r.global_scale = global > 0 ? global : *q.global_scale;
  const int64_t rows = (out + to.out_group - 1) / to.out_group, from_groups = q.groups(), from = q.spec.group_size(in);
  r.scales = Tensor::host(DType::f32, {rows, groups});
  if (!to.symmetric) r.zeros = Tensor::host(DType::u8, {out, groups});
  const float* scales = q.scales.as<float>();
  parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t k = 0; k < groups; ++k) {
        const float s = scales[row * to.out_group / q.spec.out_group * from_groups + k * g / from];
        r.scales.as<float>()[row * groups + k] = global > 0 ? static_cast<float>(s / global) : s;
      }
  });
  for (int64_t o = 0; r.zeros && o < out; ++o)
    for (int64_t k = 0; k < groups; ++k)
      r.zeros->as<uint8_t>()[o * groups + k] =
          q.zeros ? q.zeros->as<uint8_t>()[o * from_groups + k * g / from] : static_cast<uint8_t>(q.spec.mid_code());
  return r;
}

}  // namespace fewbit
