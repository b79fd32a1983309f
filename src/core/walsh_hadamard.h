#pragma once
#include <cstdint>

namespace fewbit {

// The stages of the fast Walsh-Hadamard transform of `run` (a power of two) vectors of `width` values, `stride` apart:
// sums and differences in f32, not scaled; 1 / sqrt(run) of them is Sylvester's orthonormal matrix times the vectors.
inline void walsh_hadamard(float* x, int64_t run, int64_t stride = 1, int64_t width = 1) {
  for (int64_t half = 1; half < run; half *= 2)
    for (int64_t first = 0; first < run; first += 2 * half)
      for (int64_t i = first; i < first + half; ++i) {
        float *a = x + i * stride, *b = a + half * stride;
        for (int64_t c = 0; c < width; ++c) {
          const float u = a[c], v = b[c];
          a[c] = u + v;
          b[c] = u - v;
        }
      }
}

}  // namespace fewbit
