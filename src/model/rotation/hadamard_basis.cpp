#include "src/model/rotation/hadamard_basis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/rng.h"
#include "src/core/walsh_hadamard.h"

namespace fewbit {
namespace {

constexpr int64_t kLargestCore = 512;  // a vector is multiplied by its core as by any matrix
constexpr int64_t kLanes = 16;         // vectors that lie side by side are turned together

bool is_prime(int64_t q) {
  if (q < 3 || q % 2 == 0) return false;
  for (int64_t d = 3; d * d <= q; d += 2)
    if (q % d == 0) return false;
  return true;
}

// [q]: 1 for squares modulo q, -1 for the others, 0 for 0.
std::vector<int8_t> quadratic_character(int64_t q) {
  std::vector<int8_t> chi(static_cast<size_t>(q), -1);
  chi[0] = 0;
  for (int64_t i = 1; i < q; ++i) chi[static_cast<size_t>(i * i % q)] = 1;
  return chi;
}

// The matrix of Jacobsthal with a border, which is of size q + 1: its first row is 0, 1, 1 …, its first column 0 and
// then `sign`.
std::vector<int8_t> bordered(int64_t q, int8_t sign) {
  const std::vector<int8_t> chi = quadratic_character(q);
  const int64_t m = q + 1;
  std::vector<int8_t> s(static_cast<size_t>(m * m), 0);
  for (int64_t i = 0; i < q; ++i) {
    s[static_cast<size_t>(i + 1)] = 1;
    s[static_cast<size_t>((i + 1) * m)] = sign;
    for (int64_t j = 0; j < q; ++j)
      s[static_cast<size_t>((i + 1) * m + j + 1)] = chi[static_cast<size_t>((i - j + q) % q)];
  }
  return s;
}

// q = 3 mod 4: S + I of the skew S.
std::vector<int8_t> paley_first(int64_t q) {
  std::vector<int8_t> h = bordered(q, -1);
  for (int64_t i = 0; i <= q; ++i) h[static_cast<size_t>(i * (q + 1) + i)] = 1;
  return h;
}

// q = 1 mod 4: every 0 of the symmetric S becomes [1 -1; -1 -1], every other s becomes s [1 1; 1 -1].
std::vector<int8_t> paley_second(int64_t q) {
  const std::vector<int8_t> s = bordered(q, 1);
  const int64_t half = q + 1, m = 2 * half;
  std::vector<int8_t> h(static_cast<size_t>(m * m));
  for (int64_t i = 0; i < half; ++i)
    for (int64_t j = 0; j < half; ++j) {
      const int8_t v = s[static_cast<size_t>(i * half + j)];
      const auto put = [&](int64_t a, int64_t b, int value) {
        h[static_cast<size_t>((2 * i + a) * m + 2 * j + b)] = static_cast<int8_t>(value);
      };
      put(0, 0, v == 0 ? 1 : v);
      put(0, 1, v == 0 ? -1 : v);
      put(1, 0, v == 0 ? -1 : v);
      put(1, 1, v == 0 ? -1 : -v);
    }
  return h;
}

}  // namespace

std::vector<int8_t> paley_hadamard(int64_t m) {
  if (m % 4 != 0) return {};
  if (const int64_t q = m - 1; is_prime(q)) return paley_first(q);  // q = 3 mod 4, because 4 divides m
  if (const int64_t q = m / 2 - 1; q % 4 == 1 && is_prime(q)) return paley_second(q);
  return {};
}

HadamardBasis::HadamardBasis(int64_t n, uint64_t seed, std::string_view name) : n_(n) {
  FEWBIT_ASSERT(n >= 1);
  run_ = n & -n;
  const int64_t odd = n / run_;
  if (odd > 1) {
    blocks_ = odd;
    for (int64_t power = 4; power <= run_ && odd * power <= kLargestCore && blocks_ > 1; power *= 2)
      if (core_signs_ = paley_hadamard(odd * power); !core_signs_.empty()) {
        core_ = odd * power;
        run_ /= power;
        blocks_ = 1;
      }
  }
  const Rng rng(seed, name);
  signs_.resize(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    signs_[static_cast<size_t>(i)] = rng.at(static_cast<uint64_t>(i)) >> 63 && n > 1 ? -1.f : 1.f;
}

std::string HadamardBasis::str() const {
  if (core_ > 1) return fmt::format("{} = {} x {}", n_, core_, run_);
  return blocks_ > 1 ? fmt::format("{} = {} blocks of {}", n_, blocks_, run_) : fmt::format("{}", n_);
}

void HadamardBasis::turn_lanes(float* v, float* room, int64_t lanes) const {
  const int64_t span = run_ * lanes, parts = n_ / run_;
  for (int64_t i = 0; i < n_; ++i)
    for (int64_t l = 0; l < lanes; ++l) v[i * lanes + l] *= signs_[static_cast<size_t>(i)];
  for (int64_t part = 0; part < parts; ++part) walsh_hadamard(v + part * span, run_, lanes, lanes);
  const float scale = 1 / std::sqrt(static_cast<float>(core_ * run_));
  if (core_ == 1) {
    for (int64_t i = 0; i < n_ * lanes; ++i) v[i] *= scale;
    return;
  }
  std::copy_n(v, n_ * lanes, room);
  std::fill_n(v, n_ * lanes, 0.f);
  for (int64_t from = 0; from < core_; ++from)
    for (int64_t to = 0; to < core_; ++to) {
      const float factor = core_signs_[static_cast<size_t>(from * core_ + to)] > 0 ? scale : -scale;
      const float* a = room + from * span;
      float* b = v + to * span;
      for (int64_t i = 0; i < span; ++i) b[i] += factor * a[i];
    }
}

void HadamardBasis::turn(float* values, int64_t outer, int64_t inner) const {
  const int64_t strips = (inner + kLanes - 1) / kLanes;
  parallel_for(outer * strips, 4, [&](int64_t begin, int64_t end) {
    std::vector<float> lanes(static_cast<size_t>(2 * n_ * kLanes));
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t first = strip % strips * kLanes, width = std::min(kLanes, inner - first);
      float* at = values + strip / strips * n_ * inner + first;
      for (int64_t i = 0; i < n_; ++i) std::copy_n(at + i * inner, width, lanes.data() + i * width);
      turn_lanes(lanes.data(), lanes.data() + n_ * width, width);
      for (int64_t i = 0; i < n_; ++i) std::copy_n(lanes.data() + i * width, width, at + i * inner);
    }
  });
}

}  // namespace fewbit
