// The short convolution and the gated delta rule against references in double, whole and in pieces through their
// states.
#include <algorithm>
#include <cmath>

#include "kernels/recurrent/delta_rule.h"
#include "kernels/recurrent/short_conv.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct ConvCase {
  int64_t seqs, len, channels, taps;
  bool bias;
  ConvAct act;
};

std::vector<double> convolved(const ConvCase& c, const Tensor& x, const Tensor& w, const Tensor& bias) {
  const std::vector<double> in = doubles(x), weight = doubles(w), b = doubles(bias);
  std::vector<double> out(in.size());
  for (int64_t s = 0; s < c.seqs; ++s)
    for (int64_t t = 0; t < c.len; ++t)
      for (int64_t ch = 0; ch < c.channels; ++ch) {
        double sum = c.bias ? b[at(ch)] : 0;
        for (int64_t i = 0; i < c.taps; ++i)
          if (const int64_t from = t - c.taps + 1 + i; from >= 0)
            sum += weight[at(ch * c.taps + i)] * in[at((s * c.len + from) * c.channels + ch)];
        out[at((s * c.len + t) * c.channels + ch)] = c.act == ConvAct::silu ? sum / (1 + std::exp(-sum)) : sum;
      }
  return out;
}

FEWBIT_DEVICE_TEST(ShortConv, WholeAndInPieces) {
  for (const DType dtype : kComputeTypes)
    for (const ConvCase c : {ConvCase{2, 9, 24, 4, false, ConvAct::silu}, ConvCase{1, 5, 7, 3, true, ConvAct::none},
                             ConvCase{3, 2, 300, 4, true, ConvAct::silu}, ConvCase{1, 4, 8, 1, false, ConvAct::none}}) {
      const Tensor x = random_normal(dtype, {c.seqs * c.len, c.channels}, 1);
      const Tensor w = random_normal(DType::f32, {c.channels, c.taps}, 2),
                   bias = random_normal(DType::f32, {c.channels}, 3);
      const Tensor dw = ex.to_device(w), db = ex.to_device(bias);
      const ConstTensorView b = c.bias ? db.view() : ConstTensorView{};
      const std::vector<double> expected = convolved(c, x, w, bias);
      const Tensor whole = poisoned(ex, dtype, x.shape());
      short_conv(ex, ex.to_device(x), dw, b, c.seqs, c.act, {}, whole);
      EXPECT_LE(error_of(ex, whole, expected), op_tolerance(dtype)) << c.channels;
      const Tensor found = ex.to_host(whole);
      const Tensor tail = ex.alloc_zeros(dtype, {c.seqs, c.taps - 1, c.channels});
      for (int64_t begin = 0, n = 1; begin < c.len; begin += n, n = 3) {
        const int64_t end = std::min(begin + n, c.len);
        const Tensor y = poisoned(ex, dtype, {c.seqs * (end - begin), c.channels});
        short_conv(ex, ex.to_device(piece(x, c.seqs, begin, end)), dw, b, c.seqs, c.act, tail, y);
        EXPECT_EQ(first_difference(ex.to_host(y), piece(found, c.seqs, begin, end)), "") << c.channels << " " << begin;
      }
    }
}

struct DeltaCase {
  int64_t seqs, len;
  DeltaArgs args;
  bool each;  // a decay for every key channel
};

struct DeltaTensors {
  Tensor qkv, beta, decay, a_log, dt_bias;
  int64_t keys, values;
  DeltaTensors(const DeltaCase& c, DType dtype)
      : keys(c.args.k_heads * c.args.k_dim), values(c.args.v_heads * c.args.v_dim) {
    const int64_t tokens = c.seqs * c.len, gates = c.args.v_heads * (c.each ? c.args.k_dim : 1);
    qkv = random_normal(dtype, {tokens, 2 * keys + values}, 1);
    beta = random_normal(dtype, {tokens, c.args.v_heads}, 2);
    decay = random_normal(dtype, {tokens, gates}, 3);
    a_log = random_normal(DType::f32, {c.args.v_heads}, 4);
    dt_bias = random_normal(DType::f32, {gates}, 5);
  }
  DeltaInputs inputs(const Tensor& x, const Tensor& b, const Tensor& g, const Tensor& a, const Tensor& dt) const {
    return {.q = {x, 0}, .k = {x, keys}, .v = {x, 2 * keys}, .beta = b, .decay = g, .a_log = a, .dt_bias = dt};
  }
};

// True where a GPU takes the whole as products (kernels/recurrent/delta_chunk.cuh).
bool in_chunks(const DeltaCase& c, DType dtype) {
  return dtype == DType::bf16 && c.len >= 32 && !c.each && c.args.k_dim == 128 && c.args.v_dim % 64 == 0;
}

// The state behind the tokens is left in `state`.
std::vector<double> delta_reference(const DeltaCase& c, const DeltaTensors& in, std::vector<double>& state) {
  const auto& [k_heads, v_heads, k_dim, v_dim] = c.args;
  const std::vector<double> qkv = doubles(in.qkv), beta = doubles(in.beta), decay = doubles(in.decay),
                            a_log = doubles(in.a_log), dt = doubles(in.dt_bias);
  const int64_t width = in.qkv.cols(), gates = in.decay.cols(), each = gates / v_heads;
  std::vector<double> out(at(c.seqs * c.len * in.values));
  state.assign(at(c.seqs * v_heads * k_dim * v_dim), 0);
  for (int64_t s = 0; s < c.seqs; ++s)
    for (int64_t h = 0; h < v_heads; ++h) {
      double* S = state.data() + (s * v_heads + h) * k_dim * v_dim;
      for (int64_t t = s * c.len; t < (s + 1) * c.len; ++t) {
        const double* q = qkv.data() + t * width + h / (v_heads / k_heads) * k_dim;
        const double* k = q + in.keys;
        const double* v = qkv.data() + t * width + 2 * in.keys + h * v_dim;
        double qq = 1e-6, kk = 1e-6;
        for (int64_t i = 0; i < k_dim; ++i) qq += q[i] * q[i], kk += k[i] * k[i];
        const double to_q = 1 / std::sqrt(qq * static_cast<double>(k_dim)), to_k = 1 / std::sqrt(kk);
        for (int64_t i = 0; i < k_dim; ++i) {
          const int64_t gate = h * each + (each == 1 ? 0 : i);
          const double g = -std::exp(a_log[at(h)]) * std::log1p(std::exp(decay[at(t * gates + gate)] + dt[at(gate)]));
          for (int64_t j = 0; j < v_dim; ++j) S[i * v_dim + j] *= std::exp(g);
        }
        for (int64_t j = 0; j < v_dim; ++j) {
          double found = 0, o = 0;
          for (int64_t i = 0; i < k_dim; ++i) found += S[i * v_dim + j] * k[i] * to_k;
          const double change = (v[j] - found) / (1 + std::exp(-beta[at(t * v_heads + h)]));
          for (int64_t i = 0; i < k_dim; ++i) {
            S[i * v_dim + j] += k[i] * to_k * change;
            o += S[i * v_dim + j] * q[i] * to_q;
          }
          out[at((t * v_heads + h) * v_dim + j)] = o;
        }
      }
    }
  return out;
}

FEWBIT_DEVICE_TEST(DeltaRule, WholeAndInPieces) {
  for (const DType dtype : kComputeTypes)
    for (const DeltaCase& c : {DeltaCase{2, 19, {2, 4, 32, 32}, false}, DeltaCase{1, 9, {3, 3, 20, 40}, true},
                               DeltaCase{1, 33, {1, 2, 128, 128}, false}, DeltaCase{2, 8, {1, 1, 256, 16}, true},
                               DeltaCase{1, 10, {2, 2, 64, 24}, false}, DeltaCase{2, 150, {1, 2, 32, 48}, false},
                               DeltaCase{1, 131, {2, 2, 64, 64}, true}, DeltaCase{90, 3, {1, 2, 128, 128}, false},
                               DeltaCase{60, 2, {1, 3, 64, 64}, true}, DeltaCase{45, 2, {2, 4, 128, 128}, true}}) {
      const DeltaTensors in(c, dtype);
      const Tensor a = ex.to_device(in.a_log), dt = ex.to_device(in.dt_bias);
      std::vector<double> behind;
      const std::vector<double> expected = delta_reference(c, in, behind);
      const Tensor whole = poisoned(ex, dtype, {c.seqs * c.len, in.values});
      const Tensor x = ex.to_device(in.qkv), b = ex.to_device(in.beta), g = ex.to_device(in.decay);
      delta_rule(ex, in.inputs(x, b, g, a, dt), c.seqs, c.args, {}, whole);
      EXPECT_LE(error_of(ex, whole, expected), op_tolerance(dtype)) << c.args.k_dim << " " << name_of(dtype);
      const Tensor found = ex.to_host(whole);
      const Tensor state = ex.alloc_zeros(DType::f32, {c.seqs, c.args.v_heads, c.args.k_dim, c.args.v_dim});
      for (int64_t begin = 0, n = 1; begin < c.len; begin += n, n = 11) {
        const int64_t end = std::min(begin + n, c.len);
        const Tensor y = poisoned(ex, dtype, {c.seqs * (end - begin), in.values});
        const Tensor px = ex.to_device(piece(in.qkv, c.seqs, begin, end)),
                     pb = ex.to_device(piece(in.beta, c.seqs, begin, end)),
                     pg = ex.to_device(piece(in.decay, c.seqs, begin, end));
        delta_rule(ex, in.inputs(px, pb, pg, a, dt), c.seqs, c.args, state, y);
        if (ex.on_cuda() && !in_chunks(c, dtype)) {
          EXPECT_EQ(first_difference(ex.to_host(y), piece(found, c.seqs, begin, end)), "") << c.args.k_dim;
        } else {
          const Tensor there = piece(found, c.seqs, begin, end);
          EXPECT_LE(error_of(ex, y, doubles(there)), op_tolerance(dtype)) << c.args.k_dim << " " << begin;
        }
      }
      EXPECT_LE(error_of(ex, state, behind), op_tolerance(DType::f32)) << c.args.k_dim << " " << name_of(dtype);
    }
}

// Chunks of whole lengths leave the bits of the whole, and decays that kill every state within a few tokens neither
// overflow nor leave NaN.
TEST(DeltaRule, ChunksOfWholeLengthsAndStrongDecays) {
  Exec ex = Exec::cpu();
  for (const bool each : {false, true}) {
    const DeltaCase c{1, 200, {1, 2, 32, 32}, each};
    DeltaTensors in(c, DType::f32);
    for (int64_t i = 0; i < in.decay.numel(); i += 3) in.decay.as<float>()[i] = 40;
    std::vector<double> behind;
    const std::vector<double> expected = delta_reference(c, in, behind);
    const auto run = [&](int64_t begin, int64_t end, const Tensor& state) {
      const Tensor y = poisoned(ex, DType::f32, {end - begin, in.values});
      const Tensor x = piece(in.qkv, 1, begin, end), b = piece(in.beta, 1, begin, end),
                   g = piece(in.decay, 1, begin, end);
      delta_rule(ex, in.inputs(x, b, g, in.a_log, in.dt_bias), 1, c.args, state, y);
      return clone_host(y);
    };
    const Shape shape{1, 2, 32, 32};
    const Tensor once = ex.alloc_zeros(DType::f32, shape), thrice = ex.alloc_zeros(DType::f32, shape);
    const Tensor whole = run(0, 200, once);
    EXPECT_LE(error_of(ex, whole, expected), op_tolerance(DType::f32)) << each;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 64}, {64, 192}, {192, 200}})
      EXPECT_EQ(first_difference(run(begin, end, thrice), piece(whole, 1, begin, end)), "") << begin;
    EXPECT_EQ(first_difference(once, thrice), "");
  }
}

// Products of bf16 on a GPU: lengths that are and are no multiples of 64, several value heads that read a key head,
// keys that resemble each other (their system is far from the unit matrix), states that go on.
void check_long_prompt(Exec& ex, const DeltaCase& c, bool alike) {
  DeltaTensors in(c, DType::bf16);
  auto* x = in.qkv.as<uint16_t>();
  for (int64_t t = 1; alike && t < in.qkv.rows(); ++t)
    for (int64_t i = 0; i < 2 * in.keys; ++i)
      if (i % 4 != 0) x[t * in.qkv.cols() + i] = x[i];
  std::vector<double> behind;
  const std::vector<double> expected = delta_reference(c, in, behind);
  const Tensor a = ex.to_device(in.a_log), dt = ex.to_device(in.dt_bias);
  const auto run = [&](int64_t begin, int64_t end, TensorView state) {
    const Tensor y = poisoned(ex, DType::bf16, {c.seqs * (end - begin), in.values});
    const Tensor px = ex.to_device(piece(in.qkv, c.seqs, begin, end)),
                 pb = ex.to_device(piece(in.beta, c.seqs, begin, end)),
                 pg = ex.to_device(piece(in.decay, c.seqs, begin, end));
    delta_rule(ex, in.inputs(px, pb, pg, a, dt), c.seqs, c.args, state, y);
    return clone_host(ex.to_host(y));
  };
  const Shape shape{c.seqs, c.args.v_heads, 128, c.args.v_dim};
  const Tensor once = ex.alloc_zeros(DType::f32, shape), twice = ex.alloc_zeros(DType::f32, shape);
  const Tensor whole = run(0, c.len, once);
  const std::string what = std::to_string(c.len) + (alike ? " alike" : "");
  const double error = relative_error(whole, from_doubles(expected, whole.shape()));
  EXPECT_LE(error, tol::kBf16Op) << what;
  EXPECT_LE(error_of(ex, once, behind), ex.on_cuda() ? tol::kBf16Op : tol::kF32Op) << what;
  EXPECT_EQ(first_difference(run(0, c.len, {}), whole), "") << what;
  if (c.len < 96) return;
  EXPECT_EQ(first_difference(run(0, 64, twice), piece(whole, c.seqs, 0, 64)), "") << what;
  EXPECT_EQ(first_difference(run(64, c.len, twice), piece(whole, c.seqs, 64, c.len)), "") << what;
  EXPECT_EQ(first_difference(ex.to_host(once), ex.to_host(twice)), "") << what;
}

const DeltaCase kLongPrompts[] = {{1, 64, {1, 1, 128, 64}, false},
                                  {2, 200, {2, 6, 128, 128}, false},
                                  {3, 77, {1, 5, 128, 192}, false},
                                  {1, 1000, {1, 2, 128, 128}, false}};

FEWBIT_DEVICE_TEST(DeltaRule, LongBf16Prompts) {
  for (const DeltaCase& c : kLongPrompts)
    for (const bool alike : {false, true}) check_long_prompt(ex, c, alike);
}

#ifdef FEWBIT_HAS_CUDA
TEST(DeltaRule, CudaLongBf16PromptsBeforeHopper) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  cuda::force_sm80_path(ex, true);
  for (const DeltaCase& c : kLongPrompts) check_long_prompt(ex, c, true);
}
#endif

// More chunks than the scratch space takes at once (kernels/recurrent/delta_chunk_cuda.cu): 64 heads, 99 chunks. The
// state goes from part to part whether or not the caller keeps it.
TEST(DeltaRule, CudaPromptInParts) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const DeltaCase c{1, 6300, {1, 64, 128, 64}, false};
  const DeltaTensors in(c, DType::bf16);
  const Tensor a = ex.to_device(in.a_log), dt = ex.to_device(in.dt_bias);
  const Tensor state = ex.alloc_zeros(DType::f32, {1, 64, 128, 64});
  const auto run = [&](int64_t begin, int64_t end, TensorView s) {
    const Tensor y = poisoned(ex, DType::bf16, {end - begin, in.values});
    const Tensor px = ex.to_device(piece(in.qkv, 1, begin, end)), pb = ex.to_device(piece(in.beta, 1, begin, end)),
                 pg = ex.to_device(piece(in.decay, 1, begin, end));
    delta_rule(ex, in.inputs(px, pb, pg, a, dt), 1, c.args, s, y);
    return clone_host(ex.to_host(y));
  };
  const Tensor whole = run(0, c.len, {});
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 2048}, {2048, 6300}})
    EXPECT_EQ(first_difference(run(begin, end, state), piece(whole, 1, begin, end)), "") << begin;
}

}  // namespace
}  // namespace fewbit::test
