// A mixture of experts on a few tokens, on both devices, against sums in double with the roundings of the contract.
#include "kernels/decode/experts/routed_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/packing.h"
#include "kernels/grids/f8_grid.h"
#include "kernels/model/add.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

enum class Kind : uint8_t { dense, int4, int8_packed, mxfp4, fp8, fp8_fixed, fp8_unrounded, int8 };
constexpr const char* kNames[] = {"dense", "int4", "packed int8", "mxfp4", "fp8", "fp8 fixed", "fp8 unrounded", "int8"};

struct Sizes {
  Kind kind = Kind::dense;
  int experts = 8, top_k = 2;
  int64_t hidden = 256, width = 128, group = 128;
  bool biases = false, zeros = false, gated = true;
  SwigluClamp swiglu{0};
  bool weigh_inputs = false;
  ActKind act = ActKind::silu;
};

// A linear on a device and the values that it stands for.
struct TestLinear {
  ExpertLinear linear;
  Tensor values, bias;  // [out, in] and [out] f32 on the host; no bias: empty
};

RowQuant rounding_of(Kind kind) {
  if (kind == Kind::int8) return {.codes = DType::i8};
  if (kind == Kind::fp8_unrounded) return kUnrounded;
  return {.codes = DType::f8_e4m3, .fixed = kind == Kind::fp8_fixed ? 0.01f : 0.f};
}

class TestMixture {
 public:
  TestMixture(Exec& ex, const Sizes& s) : ex_(ex), s_(s) {
    uint64_t seed = 0;
    for (int e = 0; e < s.experts; ++e) {
      if (s.gated) gate.push_back(linear(s.width, s.hidden, ++seed));
      up.push_back(linear(s.width, s.hidden, ++seed));
      down.push_back(linear(s.hidden, s.width, ++seed));
    }
    mixture = {.act = s.act, .swiglu = s.swiglu, .weigh_inputs = s.weigh_inputs};
    for (const TestLinear& l : gate) mixture.gate.push_back(l.linear);
    for (const TestLinear& l : up) mixture.up.push_back(l.linear);
    for (const TestLinear& l : down) mixture.down.push_back(l.linear);
    EXPECT_EQ(refuses_experts(ex, mixture, s.top_k), "");
    prepare_experts(ex, mixture);
  }

  std::vector<TestLinear> gate, up, down;  // by expert
  ExpertMixture mixture;

 private:
  ConstTensorView keep(Tensor host) { return kept_.emplace_back(ex_.to_device(host)); }

  TestLinear linear(int64_t out, int64_t in, uint64_t seed) {
    TestLinear l;
    if (s_.kind == Kind::dense) {
      Tensor w = random_normal(DType::bf16, {out, in}, seed, 1 / std::sqrt(static_cast<float>(in)));
      l.values = to_f32(w);
      l.linear.w = keep(std::move(w));
    } else if (s_.kind == Kind::int4 || s_.kind == Kind::int8_packed) {
      l = packed(out, in, seed);
    } else if (s_.kind == Kind::mxfp4) {
      l = blocks(out, in, seed);
    } else {
      l = bytes(out, in, seed);
    }
    if (s_.biases) {
      Tensor bias = random_normal(DType::bf16, {out}, seed + 1000);
      l.bias = to_f32(bias);
      l.linear.bias = keep(std::move(bias));
    }
    return l;
  }
  TestLinear packed(int64_t out, int64_t in, uint64_t seed) {
    QuantizedLinear q;
    q.spec = {.bits = s_.kind == Kind::int4 ? 4 : 8, .group = s_.group, .symmetric = !s_.zeros};
    const uint64_t levels = uint64_t{1} << q.spec.bits;
    Rng rng(seed, "codes");
    q.codes = Tensor::host(DType::u8, {out, in});
    for (int64_t i = 0; i < out * in; ++i) q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(levels));
    q.scales = Tensor::host(DType::f32, {out, q.spec.groups(in)});
    const double size = 3.2 / std::sqrt(static_cast<double>(in)) / static_cast<double>(levels);
    for (int64_t i = 0; i < q.scales.numel(); ++i)
      q.scales.as<float>()[i] = round_to_f16(static_cast<float>(size * (0.5 + rng.uniform())));
    if (s_.zeros) {
      q.zeros = Tensor::host(DType::u8, {out, q.spec.groups(in)});
      for (int64_t i = 0; i < q.zeros->numel(); ++i)
        q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(levels));
    }
    MarlinView v{.bits = q.spec.bits, .out = out, .in = in};
    for (const NamedTensor& t : packing_marlin.pack("w", q).tensors)
      (t.name == "w.B" ? v.b : t.name == "w.s" ? v.s : v.z) = keep(clone_host(t.tensor));
    TestLinear l{.linear = {.w = v}, .values = dequantize_reference(q), .bias = {}};
    return l;
  }
  // All codes and scales around the size that keeps values near one; the first rows have the ends of the scales' range.
  TestLinear blocks(int64_t out, int64_t in, uint64_t seed) {
    const Tensor codes = Tensor::host(DType::u8, {out, in}), scales = Tensor::host(DType::f32, {out, in / kFp4Block});
    Rng rng(seed, "codes");
    for (int64_t i = 0; i < codes.numel(); ++i) codes.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(16));
    const int middle = -static_cast<int>(std::log2(in)) / 2 - 2;
    for (int64_t i = 0; i < scales.numel(); ++i)
      scales.as<float>()[i] = std::ldexp(1.f, middle + static_cast<int>(rng.below(3)) - 1);
    scales.as<float>()[0] = std::ldexp(1.f, -127), scales.as<float>()[scales.numel() - 1] = std::ldexp(1.f, -126);
    Tensor tiles = fp4_tiles(codes, scales).value();
    Exec host = Exec::cpu();
    const Tensor values = Tensor::host(DType::bf16, {out, in});
    fp4_values(host, {.tiles = tiles, .in = in}, values);
    TestLinear l{.linear = {}, .values = to_f32(values), .bias = {}};
    l.linear.w = Fp4View{.tiles = keep(std::move(tiles)), .in = in};
    return l;
  }
  TestLinear bytes(int64_t out, int64_t in, uint64_t seed) {
    const bool integer = s_.kind == Kind::int8;
    Tensor codes = Tensor::host(integer ? DType::i8 : DType::f8_e4m3, {out, in}),
           scales = Tensor::host(DType::f32, {out});
    TestLinear l;
    l.values = random_normal(DType::f32, {out, in}, seed, 40);
    Rng rng(seed, "scales");
    for (int64_t o = 0; o < out; ++o)
      scales.as<float>()[o] = static_cast<float>((0.5 + rng.uniform()) / 40 / std::sqrt(static_cast<double>(in)));
    for (int64_t i = 0; i < out * in; ++i) {
      float& value = l.values.as<float>()[i];
      if (integer) {
        value = std::clamp(std::round(value), -128.f, 127.f);
        codes.as<int8_t>()[i] = static_cast<int8_t>(value);
      } else {
        codes.as<uint8_t>()[i] = f8_code(value);
        value = f8_round(value);
      }
      value *= scales.as<float>()[i / in];
    }
    l.linear.w = ByteView{.w = {.codes = keep(std::move(codes)), .scales = keep(std::move(scales))},
                          .input = rounding_of(s_.kind)};
    return l;
  }

  Exec& ex_;
  const Sizes s_;
  std::vector<Tensor> kept_;  // moving a Tensor leaves its data where it is
};

double rounded(double v) { return static_cast<float>(bf16(static_cast<float>(v))); }

// A linear of one row, its output rounded to bf16; the input rounded as the kind says.
std::vector<double> reference_product(const TestLinear& l, std::vector<double> x, Kind kind) {
  if (kind >= Kind::fp8 && kind != Kind::fp8_unrounded) {
    Exec host = Exec::cpu();
    const Tensor row = from_doubles(x, {1, static_cast<int64_t>(x.size())});
    round_rows(host, row, rounding_of(kind), row);
    x = doubles(row);
  }
  std::vector<double> y;
  const float* w = l.values.as<float>();
  for (int64_t o = 0; o < l.values.rows(); ++o, w += x.size()) {
    double sum = l.bias.empty() ? 0 : l.bias.as<float>()[o];
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * w[i];
    y.push_back(rounded(sum));
  }
  return y;
}

double activated(double g, double u, const Sizes& s) {
  if (const auto& [limit, slope, shift] = s.swiglu; limit > 0) {
    g = std::min<double>(g, limit), u = std::clamp<double>(u, -limit, limit);
    return (u + shift) * g / (1 + std::exp(-slope * g));
  }
  if (s.act == ActKind::relu) return std::max(g, 0.) * u;
  if (s.act == ActKind::gelu_tanh) return g / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
  return g / (1 + std::exp(-g)) * u;
}

struct Problem {
  Tensor x, ids, shares;
};
Problem random_problem(const Sizes& s, int64_t tokens, uint64_t seed) {
  Problem p{.x = random_normal(DType::bf16, {tokens, s.hidden}, seed),
            .ids = Tensor::host(DType::i32, {tokens, s.top_k}),
            .shares = Tensor::host(DType::f32, {tokens, s.top_k})};
  Rng rng(seed, "routes");
  std::vector<int32_t> all(static_cast<size_t>(s.experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < s.top_k; ++i) {
      std::swap(all[static_cast<size_t>(i)],
                all[static_cast<size_t>(i) + rng.below(all.size() - static_cast<size_t>(i))]);
      p.ids.as<int32_t>()[t * s.top_k + i] = all[static_cast<size_t>(i)];
      p.shares.as<float>()[t * s.top_k + i] = static_cast<float>(0.1 + rng.uniform());
    }
  return p;
}

std::vector<double> expected_of(const TestMixture& m, const Sizes& s, const Problem& p) {
  const std::vector<double> x = doubles(p.x);
  std::vector<double> out(x.size(), 0);
  for (int64_t t = 0; t < p.x.rows(); ++t)
    for (int64_t i = 0; i < s.top_k; ++i) {
      const auto e = static_cast<size_t>(p.ids.as<int32_t>()[t * s.top_k + i]);
      const double share = p.shares.as<float>()[t * s.top_k + i];
      std::vector<double> row(x.begin() + t * s.hidden, x.begin() + (t + 1) * s.hidden);
      if (s.weigh_inputs)
        for (double& v : row) v = rounded(v * share);
      std::vector<double> u = reference_product(m.up[e], row, s.kind);
      const std::vector<double> g = s.gated ? reference_product(m.gate[e], row, s.kind) : u;
      for (size_t c = 0; c < u.size(); ++c) u[c] = rounded(activated(g[c], u[c], s));
      const std::vector<double> y = reference_product(m.down[e], u, s.kind);
      for (size_t c = 0; c < y.size(); ++c)
        out[static_cast<size_t>(t * s.hidden) + c] += (s.weigh_inputs ? 1 : share) * y[c];
    }
  return out;
}

Tensor run(Exec& ex, const TestMixture& m, const Problem& p) {
  const Tensor x = ex.to_device(p.x), out = poisoned(ex, DType::bf16, p.x.shape());
  few_experts(ex, x, ex.to_device(p.ids), ex.to_device(p.shares), m.mixture, out);
  Tensor found = ex.to_host(out);
  const Tensor sum = ex.to_device(random_normal(DType::bf16, p.x.shape(), 77)),
               expected = ex.to_device(ex.to_host(sum));
  few_experts(ex, x, ex.to_device(p.ids), ex.to_device(p.shares), m.mixture, sum, true);
  add(ex, out, expected, 1);
  EXPECT_EQ(first_difference(ex.to_host(sum), ex.to_host(expected)), "") << "added";
  few_experts(ex, x, ex.to_device(p.ids), ex.to_device(p.shares), m.mixture, x);  // in place
  EXPECT_EQ(first_difference(ex.to_host(x), found), "");
  return found;
}

void matches(Exec& ex, const Sizes& s) {
  const TestMixture m(ex, s);
  const std::string what = fmt::format("{}, {} of {} experts, {} x {}, groups of {}", kNames[static_cast<int>(s.kind)],
                                       s.top_k, s.experts, s.hidden, s.width, s.group);
  for (const int64_t tokens : {1, 2, 4, 9, 16}) {
    const Problem p = random_problem(s, tokens, static_cast<uint64_t>(tokens));
    const Tensor found = run(ex, m, p);
    EXPECT_LE(relative_error(found, from_doubles(expected_of(m, s, p), found.shape())), tol::kBf16Op)
        << what << ", tokens " << tokens;
  }
}

FEWBIT_DEVICE_TEST(FewExperts, EveryKindOfWeightsEqualsTheSumOfTheExperts) {
  for (const Kind kind : {Kind::dense, Kind::int4, Kind::int8_packed, Kind::mxfp4, Kind::fp8, Kind::fp8_fixed,
                          Kind::fp8_unrounded, Kind::int8})
    for (const bool biases : {false, true}) {
      matches(ex, {.kind = kind, .biases = biases});
      matches(ex,
              {.kind = kind, .experts = 128, .top_k = 8, .hidden = 128, .width = 64, .group = 64, .biases = biases});
    }
}

FEWBIT_DEVICE_TEST(FewExperts, EveryGroupOfPackedWeights) {
  for (const Kind kind : {Kind::int4, Kind::int8_packed})
    for (const bool zeros : {false, true}) {
      for (const int64_t group : {32, 64, 128, -1})
        matches(ex, {.kind = kind, .experts = 4, .hidden = 384, .width = 256, .group = group, .zeros = zeros});
      // Rows so long that a warp has several spans of them.
      matches(ex, {.kind = kind, .experts = 4, .hidden = 1088, .width = 192, .group = -1, .zeros = zeros});
      for (const int64_t group : {32, 128})
        matches(ex, {.kind = kind, .experts = 4, .hidden = 1280, .width = 256, .group = group, .zeros = zeros});
    }
}

FEWBIT_DEVICE_TEST(FewExperts, EveryActivationAndWeightedInputs) {
  for (const Kind kind : {Kind::dense, Kind::int4, Kind::mxfp4, Kind::fp8}) {
    matches(ex, {.kind = kind, .biases = true, .swiglu = {0.7f}});      // gpt-oss
    matches(ex, {.kind = kind, .swiglu = {0.7f, 1.f, 0.f}});            // DeepSeek V4
    matches(ex, {.kind = kind, .top_k = 1, .weigh_inputs = true});      // Llama 4
    matches(ex, {.kind = kind, .gated = false, .act = ActKind::relu});  // Nemotron-H
    matches(ex, {.kind = kind, .act = ActKind::gelu_tanh});
  }
}

FEWBIT_DEVICE_TEST(FewExperts, WidthsThatNoPowerOfTwoDivides) {
  matches(ex, {.experts = 4, .hidden = 96, .width = 160});
  matches(ex, {.experts = 4, .top_k = 4, .hidden = 2880, .width = 352, .biases = true, .swiglu = {7}});
  matches(ex, {.kind = Kind::fp8, .experts = 4, .hidden = 448, .width = 192});
  matches(ex, {.kind = Kind::mxfp4, .experts = 4, .hidden = 96, .width = 160});
  matches(ex, {.kind = Kind::mxfp4, .experts = 4, .top_k = 4, .hidden = 2880, .width = 352, .biases = true});
}

// All tokens of a call at one expert, and each at experts of its own.
FEWBIT_DEVICE_TEST(FewExperts, TheBitsOfATokenDoNotDependOnTheOthers) {
  for (const Kind kind : {Kind::dense, Kind::int4, Kind::mxfp4, Kind::fp8, Kind::int8}) {
    const Sizes s{.kind = kind, .experts = 40, .top_k = 2};
    const TestMixture m(ex, s);
    for (const bool together : {true, false}) {
      Problem p = random_problem(s, 16, 5);
      for (int32_t t = 0; t < 16; ++t) {
        p.ids.as<int32_t>()[2 * t] = together ? 33 : 2 * t + 1;
        p.ids.as<int32_t>()[2 * t + 1] = together ? 7 : 2 * t;
      }
      const Tensor all = run(ex, m, p);
      for (int64_t t = 0; t < 16; ++t) {
        const auto row = [&](const Tensor& of) { return clone_host(of.view().row_range(t, t + 1)); };
        const Tensor alone = run(ex, m, {.x = row(p.x), .ids = row(p.ids), .shares = row(p.shares)});
        EXPECT_EQ(first_difference(alone, all.view().row_range(t, t + 1)), "")
            << kNames[static_cast<int>(kind)] << (together ? " together " : " apart ") << t;
      }
    }
  }
}

// A recording reads what stands in its buffers when it is replayed: other tokens, other experts.
TEST(FewExperts, CudaARecordingFollowsTheRouting) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const Kind kind : {Kind::dense, Kind::int4, Kind::mxfp4, Kind::fp8}) {
    const Sizes s{.kind = kind, .experts = 16, .top_k = 4};
    const TestMixture m(ex, s);
    const Problem first = random_problem(s, 3, 1), second = random_problem(s, 3, 2);
    const Tensor x = ex.to_device(first.x), ids = ex.to_device(first.ids), shares = ex.to_device(first.shares);
    const Tensor out = poisoned(ex, DType::bf16, first.x.shape());
    const auto step = [&] { few_experts(ex, x, ids, shares, m.mixture, out); };
    step();  // scratch memory has its size now
    const RecordedGraph graph = ex.record(step);
    for (const Problem* p : {&first, &second, &first}) {
      ex.copy(p->x, x), ex.copy(p->ids, ids), ex.copy(p->shares, shares);
      ex.replay(graph);
      EXPECT_EQ(first_difference(ex.to_host(out), run(ex, m, *p)), "") << kNames[static_cast<int>(kind)];
    }
  }
}

// One token chooses in the kernels of its experts: the bits of route() and few_experts().
void routes_alike(Exec& ex, const Sizes& s, const RouteRule& rule) {
  const TestMixture m(ex, s);
  for (const int64_t tokens : {1, 3}) {
    Tensor host = random_normal(DType::f32, {tokens, s.experts}, static_cast<uint64_t>(s.experts + tokens));
    host.as<float>()[1] = host.as<float>()[s.experts - 1] = 2.5f;  // of two alike the first comes first
    const Tensor x = ex.to_device(random_normal(DType::bf16, {tokens, s.hidden}, 8)), logits = ex.to_device(host);
    const Tensor ids = ex.alloc(DType::i32, {tokens, s.top_k}), shares = ex.alloc(DType::f32, ids.shape());
    const Tensor stream = random_normal(DType::bf16, x.shape(), 9);
    for (const bool add : {false, true}) {
      const Tensor expected = ex.to_device(stream), found = ex.to_device(stream);
      route(ex, logits, rule, ids, shares);
      few_experts(ex, x, ids, shares, m.mixture, expected, add);
      routed_experts(ex, x, logits, rule, ids, shares, m.mixture, found, add);
      EXPECT_EQ(first_difference(ex.to_host(found), ex.to_host(expected)), "")
          << kNames[static_cast<int>(s.kind)] << ", " << s.top_k << " of " << s.experts << ", " << s.hidden << " x "
          << s.width << ", " << tokens << " tokens" << (add ? ", added" : "");
    }
  }
}

FEWBIT_DEVICE_TEST(RoutedExperts, AreThoseOfTheRouting) {
  const SwigluClamp clamp{7.f};
  for (const RouteRule& rule :
       {RouteRule{}, RouteRule{.renormalise = false, .scaling = 2.5f}, RouteRule{.score = RouteScore::sigmoid}}) {
    routes_alike(ex, {.kind = Kind::mxfp4, .biases = true, .swiglu = clamp}, rule);
    routes_alike(ex, {.kind = Kind::mxfp4, .experts = 70, .top_k = 7, .hidden = 416, .width = 352}, rule);
    routes_alike(ex, {.kind = Kind::int4}, rule);
  }
  routes_alike(ex, {.kind = Kind::mxfp4, .experts = 4, .top_k = 1, .hidden = 32, .width = 96}, {});
}

// Rings that come round, and parts of k of several sizes.
TEST(RoutedExperts, CudaOfManyRecords) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  routes_alike(ex, {.kind = Kind::mxfp4, .experts = 3, .hidden = 1184, .width = 3744, .biases = true}, {});
}

TEST(FewExperts, CudaRefusesExpertsThatDiffer) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const TestMixture a(ex, {.kind = Kind::dense}), b(ex, {.kind = Kind::int4});
  ExpertMixture mixed{.gate = a.mixture.gate, .up = a.mixture.up, .down = b.mixture.down};
  EXPECT_EQ(refuses_experts(ex, mixed, 2), "") << "downs of another kind than gates";
  EXPECT_NE(refuses_experts(ex, mixed, 40).find("40 experts"), std::string::npos);
  mixed.up[3] = b.mixture.up[3];
  EXPECT_NE(refuses_experts(ex, mixed, 2).find("differ"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
