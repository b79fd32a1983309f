// Sections of time_ops(): attention over latents and the gated delta rule, in the shapes of the models that have them.
#include <algorithm>
#include <cmath>

#include "kernels/attention/latent_attention.h"
#include "kernels/recurrent/delta_rule.h"
#include "src/run/bench/ops_bench_parts.h"

namespace fewbit::ops {
namespace {

struct Case {
  int64_t seqs, tokens;  // tokens: positions in sight, or of a prompt
};
std::vector<Case> up_to_most(OpsRun& run, std::initializer_list<Case> cases) {
  std::vector<Case> kept;
  for (const Case& c : cases)
    if (!run.up_to_most({c.tokens}).empty()) kept.push_back(c);
  return kept;
}

// DeepSeek-V3 (2024, section 4.2).
const LatentArgs kLatent{.heads = 128, .nope = 128, .rope = 64, .value = 128, .rank = 512, .scale = 0.1f};

void add_latent(OpsRun& run, const OpRow& row, int64_t copies) {
  Exec& ex = run.ex;
  const LatentArgs& a = kLatent;
  const int64_t batch = row.rows, context = row.context;
  std::vector<Tensor> latents, keys, weights;
  for (int64_t i = 0; i < copies; ++i) {
    latents.push_back(run.random.normal({batch, context, a.rank}));
    keys.push_back(run.random.normal({batch, context, a.rope}));
    weights.push_back(run.random.normal({a.heads * (a.nope + a.value), a.rank}));
  }
  const Tensor nope = run.random.normal({batch, a.heads * a.nope}), rope = run.random.normal({batch, a.heads * a.rope});
  const Tensor out = ex.alloc(DType::bf16, {batch, a.heads * a.value});
  Tensor at = Tensor::host(DType::i32, {batch});
  std::fill_n(at.as<int32_t>(), batch, static_cast<int32_t>(context - 1));
  const Tensor positions = ex.to_device(at);
  run.add({row, std::max<int64_t>(copies, 2), [&](int64_t i) {
             const auto n = static_cast<size_t>(i % copies);
             latent_attention_cached(ex, {.nope = nope, .rope = rope}, weights[n], positions, {latents[n], keys[n]}, a,
                                     out);
           }});
}

// Qwen3.8 27B.
constexpr DeltaArgs kDelta{.k_heads = 16, .v_heads = 48, .k_dim = 128, .v_dim = 128};
constexpr int64_t kChunk = 64;  // tokens that are taken as products

// What the products of a chunk are for each token of a value head: keys with keys and queries with keys, the system's
// solution on values and keys, what the state makes of keys and queries, its change, and the outputs of the chunk.
double delta_flop(int64_t tokens) {
  const auto k = static_cast<double>(kDelta.k_dim), v = static_cast<double>(kDelta.v_dim);
  const double token = 2 * kChunk * (k + k + v + k + v) + 2 * k * v * 3;
  return token * static_cast<double>(tokens * kDelta.v_heads);
}

void add_delta(OpsRun& run, const OpRow& row, int64_t copies) {
  Exec& ex = run.ex;
  const DeltaArgs& a = kDelta;
  const int64_t seqs = row.rows, tokens = seqs * row.context;
  const int64_t k_width = a.k_heads * a.k_dim, v_width = a.v_heads * a.v_dim;
  std::vector<Tensor> states;
  for (int64_t i = 0; i < copies; ++i)
    states.push_back(ex.alloc_zeros(DType::f32, {seqs, a.v_heads, a.k_dim, a.v_dim}));
  const Tensor q = run.random.normal({tokens, k_width}), k = run.random.normal({tokens, k_width});
  const Tensor v = run.random.normal({tokens, v_width}), beta = run.random.normal({tokens, a.v_heads});
  const Tensor decay = run.random.normal({tokens, a.v_heads}), out = ex.alloc(DType::bf16, {tokens, v_width});
  const Tensor heads = ex.alloc_zeros(DType::f32, {a.v_heads});
  const DeltaInputs in{
      .q = {q, 0}, .k = {k, 0}, .v = {v, 0}, .beta = beta, .decay = decay, .a_log = heads, .dt_bias = heads};
  run.add({row, std::max<int64_t>(copies, 2),
           [&](int64_t i) { delta_rule(ex, in, seqs, a, states[static_cast<size_t>(i % copies)], out); }});
}

}  // namespace

void latent_attention_rows(OpsRun& run, const OpsModel& model) {
  const LatentArgs& a = kLatent;
  const std::vector<Case> cases = up_to_most(run, {{1, 512}, {1, 4096}, {1, 32768}, {32, 4096}, {32, 32768}});
  run.expect(cases.size());
  for (const Case& c : cases) {
    OpRow row{.section = "latent", .model = model.name, .op = "128 heads, latents of 512 + 64", .type = "bf16"};
    row.rows = c.seqs, row.context = c.tokens;
    const int64_t bytes = 2 * (c.seqs * c.tokens * (a.rank + a.rope) + a.heads * (a.nope + a.value) * a.rank);
    row.bytes = static_cast<double>(bytes);
    row.flop = 2.0 * static_cast<double>(c.seqs * a.heads) *
               static_cast<double>(c.tokens * (2 * a.rank + a.rope) + (a.nope + a.value) * a.rank);
    run.attempt(row, [&] { add_latent(run, row, run.copies_for(bytes)); });
  }
}

void delta_rule_rows(OpsRun& run, const OpsModel& model) {
  const DeltaArgs& a = kDelta;
  const std::vector<Case> cases = up_to_most(run, {{1, 1}, {32, 1}, {1, 2048}});
  run.expect(cases.size());
  for (const Case& c : cases) {
    OpRow row{.section = "delta", .model = model.name, .op = "48 heads of 128 x 128", .type = "bf16, state f32"};
    row.rows = c.seqs, row.context = c.tokens;
    const int64_t state = c.seqs * a.v_heads * a.k_dim * a.v_dim * 4;
    const int64_t each = 2 * (2 * a.k_heads * a.k_dim + 2 * a.v_heads * a.v_dim + 2 * a.v_heads);
    row.bytes = static_cast<double>(2 * state + c.seqs * c.tokens * each);
    row.flop = c.tokens == 1 ? 1.75 * static_cast<double>(state) : delta_flop(c.seqs * c.tokens);
    run.attempt(row, [&] { add_delta(run, row, run.copies_for(state)); });
  }
}

}  // namespace fewbit::ops
