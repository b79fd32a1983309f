#pragma once
// Vectorised loops over one row of floats, which the CPU halves of the ops are made of. Every sum has a fixed order (64
// partial sums, then a tree), whatever the threads and the machine's vectors.
#include <cstdint>

#include "src/core/half.h"
#include "src/core/tensor.h"

namespace fewbit::cpu {

// y[i] = x[i]; narrow() to bf16 rounds to nearest even. From f32 to f32 they copy: code is written once for both types.
void widen(const bf16* x, float* y, int64_t n);
void narrow(const float* x, bf16* y, int64_t n);
void widen(const float* x, float* y, int64_t n);
void narrow(const float* x, float* y, int64_t n);
// narrow() of many short rows, x_ld and y_ld elements apart, in one call.
void narrow_rows(const float* x, int64_t x_ld, bf16* y, int64_t y_ld, int64_t rows, int64_t n);
void narrow_rows(const float* x, int64_t x_ld, float* y, int64_t y_ld, int64_t rows, int64_t n);

// The sum of a[i] * b[i], in f32.
float dot(const float* a, const float* b, int64_t n);
float dot(const float* a, const bf16* b, int64_t n);
// y[i] += a * x[i], in f32
void axpy(float a, const float* x, float* y, int64_t n);
void axpy(float a, const bf16* x, float* y, int64_t n);
// The same of many rows, `ld` elements apart, bit for bit: out[j] = scale * dot(a, row j of b), and y += a[j] * row j
// of x for one j after the other.
void dots(const float* a, float scale, const float* b, int64_t ld, int64_t rows, int64_t n, float* out);
void dots(const float* a, float scale, const bf16* b, int64_t ld, int64_t rows, int64_t n, float* out);
void add_rows(const float* a, const float* x, int64_t ld, int64_t rows, float* y, int64_t n);
void add_rows(const float* a, const bf16* x, int64_t ld, int64_t rows, float* y, int64_t n);

double sum_of_squares(const float* x, int64_t n);
float max_of(const float* x, int64_t n);  // n > 0; a NaN is seen in x[0] only
// x[i] = exp(x[i] - shift), never below exp(-87), for shift >= x[i]; returns their sum. Relative error of an exp: below
// 3e-7.
double exp_in_place(float* x, float shift, int64_t n);
// The sum of exp(x[i] - shift), as above.
double sum_of_exp(const float* x, float shift, int64_t n);
// y[i] = gate[i] * sigmoid(scale * (gate[i] + cubic * gate[i]^3)) * up[i]: SiLU with (1, 0), GELU's tanh form
// with (2 sqrt(2 / pi), 0.044715). y may be gate or up.
void gated_sigmoid(const float* gate, const float* up, float scale, float cubic, float* y, int64_t n);

// Memory of the calling thread for so many floats, with whatever content its last use left. It stays allocated; each
// slot is one block, valid until the thread asks for more of the same slot.
enum class Scratch : int { x, w, y, scores, slots };
float* scratch(Scratch slot, int64_t floats);

// Calls f with a null pointer of the element type: f32 | bf16. Any other dtype is a defect of the caller.
template <class F>
void for_float_type(DType dtype, F&& f) {
  if (dtype == DType::f32) return f(static_cast<float*>(nullptr));
  if (dtype == DType::bf16) return f(static_cast<bf16*>(nullptr));
  bug("expected f32 or bf16");
}

// out[r, c] = x[r, c] for x [rows, cols] f32 | bf16, whose rows are `ld` elements apart; out is f32, without gaps.
void widen_rows(DType dtype, const void* x, int64_t rows, int64_t cols, int64_t ld, float* out);

}  // namespace fewbit::cpu
