#include "kernels/attention/rope_append.h"

#include "kernels/kv/int4_rows.h"
#include "kernels/model/hadamard.h"
#include "kernels/model/norm.h"
#include "kernels/model/rope.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct Cache {
  Tensor k, v, k_scales, v_scales;
  KvCache view() const { return {.k = k, .v = v, .k_scales = k_scales, .v_scales = v_scales}; }
};
Cache make_cache(Exec& ex, DType type, const Shape& shape) {
  const Shape stored{shape[0], shape[1], shape[2], type == DType::u8 ? shape[3] / 2 : shape[3]};
  Cache c{.k = ex.alloc_zeros(type, stored), .v = ex.alloc_zeros(type, stored), .k_scales = {}, .v_scales = {}};
  if (type == DType::bf16 || type == DType::f32) return c;
  if (type == DType::u8) {
    c.k_scales = ex.alloc_zeros(DType::bf16, {shape[0], shape[1], shape[2], 2 * int4_groups(shape[3])});
    c.v_scales = ex.alloc_zeros(DType::bf16, c.k_scales.shape());
    return c;
  }
  Tensor scales = Tensor::host(DType::f32, type == DType::i8 ? Shape{shape[0], shape[1], shape[2]} : Shape{shape[1]});
  for (int64_t i = 0; i < scales.numel(); ++i) scales.as<float>()[i] = 0.01f * static_cast<float>(1 + i);
  c.k_scales = ex.to_device(scales);
  c.v_scales = ex.to_device(scales);
  return c;
}

FEWBIT_DEVICE_TEST(RopeAppend, HasTheBitsOfItsOps) {
  struct Case {
    int64_t heads, kv_heads, head_dim, rot;
    bool hadamard = false;
    bool q_norm = false, k_norm = false;
  };
  const int64_t batch = 2, len = 3, capacity = 9;
  const std::vector<int32_t> positions = {0, 1, 2, 6, 7, 8};
  for (const Case c :
       {Case{4, 2, 16, 16}, Case{9, 3, 80, 80}, Case{8, 1, 128, 64}, Case{4, 2, 64, 64, true}, Case{3, 1, 80, 48, true},
        Case{8, 2, 128, 128, false, true, true}, Case{4, 1, 64, 32, true, true, true},
        Case{3, 3, 20, 20, false, true, true}, Case{4, 2, 64, 64, false, false, true}})
    for (const DType dtype : kComputeTypes)
      for (const DType stored : {dtype, DType::f8_e4m3, DType::i8, DType::u8}) {
        const Tensor inv_freq = ex.to_device(random_normal(DType::f32, {c.rot / 2}, 4));
        const Tensor at = ex.to_device(host_i32(positions));
        const Tensor q = random_normal(dtype, {batch * len, c.heads * c.head_dim}, 1),
                     k = random_normal(dtype, {batch * len, c.kv_heads * c.head_dim}, 2),
                     v = random_normal(dtype, {batch * len, c.kv_heads * c.head_dim}, 3);
        const Cache apart = make_cache(ex, stored, {batch, c.kv_heads, capacity, c.head_dim}),
                    together = make_cache(ex, stored, {batch, c.kv_heads, capacity, c.head_dim});
        const Tensor q_apart = ex.to_device(q), k_apart = ex.to_device(k), q_together = ex.to_device(q),
                     k_together = ex.to_device(k), dv = ex.to_device(v);
        const auto norm_of = [&](bool asked, uint64_t seed) {
          return asked ? ex.to_device(random_normal(dtype, {c.head_dim}, seed)) : Tensor{};
        };
        const Tensor q_norm = norm_of(c.q_norm, 5), k_norm = norm_of(c.k_norm, 6);
        const auto norm_heads = [&](const Tensor& heads, const Tensor& weight) {
          const TensorView rows = heads.view().reshaped({heads.numel() / c.head_dim, c.head_dim});
          if (!weight.empty()) rms_norm(ex, rows, weight, 1e-5f, 1, rows);
        };
        norm_heads(q_apart, q_norm);
        norm_heads(k_apart, k_norm);
        rope(ex, q_apart, at, inv_freq, c.head_dim, 1.25f);
        rope(ex, k_apart, at, inv_freq, c.head_dim, 1.25f);
        if (c.hadamard) hadamard(ex, q_apart, k_apart, c.head_dim);
        const bool turn_values = c.hadamard && stored == DType::u8;
        const Tensor v_apart = ex.to_device(v);
        if (turn_values) hadamard(ex, v_apart, v_apart.view().row_range(0, 0), c.head_dim);
        kv_append(ex, k_apart, v_apart, at, apart.view());
        rope_append(
            ex, q_together, k_together, dv, at, {.q = q_norm, .k = k_norm, .eps = 1e-5f, .offset = 1},
            {.inv_freq = inv_freq, .attention_scale = 1.25f, .hadamard = c.hadamard, .turn_values = turn_values},
            together.view());
        const auto same = [&](const Tensor& a, const Tensor& b, const char* what) {
          if (a.empty()) return;
          EXPECT_EQ(first_difference(ex.to_host(a), ex.to_host(b)), "")
              << what << ", " << name_of(dtype) << " in " << name_of(stored) << ", head_dim " << c.head_dim;
        };
        same(q_together, q_apart, "q");
        same(k_together, ex.to_device(k), "k");  // as they were
        same(dv, ex.to_device(v), "v");
        same(together.k, apart.k, "keys");
        same(together.v, apart.v, "values");
        same(together.k_scales, apart.k_scales, "scales of keys");
        same(together.v_scales, apart.v_scales, "scales of values");
      }
}

// Attention that begins on older keys while the append still runs (variant 0) has, step by step, the bits of attention
// that waits (variant 1).
FEWBIT_DEVICE_TEST(RopeAppend, AttentionRightBehindHasTheBitsOfAttentionAfterwards) {
  struct Case {
    int64_t batch, heads, kv_heads, head_dim, capacity, window;
    std::vector<int32_t> first;  // positions
  };
  for (const Case& c : {Case{1, 8, 2, 128, 3000, 0, {2900}}, Case{2, 4, 4, 64, 700, 100, {5, 640}},
                        Case{3, 4, 1, 80, 200, 0, {0, 14, 150}}})
    for (const DType stored : {DType::bf16, DType::f8_e4m3, DType::i8, DType::u8}) {
      const Shape shape{c.batch, c.kv_heads, c.capacity, c.head_dim};
      const Cache together = make_cache(ex, stored, shape), apart = make_cache(ex, stored, shape);
      const AttentionArgs args{.heads = static_cast<int>(c.heads),
                               .kv_heads = static_cast<int>(c.kv_heads),
                               .head_dim = c.head_dim,
                               .scale = 0.1f,
                               .window = c.window};
      const Tensor inv_freq = ex.to_device(random_normal(DType::f32, {c.head_dim / 2}, 4));
      // A prompt, then steps. The host waits for none of them in variant 0, so that they overlap, and for each in
      // variant 1.
      const Tensor prompt = random_normal(DType::bf16, {c.batch * (c.capacity - 30), c.kv_heads * c.head_dim}, 5);
      std::vector<int32_t> at;
      for (int64_t i = 0; i < prompt.rows(); ++i) at.push_back(static_cast<int32_t>(i % (c.capacity - 30)));
      const Tensor prompt_at = ex.to_device(host_i32(at)), filled = ex.to_device(prompt);
      for (const Cache* cache : {&together, &apart}) kv_append(ex, filled, filled, prompt_at, cache->view());
      constexpr int kSteps = 20;
      std::vector<Tensor> q[2], out[2], k, v, positions;
      for (int step = 0; step < kSteps; ++step) {
        const auto seed = static_cast<uint64_t>(3 * step);
        for (int variant = 0; variant < 2; ++variant) {
          q[variant].push_back(ex.to_device(random_normal(DType::bf16, {c.batch, c.heads * c.head_dim}, seed)));
          out[variant].push_back(poisoned(ex, DType::bf16, {c.batch, c.heads * c.head_dim}));
        }
        k.push_back(ex.to_device(random_normal(DType::bf16, {c.batch, c.kv_heads * c.head_dim}, seed + 1)));
        v.push_back(ex.to_device(random_normal(DType::bf16, {c.batch, c.kv_heads * c.head_dim}, seed + 2)));
        std::vector<int32_t> here = c.first;
        for (int32_t& p : here) p += step;
        positions.push_back(ex.to_device(host_i32(here)));
      }
      for (size_t variant = 0; variant < 2; ++variant)
        for (size_t step = 0; step < kSteps; ++step) {
          const Cache& cache = variant == 0 ? together : apart;
          rope_append(ex, q[variant][step], k[step], v[step], positions[step], {}, {.inv_freq = inv_freq},
                      cache.view());
          if (variant == 1) ex.sync();
          AttentionArgs variant_args = args;
          variant_args.behind_append = variant == 0;
          attention_cached(ex, q[variant][step], positions[step], cache.view(), variant_args, out[variant][step]);
        }
      for (size_t step = 0; step < kSteps; ++step)
        EXPECT_EQ(first_difference(ex.to_host(out[0][step]), ex.to_host(out[1][step])), "")
            << name_of(stored) << ", step " << step << ", head_dim " << c.head_dim;
    }
}

// Heads that attention turns back itself, where it merges splits of the keys, and those that it leaves to hadamard().
FEWBIT_DEVICE_TEST(RopeAppend, HeadsTurnedBackHaveTheBitsOfHadamardAfterwards) {
  struct Case {
    int64_t batch, heads, kv_heads, head_dim, capacity, len;
  };
  for (const Case& c : {Case{1, 8, 2, 128, 900, 1}, Case{2, 6, 2, 64, 900, 1}, Case{2, 8, 4, 128, 300, 3},
                        Case{1, 2, 1, 96, 400, 1}, Case{1, 2, 2, 256, 500, 2}, Case{1, 2, 1, 128, 20, 1}})
    for (const DType stored : {DType::bf16, DType::u8}) {
      const Cache cache = make_cache(ex, stored, {c.batch, c.kv_heads, c.capacity, c.head_dim});
      const Tensor filled =
          ex.to_device(random_normal(DType::bf16, {c.batch * c.capacity, c.kv_heads * c.head_dim}, 1));
      std::vector<int32_t> all, at;
      for (int64_t i = 0; i < c.batch * c.capacity; ++i) all.push_back(static_cast<int32_t>(i % c.capacity));
      for (int64_t i = 0; i < c.batch * c.len; ++i) at.push_back(static_cast<int32_t>(c.capacity - c.len + i % c.len));
      kv_append(ex, filled, filled, ex.to_device(host_i32(all)), cache.view());
      const Tensor q = ex.to_device(random_normal(DType::bf16, {c.batch * c.len, c.heads * c.head_dim}, 2));
      const Tensor positions = ex.to_device(host_i32(at)), together = poisoned(ex, DType::bf16, q.shape()),
                   apart = poisoned(ex, DType::bf16, q.shape());
      AttentionArgs args{.heads = static_cast<int>(c.heads),
                         .kv_heads = static_cast<int>(c.kv_heads),
                         .head_dim = c.head_dim,
                         .scale = 0.1f};
      attention_cached(ex, q, positions, cache.view(), args, apart);
      hadamard(ex, apart, apart.view().row_range(0, 0), c.head_dim);
      args.turn_back = true;
      attention_cached(ex, q, positions, cache.view(), args, together);
      EXPECT_EQ(first_difference(ex.to_host(together), ex.to_host(apart)), "")
          << name_of(stored) << ", head_dim " << c.head_dim << ", " << c.len << " tokens";
    }
}

}  // namespace
}  // namespace fewbit::test
