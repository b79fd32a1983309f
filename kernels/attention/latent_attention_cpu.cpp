// Latent attention on the CPU: a head of a sequence is a task, its queries go through two products in blocks. Operands
// are widened to f32 head by head; latents, which all heads share, once.
#include "kernels/attention/latent_attention.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit {

void check_latent(const LatentQueries& q, const LatentArgs& a, int64_t seqs, ConstTensorView out) {
  const int64_t tokens = out.rows();
  FEWBIT_ASSERT(a.heads > 0 && a.nope > 0 && a.rope > 0 && a.value > 0 && a.rank > 0);
  FEWBIT_ASSERT(seqs > 0 && tokens % seqs == 0 && out.cols() == a.heads * a.value);
  FEWBIT_ASSERT(q.nope.rows() == tokens && q.nope.cols() == a.heads * a.nope && q.nope.dtype == out.dtype);
  FEWBIT_ASSERT(q.rope.rows() == tokens && q.rope.cols() == a.heads * a.rope && q.rope.dtype == out.dtype);
  FEWBIT_ASSERT(!q.chosen.data || (q.chosen.dtype == DType::i32 && q.chosen.rows() == tokens));
}

namespace cpu {
namespace {

constexpr int64_t kQueryBlock = 128;  // queries of a product

size_t at(int64_t i) { return static_cast<size_t>(i); }

// f32 rows, `ld` elements apart.
struct Floats {
  const float* data = nullptr;
  int64_t ld = 0;
};

// Columns [column, column + cols) of rows [row, row + rows): in place where they are f32 already, else in `room`.
Floats as_f32(ConstTensorView t, int64_t row, int64_t rows, int64_t column, int64_t cols, std::vector<float>& room) {
  const int64_t ld = t.shape[t.shape.rank() - 1];
  const void* first = static_cast<const char*>(t.data) + (row * ld + column) * bytes_of(t.dtype);
  if (t.dtype == DType::f32) return {static_cast<const float*>(first), ld};
  room.resize(at(rows * cols));
  widen_rows(t.dtype, first, rows, cols, ld, room.data());
  return {room.data(), cols};
}

// The first `seen` latents of a sequence.
Floats latents_of(const LatentCache& cache, int64_t sequence, int64_t seen, int64_t rank, std::vector<float>& room) {
  const int64_t first = sequence * cache.latent.shape[1];
  if (!cache.scales.data) return as_f32(cache.latent, first, seen, 0, rank, room);
  room.resize(at(seen * rank));
  const int64_t groups = latent_groups(rank);
  const uint8_t* codes = cache.latent.as<uint8_t>() + first * rank;
  const float* scales = cache.scales.as<float>() + first * groups;
  parallel_for(seen, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t c = 0; c < rank; ++c)
        room[at(t * rank + c)] = f8_e4m3_to_f32(codes[t * rank + c]) * scales[t * groups + c / kLatentGroup];
  });
  return {room.data(), rank};
}

// The scores of one query over keys [0, n) become weights, which are not yet divided by the sum that is returned; 0
// where a key is not seen. `chosen`: `choices` positions, ended early by -1; null: all up to `position`.
double softmax(float* scores, int64_t n, int64_t position, const int32_t* chosen, int64_t choices) {
  const int64_t visible = position + 1;
  double sum = 0;
  if (!chosen) {
    sum = exp_in_place(scores, max_of(scores, visible), visible);
  } else {
    std::vector<float> own;
    int64_t count = 0;
    while (count < choices && chosen[count] >= 0) {
      FEWBIT_ASSERT(chosen[count] <= position);
      own.push_back(scores[chosen[count++]]);
    }
    FEWBIT_ASSERT(count > 0);
    sum = exp_in_place(own.data(), max_of(own.data(), count), count);
    std::fill_n(scores, visible, 0.f);
    for (int64_t i = 0; i < count; ++i) scores[chosen[i]] = own[at(i)];
  }
  std::fill(scores + visible, scores + n, 0.f);
  return sum;
}

// The queries [q0, q1) of a sequence with the keys [0, n) that any of them sees, and what they look at.
struct Block {
  int64_t q0, q1, n;
  const int32_t* positions;  // of the sequence's queries; null: query i stands at i
  ConstTensorView chosen;
  int64_t first_row;  // of the sequence in `chosen`
  int64_t position(int64_t i) const { return positions ? positions[i] : i; }
};

// rows [q1 - q0, cols] = sum of weights times the rows of `values`, divided by the sum of the weights; `scores` goes.
void weigh(const Block& b, std::vector<float>& scores, const Floats& values, int64_t cols, float* rows) {
  const int64_t choices = b.chosen.data ? b.chosen.cols() : 0;
  std::vector<double> sums(at(b.q1 - b.q0));
  for (int64_t i = b.q0; i < b.q1; ++i) {
    const int32_t* own = choices > 0 ? b.chosen.as<int32_t>() + (b.first_row + i) * choices : nullptr;
    sums[at(i - b.q0)] = softmax(scores.data() + (i - b.q0) * b.n, b.n, b.position(i), own, choices);
  }
  blas::gemm(CblasNoTrans, CblasNoTrans, b.q1 - b.q0, cols, b.n, 1.f, scores.data(), b.n, values.data, values.ld, 0.f,
             rows, cols);
  for (int64_t i = 0; i < b.q1 - b.q0; ++i) {
    const auto inverse = static_cast<float>(1 / sums[at(i)]);
    for (int64_t c = 0; c < cols; ++c) rows[i * cols + c] *= inverse;
  }
}

// Calls f for blocks of the queries of a sequence that begins at row `first_row`.
template <class F>
void for_blocks(int64_t len, int64_t first_row, const int32_t* positions, ConstTensorView chosen, int64_t keys, F&& f) {
  for (int64_t q0 = 0; q0 < len; q0 += kQueryBlock) {
    Block b{q0, std::min(len, q0 + kQueryBlock), 0, positions, chosen, first_row};
    for (int64_t i = b.q0; i < b.q1; ++i) b.n = std::max(b.n, b.position(i) + 1);
    FEWBIT_ASSERT(b.n <= keys);
    f(b);
  }
}

// scores = scale a b^T, or += that
void score(const Block& b, float scale, const Floats& q, const Floats& k, int64_t d, float beta,
           std::vector<float>& scores) {
  scores.resize(at((b.q1 - b.q0) * b.n));
  blas::gemm(CblasNoTrans, CblasTrans, b.q1 - b.q0, b.n, d, scale, q.data, q.ld, k.data, k.ld, beta, scores.data(),
             b.n);
}

void store(const Block& b, const std::vector<float>& rows, int64_t cols, int64_t head, TensorView out) {
  for_float_type(out.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for (int64_t i = b.q0; i < b.q1; ++i)
      narrow(rows.data() + (i - b.q0) * cols, out.as<T>() + (b.first_row + i) * out.cols() + head * cols, cols);
  });
}

}  // namespace

void latent_attention(Exec&, const LatentQueries& q, ConstTensorView kv, ConstTensorView k_rope, int64_t seqs,
                      const LatentArgs& a, TensorView out) {
  const int64_t len = out.rows() / seqs, each = a.nope + a.value;
  parallel_for(seqs * a.heads, 1, [&](int64_t task, int64_t) {
    blas::use_one_thread();
    const int64_t first = task / a.heads * len, h = task % a.heads;
    std::vector<float> room[5], scores, rows;
    const Floats k = as_f32(kv, first, len, h * each, a.nope, room[0]),
                 v = as_f32(kv, first, len, h * each + a.nope, a.value, room[1]),
                 shared = as_f32(k_rope, first, len, 0, a.rope, room[2]);
    for_blocks(len, first, nullptr, q.chosen, len, [&](const Block& b) {
      const int64_t n = b.q1 - b.q0;
      score(b, a.scale, as_f32(q.nope, first + b.q0, n, h * a.nope, a.nope, room[3]), k, a.nope, 0, scores);
      score(b, a.scale, as_f32(q.rope, first + b.q0, n, h * a.rope, a.rope, room[4]), shared, a.rope, 1, scores);
      rows.resize(at(n * a.value));
      weigh(b, scores, v, a.value, rows.data());
      store(b, rows, a.value, h, out);
    });
  });
}

void latent_attention_cached(Exec&, const LatentQueries& q, ConstTensorView w, ConstTensorView positions,
                             const LatentCache& cache, const LatentArgs& a, TensorView out) {
  const int64_t batch = cache.latent.shape[0], capacity = cache.latent.shape[1], len = out.rows() / batch;
  const int32_t* where = positions.as<int32_t>();
  for (int64_t s = 0; s < batch; ++s) {
    const int64_t seen = *std::max_element(where + s * len, where + (s + 1) * len) + 1;
    FEWBIT_ASSERT(seen <= capacity && *std::min_element(where + s * len, where + (s + 1) * len) >= 0);
    std::vector<float> latents, turned;
    const Floats latent = latents_of(cache, s, seen, a.rank, latents),
                 shared = as_f32(cache.k_rope, s * capacity, seen, 0, a.rope, turned);
    parallel_for(a.heads, 1, [&](int64_t h, int64_t) {
      blas::use_one_thread();
      std::vector<float> room[4], absorbed, scores, means, rows;
      const int64_t at_head = h * (a.nope + a.value);
      const Floats wk = as_f32(w, at_head, a.nope, 0, a.rank, room[0]),
                   wv = as_f32(w, at_head + a.nope, a.value, 0, a.rank, room[1]);
      for_blocks(len, s * len, where + s * len, q.chosen, capacity, [&](const Block& b) {
        const int64_t n = b.q1 - b.q0, row = s * len + b.q0;
        const Floats nope = as_f32(q.nope, row, n, h * a.nope, a.nope, room[2]);
        absorbed.resize(at(n * a.rank));
        blas::gemm(CblasNoTrans, CblasNoTrans, n, a.rank, a.nope, 1.f, nope.data, nope.ld, wk.data, wk.ld, 0.f,
                   absorbed.data(), a.rank);
        score(b, a.scale, {absorbed.data(), a.rank}, latent, a.rank, 0, scores);
        score(b, a.scale, as_f32(q.rope, row, n, h * a.rope, a.rope, room[3]), shared, a.rope, 1, scores);
        means.resize(at(n * a.rank)), rows.resize(at(n * a.value));
        weigh(b, scores, latent, a.rank, means.data());
        blas::gemm(CblasNoTrans, CblasTrans, n, a.value, a.rank, 1.f, means.data(), a.rank, wv.data, wv.ld, 0.f,
                   rows.data(), a.value);
        store(b, rows, a.value, h, out);
      });
    });
  }
}

}  // namespace cpu
}  // namespace fewbit
