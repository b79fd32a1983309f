#pragma once
// HadamardBasis: a randomised orthonormal matrix of any width in which the features of an activation are mixed, so that
// no few of them are much larger than the others (QuaRot: Ashkboos et al., 2024, section 3).
#include <cstdint>
#include <string>
#include <vector>

#include "src/core/tensor.h"

namespace fewbit {

// R = D H [n, n]: D has signs on its diagonal, and H is symmetric in its effect only where it has no core: the
// Kronecker product of a Hadamard matrix of `core` rows with Sylvester's of `run` rows, over sqrt(n). Where n = m 2^k
// has no core that Paley's constructions make of a prime, H is m blocks of Sylvester's with 2^k rows.
class HadamardBasis {
 public:
  // The signs are those of the stream (seed, name); a width of 1 turns nothing. Stops the process unless n >= 1.
  HadamardBasis(int64_t n, uint64_t seed, std::string_view name);

  // Replaces every vector v of n values by v R. Their elements lie `inner` apart: `values` is [outer, n, inner] f32.
  // Of a weight [out, in], inner = 1 turns its inputs (W R) and inner = in its outputs (R^T W). Sums in f32.
  void turn(float* values, int64_t outer, int64_t inner) const;

  int64_t width() const { return n_; }
  std::string str() const;  // "384 = 12 x 32", "64", "86 = 43 blocks of 2"

 private:
  void turn_lanes(float* v, float* room, int64_t lanes) const;  // [n, lanes], in place; room of as much

  int64_t n_ = 1, run_ = 1, core_ = 1, blocks_ = 1;
  std::vector<int8_t> core_signs_{};  // [core, core]
  std::vector<float> signs_{};        // [n]
};

// A Hadamard matrix of m rows, entries 1 and -1, row by row, by Paley's constructions (1933) over the integers modulo a
// prime; empty where neither gives one.
std::vector<int8_t> paley_hadamard(int64_t m);

}  // namespace fewbit
