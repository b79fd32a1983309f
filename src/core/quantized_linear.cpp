#include "src/core/quantized_linear.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "src/core/half.h"
#include "src/core/hash.h"
#include "src/core/parallel.h"
#include "src/core/walsh_hadamard.h"

namespace fewbit {

std::string QuantSpec::str() const {
  std::string s;
  if (grid == Grid::f4_e2m1) {
    s = two_level() ? "nvfp4" : scale_dtype == DType::f8_e8m0 ? "mxfp4" : "fp4";
    if (group != (two_level() ? kNvfp4 : kMxfp4).group || s == "fp4") s += " g" + std::to_string(group);
  } else {
    s = grid == Grid::integer ? "int" + std::to_string(bits) : "fp8";
    if (out_group == 1)
      s += group == -1 ? " gch" : " g" + std::to_string(group);
    else
      s += group == -1 ? " tensor" : " block" + std::to_string(out_group);
    if (out_group != 1 && group != -1 && group != out_group) (s += 'x') += std::to_string(group);
  }
  if (grid == Grid::integer) s += symmetric ? " sym" : " asym";
  if (activations != ActQuant::none) s += activations == ActQuant::token ? " acts=token" : " acts=tensor";
  if (activations == ActQuant::token && act_bits != 8) s += std::to_string(act_bits);
  if (act_clip != 100) {
    s += std::string(" clip=0.") + (act_clip < 10 ? "0" : "");
    s += std::to_string(act_clip % 10 == 0 ? act_clip / 10 : act_clip);
  }
  return s;
}

double QuantSpec::bits_per_weight(int64_t in) const {
  const double per_group = 8.0 * static_cast<double>(bytes_of(scale_dtype)) / static_cast<double>(out_group) +
                           (symmetric || grid != Grid::integer ? 0.0 : bits);
  return bits + per_group * static_cast<double>(groups(in)) / static_cast<double>(in);
}

float representable_scale(float s, DType dtype) {
  if (!std::isfinite(s)) return s;
  switch (dtype) {
    case DType::f16: {
      // Below the least normal f16 a scale loses bits fast, and at 0 the group is lost: floor it there.
      const float floor = 6.103515625e-05f;
      const float a = std::clamp(std::fabs(s), floor, 65504.f);
      return std::copysign(round_to_f16(a), s);
    }
    case DType::bf16:
      return std::copysign(round_to_bf16(std::max(std::fabs(s), 1.17549435e-38f)), s);
    case DType::f8_e4m3:
      return f8_e4m3_to_f32(f32_to_f8_e4m3_saturated(std::max(std::fabs(s), 0x1p-9f)));
    case DType::f8_e8m0:
      return f8_e8m0_to_f32(f32_to_f8_e8m0(s));
    default:
      return std::copysign(std::max(std::fabs(s), 1.17549435e-38f), s);
  }
}

double nvfp4_global_scale(float absmax) {
  if (!(absmax > 0)) return 1;
  int exponent = 0;
  const double mantissa = std::frexp(absmax / (448.0 * 6.0), &exponent);
  return std::ldexp(1.0, mantissa == 0.5 ? exponent - 1 : exponent);
}

namespace {
// Lowers `first`, which other threads lower too, to `at` where that comes before it.
void lower_to(std::atomic<int64_t>& first, int64_t at) {
  for (int64_t seen = first; at < seen && !first.compare_exchange_weak(seen, at);) {
  }
}

// The first of n codes whose bits under `mask` are above `top`; n when there is none. Whole chunks are judged
// by their maximum, which the compiler turns into vector instructions.
int64_t first_above(const uint8_t* codes, int64_t n, int top, uint8_t mask = 0xff) {
  std::atomic<int64_t> first{n};
  parallel_for(n, 1 << 20, [&](int64_t begin, int64_t end) {
    uint8_t largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max<uint8_t>(largest, codes[i] & mask);
    if (largest <= top) return;
    lower_to(first, std::find_if(codes + begin, codes + end, [&](uint8_t c) { return (c & mask) > top; }) - codes);
  });
  return first;
}

// Whether a file's type of scale holds s.
bool holds(DType dtype, float s) {
  switch (dtype) {
    case DType::f16:
      return round_to_f16(s) == s;
    case DType::bf16:
      return round_to_bf16(s) == s;
    case DType::f8_e4m3:
      return s >= 0 && f8_e4m3_to_f32(f32_to_f8_e4m3_saturated(s)) == s;
    case DType::f8_e8m0:
      return f8_e8m0_to_f32(f32_to_f8_e8m0(s)) == s;
    default:
      return true;
  }
}

// "" for a positive finite multiplier.
std::string check_multiplier(double s, const char* what) {
  if (s > 0 && std::isfinite(s)) return "";
  return std::string("the ") + what + " is " + std::to_string(s);
}

// The scales that stand beside scales: of static activations and of the second level.
std::string check_multipliers(const QuantizedLinear& q) {
  if (q.spec.activations != ActQuant::tensor && q.input_scale) return "activations that are not static carry a scale";
  if (q.spec.activations == ActQuant::tensor && !q.input_scale) return "static activations lack their scale";
  if (q.spec.two_level() != q.global_scale.has_value())
    return q.global_scale ? "scales of one level carry a global scale" : "the global scale is missing";
  if (q.input_scale)
    if (std::string what = check_multiplier(*q.input_scale, "scale of the activations"); !what.empty()) return what;
  return q.global_scale ? check_multiplier(*q.global_scale, "global scale") : "";
}

// E4M3 without its sign: 0x7e is 448, 0x7f is NaN.
int64_t first_nan(const uint8_t* codes, int64_t n) { return first_above(codes, n, 0x7e, 0x7f); }

// The first scale that is not finite or not a value of the type; their number where there is none.
int64_t first_unheld(const Tensor& scales, DType type) {
  const int64_t n = scales.numel();
  std::atomic<int64_t> first{n};
  parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
    const float* s = scales.as<float>();
    const float* bad = std::find_if(s + begin, s + end, [&](float v) { return !std::isfinite(v) || !holds(type, v); });
    if (bad != s + end) lower_to(first, bad - s);
  });
  return first;
}
}  // namespace

std::string check(const QuantizedLinear& q) {
  const QuantSpec& spec = q.spec;
  if (q.codes.shape().rank() != 2) return "codes are not a matrix";
  const int64_t out = q.out(), in = q.in(), groups = spec.groups(in);
  if (spec.turn < 0 || (spec.turn & (spec.turn - 1)) != 0 || (spec.turn > 0 && in % spec.turn != 0))
    return "matrices of " + std::to_string(spec.turn) + " inputs cannot turn " + std::to_string(in);
  const int64_t scale_rows = (out + spec.out_group - 1) / spec.out_group;
  if (!(q.scales.shape() == Shape{scale_rows, groups}))
    return "scales have shape " + q.scales.shape().str() + ", expected " + Shape{scale_rows, groups}.str();
  if (q.codes.dtype() != DType::u8 || q.scales.dtype() != DType::f32) return "codes must be u8 and scales f32";
  if (spec.symmetric == q.zeros.has_value() && spec.grid == Grid::integer)
    return spec.symmetric ? "a symmetric grid carries zero points" : "an asymmetric grid lacks zero points";
  if (q.zeros && !(q.zeros->shape() == Shape{out, groups})) return "zeros have shape " + q.zeros->shape().str();
  const uint8_t* c = q.codes.as<uint8_t>();
  if (spec.grid != Grid::f8_e4m3) {
    const int top = spec.max_code();
    const int64_t bad = first_above(c, out * in, top);
    if (bad < out * in)
      return "code " + std::to_string(c[bad]) + " at element " + std::to_string(bad) + " exceeds the grid";
    if (q.zeros)
      for (int64_t i = 0; i < q.zeros->numel(); ++i)
        if (q.zeros->as<uint8_t>()[i] > top) return "a zero point exceeds the grid";
  } else if (const int64_t nan = first_nan(c, out * in); nan < out * in) {
    return "the code at element " + std::to_string(nan) + " is not a number";
  }
  if (std::string what = check_multipliers(q); !what.empty()) return what;
  if (const int64_t i = first_unheld(q.scales, spec.scale_dtype); i < q.scales.numel())
    return "scale " + std::to_string(i) +
           (std::isfinite(q.scales.as<float>()[i])
                ? " is not representable in " + std::string(name_of(spec.scale_dtype))
                : " is not finite");
  if (q.group_of) {
    if (!(q.group_of->shape() == Shape{in})) return "group_of has shape " + q.group_of->shape().str();
    for (int64_t i = 0; i < in; ++i) {
      const int32_t g = q.group_of->as<int32_t>()[i];
      if (g < 0 || g >= groups) return "group index " + std::to_string(g) + " is out of range";
    }
  }
  return "";
}

void validate(const QuantizedLinear& q) {
  if (const std::string what = check(q); !what.empty()) bug("quantized linear: " + what);
}

namespace {

// What a code stands for before its scale, for every code of the grid; zeros are taken off besides.
std::array<float, 256> levels_of(const QuantSpec& spec) {
  std::array<float, 256> level{};
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    level[static_cast<size_t>(c)] = spec.grid == Grid::f8_e4m3   ? f8_e4m3_to_f32(code)
                                    : spec.grid == Grid::f4_e2m1 ? f4_e2m1_to_f32(code & 15)
                                                                 : static_cast<float>(c);
  }
  return level;
}

// Each run of the row by the orthonormal Hadamard matrix of Sylvester.
void turn_runs(float* row, int64_t in, int64_t run) {
  const float scale = 1 / std::sqrt(static_cast<float>(run));
  for (float* x = row; x < row + in; x += run) walsh_hadamard(x, run);
  for (int64_t i = 0; i < in; ++i) row[i] *= scale;
}

}  // namespace

Tensor dequantize_reference(const QuantizedLinear& q) {
  const int64_t out = q.out(), in = q.in(), groups = q.groups(), g = q.spec.group_size(in);
  Tensor w = Tensor::host(DType::f32, {out, in});
  const int32_t* group_of = q.group_of ? q.group_of->as<int32_t>() : nullptr;
  const std::array<float, 256> levels = levels_of(q.spec);
  const float mid = q.spec.grid == Grid::integer ? static_cast<float>(q.spec.mid_code()) : 0.f;
  const double global = q.global_scale.value_or(1.0);
  parallel_for(out, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const uint8_t* codes = q.codes.as<uint8_t>() + o * in;
      const float* scales = q.scales.as<float>() + (o / q.spec.out_group) * groups;
      float* row = w.as<float>() + o * in;
      for (int64_t i = 0; i < in; ++i) {
        const int64_t k = group_of ? group_of[i] : i / g;
        const float zero = q.zeros ? static_cast<float>(q.zeros->as<uint8_t>()[o * groups + k]) : mid;
        row[i] = (levels[codes[i]] - zero) * static_cast<float>(scales[k] * global);
      }
      if (q.spec.turn) turn_runs(row, in, q.spec.turn);
    }
  });
  return w;
}

std::string content_hash(const QuantizedLinear& q) {
  Hasher h;
  h.add(q.codes.view().data, static_cast<size_t>(q.codes.bytes()));
  h.add(q.scales.view().data, static_cast<size_t>(q.scales.bytes()));
  if (q.zeros) h.add(q.zeros->view().data, static_cast<size_t>(q.zeros->bytes()));
  if (q.group_of) h.add(q.group_of->view().data, static_cast<size_t>(q.group_of->bytes()));
  for (const auto& multiplier : {q.input_scale, q.global_scale})
    if (multiplier) h.add(&*multiplier, sizeof(double));
  return h.hex();
}

std::optional<Tensor> group_order(const QuantizedLinear& q) {
  const int64_t in = q.in(), group = q.spec.group_size(in);
  if (!q.group_of || in % group != 0) return std::nullopt;
  const int32_t* group_of = q.group_of->as<int32_t>();
  Tensor order = Tensor::host(DType::i32, {in});
  std::vector<int64_t> next(static_cast<size_t>(q.groups()));
  for (size_t g = 0; g < next.size(); ++g) next[g] = static_cast<int64_t>(g) * group;
  for (int64_t i = 0; i < in; ++i) {
    const auto g = static_cast<size_t>(group_of[i]);
    if (next[g] == static_cast<int64_t>(g + 1) * group) return std::nullopt;
    order.as<int32_t>()[next[g]++] = static_cast<int32_t>(i);
  }
  return order;
}

std::optional<OrderedLinear> in_group_order(const QuantizedLinear& q) {
  std::optional<Tensor> order = group_order(q);
  if (!order) return std::nullopt;
  QuantizedLinear ordered = clone(q);
  ordered.group_of.reset();
  const int64_t in = q.in();
  const int32_t* from = order->as<int32_t>();
  parallel_for(q.out(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t i = 0; i < in; ++i)
        ordered.codes.as<uint8_t>()[o * in + i] = q.codes.as<uint8_t>()[o * in + from[i]];
  });
  return OrderedLinear{.linear = std::move(ordered), .order = std::move(*order)};
}

QuantizedLinear clone(const QuantizedLinear& q) {
  QuantizedLinear c;
  c.spec = q.spec;
  c.codes = clone_host(q.codes);
  c.scales = clone_host(q.scales);
  if (q.zeros) c.zeros = clone_host(*q.zeros);
  if (q.group_of) c.group_of = clone_host(*q.group_of);
  c.input_scale = q.input_scale;
  c.global_scale = q.global_scale;
  return c;
}

}  // namespace fewbit
