// One key for every block of tokens: the CPU half. A token that completes a block is a task.
#include "kernels/shared_keys/compress_keys.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

template <class T>
struct Tokens {
  const CompressInputs& in;
  const CompressArgs& args;
  const int32_t* positions;
  int64_t len, width;
  const T* tail;  // or null

  // What the token at `position` of sequence s offers, and its gate: among the tokens at hand, or before them.
  std::pair<const T*, const T*> of(int64_t s, int64_t position) const {
    const int64_t i = position - positions[s * len];
    if (i >= 0) return {in.offer.as<T>() + (s * len + i) * width, in.gate.as<T>() + (s * len + i) * width};
    FEWBIT_ASSERT(tail && position >= 0);
    const T* row = tail + (s * args.members() + position % args.members()) * 2 * width;
    return {row, row + width};
  }

  // The mean of the block that ends with `position`, before its norm.
  void mean(int64_t s, int64_t position, int64_t d, std::vector<float>& out) const {
    const int64_t first = position + 1 - args.every, begin = args.overlap ? first - args.every : first;
    std::vector<float> top(at(d), -INFINITY), sum(at(d), 0.f);
    std::fill(out.begin(), out.end(), 0.f);
    const auto each = [&](const auto& f) {
      for (int64_t p = std::max<int64_t>(begin, 0); p <= position; ++p) {
        const int64_t half = args.overlap && p >= first ? d : 0;
        const auto [offer, gate] = of(s, p);
        const float* ape = in.ape.as<float>() + p % args.every * width + half;
        for (int64_t c = 0; c < d; ++c)
          f(at(c), static_cast<float>(offer[half + c]), static_cast<float>(gate[half + c]) + ape[c]);
      }
    };
    each([&](size_t c, float, float g) { top[c] = std::max(top[c], g); });
    each([&](size_t c, float x, float g) {
      const float weight = std::exp(g - top[c]);
      sum[c] += weight;
      out[c] += weight * x;
    });
    for (size_t c = 0; c < out.size(); ++c) out[c] /= sum[c];
  }
};

template <class T>
void norm_and_turn(const CompressInputs& in, float eps, int64_t position, std::vector<float>& x) {
  double squares = 0;
  for (const float f : x) squares += static_cast<double>(f) * f;
  const auto inverse = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(x.size()) + eps));
  for (size_t c = 0; c < x.size(); ++c) x[c] *= inverse * static_cast<float>(in.norm.as<T>()[c]);
  for (size_t i = 0; i < x.size() / 2; ++i) {
    const float angle = static_cast<float>(position) * in.inv_freq.as<float>()[i];
    const float c = std::cos(angle), s = std::sin(angle), u = x[2 * i], v = x[2 * i + 1];
    x[2 * i] = u * c - v * s;
    x[2 * i + 1] = v * c + u * s;
  }
}

}  // namespace

void compress_keys(Exec&, const CompressInputs& in, ConstTensorView positions, int64_t seqs, const CompressArgs& a,
                   TensorView tail, TensorView out) {
  const int64_t d = out.cols(), width = in.offer.cols(), len = out.rows() / seqs, members = a.members();
  const int32_t* where = positions.as<int32_t>();
  for_float_type(out.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const Tokens<T> tokens{in, a, where, len, width, tail.data ? tail.as<T>() : nullptr};
    parallel_for(out.rows(), 1, [&](int64_t t, int64_t) {
      std::vector<float> key(at(d), 0.f);
      if ((where[t] + 1) % a.every == 0) {
        tokens.mean(t / len, where[t], d, key);
        norm_and_turn<T>(in, a.eps, where[t] + 1 - a.every, key);
      }
      narrow(key.data(), out.as<T>() + t * d, d);
    });
    for (int64_t t = 0; tail.data && t < out.rows(); ++t) {
      if (t % len < len - members) continue;  // a later token takes its place
      T* row = tail.as<T>() + (t / len * members + where[t] % members) * 2 * width;
      std::copy_n(in.offer.as<T>() + t * width, width, row);
      std::copy_n(in.gate.as<T>() + t * width, width, row + width);
    }
  });
}

}  // namespace fewbit::cpu
