#pragma once
// Counter-based generator: value i of the stream keyed by (seed, name) is a pure function, so results do not
// depend on the order or the number of threads in which they are drawn. The mixer is splitmix64's finaliser.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "src/core/host_device.h"

namespace fewbit {

FEWBIT_HD constexpr uint64_t mix64(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

constexpr uint64_t hash_name(std::string_view s) {  // FNV-1a, 64 bit
  uint64_t h = 0xcbf29ce484222325ull;
  for (char c : s) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return h;
}

class Rng {
 public:
  constexpr explicit Rng(uint64_t seed, std::string_view name = {}) : key_(mix64(seed ^ hash_name(name))) {}
  constexpr uint64_t at(uint64_t i) const { return mix64(key_ + i * 0xd1342543de82ef95ull); }
  constexpr uint64_t next() { return at(counter_++); }
  // [0, 1)
  constexpr double uniform_at(uint64_t i) const { return static_cast<double>(at(i) >> 11) * 0x1.0p-53; }
  constexpr double uniform() { return uniform_at(counter_++); }
  // [0, n), n > 0; the bias of the multiply is below 2^-32 for n < 2^32
  constexpr uint64_t below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }
  // standard normal, Box-Muller on two counters
  double normal_at(uint64_t i) const {
    const double u = 1.0 - uniform_at(2 * i), v = uniform_at(2 * i + 1);
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }
  double normal() { return normal_at(counter_++); }

 private:
  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace fewbit
