#pragma once
// Vectorised loops over one row of floats: what the CPU halves of the ops are made of. All sums run in a
// fixed order (kLanes partial sums, then a tree), so they do not depend on threads.
#include <cstdint>

#include "src/core/half.h"
#include "src/core/tensor.h"

namespace fewbit::cpu {

void widen(const bf16* x, float* y, int64_t n);
void narrow(const float* x, bf16* y, int64_t n);  // nearest even
void widen(const float* x, float* y, int64_t n);  // copies, so that code can be written once for both types
void narrow(const float* x, float* y, int64_t n);

float dot(const float* a, const float* b, int64_t n);
float dot(const float* a, const bf16* b, int64_t n);
// y[i] += a * x[i]
void axpy(float a, const float* x, float* y, int64_t n);
void axpy(float a, const bf16* x, float* y, int64_t n);

double sum_of_squares(const float* x, int64_t n);
float max_of(const float* x, int64_t n);  // n > 0; a NaN is returned if there is one in front only
// x[i] = exp(x[i] - shift), never below exp(-87); returns their sum. Error of one exp below 3e-7 of it.
double exp_in_place(float* x, float shift, int64_t n);
// sum of exp(x[i] - shift)
double sum_of_exp(const float* x, float shift, int64_t n);
// y[i] = gate[i] * sigmoid(scale * (gate[i] + cubic * gate[i]^3)) * up[i]: SiLU with (1, 0), GELU's tanh form
// with (2 sqrt(2 / pi), 0.044715). y may be gate or up.
void gated_sigmoid(const float* gate, const float* up, float scale, float cubic, float* y, int64_t n);

// Memory of the calling thread that stays for its next use; the content is whatever was left. One address per
// slot.
enum class Scratch : int { x, w, y, scores, slots };
float* scratch(Scratch slot, int64_t floats);

// Calls f with a null pointer of the element type: f32 | bf16. Anything else is a defect of the caller.
template <class F>
void for_float_type(DType dtype, F&& f) {
  if (dtype == DType::f32) return f(static_cast<float*>(nullptr));
  if (dtype == DType::bf16) return f(static_cast<bf16*>(nullptr));
  bug("expected f32 or bf16");
}

// `rows` rows of `cols` elements from element (0, 0) at `x`, `ld` elements apart, as f32 without gaps in
// `out`.
void widen_rows(DType dtype, const void* x, int64_t rows, int64_t cols, int64_t ld, float* out);

}  // namespace fewbit::cpu
