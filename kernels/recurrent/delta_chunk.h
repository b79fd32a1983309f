#pragma once
// delta_chunk: some tokens of one head of the gated delta rule at once, in products of small matrices instead of token
// by token. Part of the CPU half of delta_rule.h, which has the recurrence.
#include <cstdint>
#include <vector>

namespace fewbit::cpu {

inline constexpr int64_t kDeltaChunk = 64;  // tokens, at most

// Rows of tokens, all f32, of kDeltaChunk rows each.
struct DeltaChunk {
  int64_t k_dim = 0, v_dim = 0;
  std::vector<float> q{}, k{}, keep{};  // [tokens, k_dim]: as the rule uses them; the factors of S's rows
  std::vector<float> v{}, out{};        // [tokens, v_dim]; v is overwritten
  std::vector<float> beta{};            // [tokens], in [0, 1]

  DeltaChunk(int64_t k_dim, int64_t v_dim);
  // Takes s [k_dim, v_dim] over the first `tokens` rows and leaves S^T q of each in `out`.
  void run(int64_t tokens, float* s);

 private:
  void pair_up(int64_t tokens);
  void pair_up_block(int64_t begin, int64_t end);

  // What pair_up() makes: the keys as they are at the end of the chunk; queries and keys over the decay since its
  // begin; and products of a key (a query) with the earlier keys, of which a decay between the two is taken off.
  std::vector<float> late_k_{}, since_q_{}, since_k_{}, decay_{};
  std::vector<float> of_keys_{}, of_queries_{};  // [tokens, tokens], lower triangles; the first without its diagonal
};

}  // namespace fewbit::cpu
