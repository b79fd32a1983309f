#include "kernels/decode/append_attention.h"

#include <limits>

#include "kernels/kv/int4_rows.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace append_and_attend {

struct Case {
  int64_t batch, heads, kv_heads, head_dim, capacity;
  std::vector<int32_t> positions;  // of the newest token of each sequence
  int64_t window = 0;
  bool hadamard = true, norms = false, sinks = false;
  float softcap = 0;
  int64_t rot = 0;  // 0: all of the head
  int64_t len = 1;
};

// What an op leaves, on the host.
struct Left {
  Tensor k, v, k_scales, v_scales, out;
};

// A cache that is full of rows, and new tokens at the case's positions: by append_attention(), or by its two ops.
Left run(Exec& ex, const Case& c, DType stored, bool together) {
  const int64_t kv_width = c.kv_heads * c.head_dim, width = c.heads * c.head_dim, tokens = c.batch * c.len;
  const bool codes = stored == DType::u8;
  const Shape shape{c.batch, c.kv_heads, c.capacity, codes ? c.head_dim / 2 : c.head_dim};
  Tensor k = ex.alloc_zeros(stored, shape), v = ex.alloc_zeros(stored, shape), k_scales, v_scales;
  if (codes) {
    k_scales = ex.alloc_zeros(DType::bf16, {c.batch, c.kv_heads, c.capacity, 2 * int4_groups(c.head_dim)});
    v_scales = ex.alloc_zeros(DType::bf16, k_scales.shape());
  }
  const KvCache cache{.k = k, .v = v, .k_scales = k_scales, .v_scales = v_scales};
  std::vector<int32_t> all, at;
  for (int64_t i = 0; i < c.batch * c.capacity; ++i) all.push_back(static_cast<int32_t>(i % c.capacity));
  for (const int32_t p : c.positions)
    for (int64_t i = 0; i < c.len; ++i) at.push_back(p - static_cast<int32_t>(c.len - 1 - i));
  const auto random = [&](const Shape& of, uint64_t seed) {
    return ex.to_device(random_normal(DType::bf16, of, seed));
  };
  kv_append(ex, random({c.batch * c.capacity, kv_width}, 1), random({c.batch * c.capacity, kv_width}, 2),
            ex.to_device(host_i32(all)), cache);
  const Tensor q = random({tokens, width}, 3), new_k = random({tokens, kv_width}, 4),
               new_v = random({tokens, kv_width}, 5);
  const Tensor q_norm = random({c.head_dim}, 6), k_norm = random({c.head_dim}, 7);
  const Tensor inv_freq = ex.to_device(random_normal(DType::f32, {(c.rot > 0 ? c.rot : c.head_dim) / 2}, 8));
  const Tensor sinks = ex.to_device(random_normal(DType::f32, {c.heads}, 9)), positions = ex.to_device(host_i32(at));
  Tensor out = poisoned(ex, DType::bf16, {tokens, width});
  HeadNorms norms{.eps = 1e-5f, .offset = 1};
  if (c.norms) norms.q = q_norm, norms.k = k_norm;
  const RopeTable table{
      .inv_freq = inv_freq, .attention_scale = 1.25f, .hadamard = c.hadamard, .turn_values = c.hadamard};
  AttentionArgs args{.heads = static_cast<int>(c.heads),
                     .kv_heads = static_cast<int>(c.kv_heads),
                     .head_dim = c.head_dim,
                     .scale = 0.1f,
                     .window = c.window,
                     .softcap = c.softcap};
  args.turn_back = c.hadamard;
  if (c.sinks) args.sinks = sinks;
  if (together) {
    append_attention(ex, q, new_k, new_v, positions, norms, table, cache, args, out);
  } else {
    rope_append(ex, q, new_k, new_v, positions, norms, table, cache);
    attention_cached(ex, q, positions, cache, args, out);
  }
  const auto host = [&](const Tensor& t) { return t.empty() ? Tensor{} : ex.to_host(t); };
  return {host(k), host(v), host(k_scales), host(v_scales), host(out)};
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {1, 8, 2, 128, 3000, {2999}},
      {1, 8, 2, 128, 3000, {2016}},        // the first key of a tile
      {1, 8, 2, 128, 3000, {2015}},        // the last one
      {3, 8, 2, 128, 601, {0, 300, 600}},  // rows of an odd count
      {2, 8, 2, 128, 90, {3, 70}},         // one split
      {1, 4, 1, 128, 3000, {2900}, 700},
      {1, 4, 1, 128, 3000, {1500}, 0, true, true, true, 20.f},
      {2, 16, 2, 128, 1500, {40, 1499}, 0, true, true, true},  // eight query heads of a kv head
      {2, 6, 2, 128, 1500, {900, 1400}, 0, false, false, false, 0, 64},
      {2, 8, 2, 64, 1500, {700, 1490}, 0, true, true},
      {1, 12, 1, 128, 900, {800}},                                      // more than eight
      {1, 8, 2, 256, 500, {450}},                                       // and other heads: two launches
      {2, 8, 2, 128, 700, {300, 690}, 0, true, false, false, 0, 0, 3},  // several new tokens
  };
  return all;
}

void expect_like_the_ops(Exec& ex) {
  for (const Case& c : cases())
    for (const DType stored : {DType::bf16, DType::u8}) {
      const Left found = run(ex, c, stored, true), expected = run(ex, c, stored, false);
      const std::string where = std::string(name_of(stored)) + ", " + std::to_string(c.heads) + " heads of " +
                                std::to_string(c.head_dim) + ", capacity " + std::to_string(c.capacity) +
                                ", position " + std::to_string(c.positions[0]);
      EXPECT_EQ(first_difference(found.k, expected.k), "") << where;
      EXPECT_EQ(first_difference(found.v, expected.v), "") << where;
      if (!found.k_scales.empty()) {
        EXPECT_EQ(first_difference(found.k_scales, expected.k_scales), "") << where;
        EXPECT_EQ(first_difference(found.v_scales, expected.v_scales), "") << where;
      }
      EXPECT_LE(relative_error(found.out, expected.out), tol::kBf16Op) << where;
    }
}

FEWBIT_DEVICE_TEST(AppendAttention, AppendsAndAttendsAsItsOpsDo) { expect_like_the_ops(ex); }

TEST(AppendAttention, CudaDoesSoOnOlderGpus) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
#ifdef FEWBIT_HAS_CUDA
  cuda::force_sm80_path(ex, true);
#endif
  expect_like_the_ops(ex);
}

TEST(AppendAttention, CudaIsTheCpu) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  for (const Case& c : cases()) {
    const Left found = run(gpu, c, DType::u8, true), expected = run(cpu, c, DType::u8, true);
    // The queries are rounded after RoPE, and the angles of both halves differ in their last bit.
    EXPECT_LE(relative_error(found.out, expected.out), 2 * tol::kBf16Op)
        << c.heads << " heads of " << c.head_dim << ", capacity " << c.capacity << ", position " << c.positions[0];
  }
}

TEST(AppendAttention, CudaHasTheSameBitsAgain) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Case& c = cases()[0];
  EXPECT_EQ(first_difference(run(ex, c, DType::u8, true).out, run(ex, c, DType::u8, true).out), "");
}

// So many sequences that the keys are cut in two on a GPU of 132 multiprocessors, where the two merge them in a
// cluster.
TEST(AppendAttention, CudaTwoSplitsOfManySequences) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const int64_t batch = 12, heads = 32, kv_heads = 8, d = 128, capacity = 600;
  const Tensor codes = Tensor::host(DType::u8, {batch, kv_heads, capacity, d / 2});
  const Tensor scales = Tensor::host(DType::bf16, {batch, kv_heads, capacity, 2 * int4_groups(d)});
  for (int64_t i = 0; i < codes.numel(); ++i) codes.as<uint8_t>()[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  for (int64_t i = 0; i < scales.numel(); ++i)
    scales.as<bf16>()[i] =
        i % 2 == 0 ? 0.05f + 0.01f * static_cast<float>(i % 7) : 0.1f * static_cast<float>(i % 5 - 2);
  std::vector<int32_t> at(static_cast<size_t>(batch), 599);
  at[0] = 0, at[1] = 20, at[2] = 33, at[3] = 511, at[4] = 560;
  const auto random = [&](int64_t cols, uint64_t seed) {
    return ex.to_device(random_normal(DType::bf16, {batch, cols}, seed));
  };
  const Tensor new_k = random(kv_heads * d, 2), new_v = random(kv_heads * d, 3), positions = ex.to_device(host_i32(at));
  const Tensor inv_freq = ex.to_device(random_normal(DType::f32, {d / 2}, 4));
  const RopeTable table{.inv_freq = inv_freq, .hadamard = true, .turn_values = true};
  AttentionArgs args{.heads = heads, .kv_heads = kv_heads, .head_dim = d, .scale = 0.1f};
  args.turn_back = true;
  Tensor out[2], k[2], v_scales[2];
  for (const bool together : {false, true}) {
    const Tensor q = random(heads * d, 1), v = ex.to_device(codes), k_scales = ex.to_device(scales);
    k[together] = ex.to_device(codes), v_scales[together] = ex.to_device(scales);
    const KvCache cache{.k = k[together], .v = v, .k_scales = k_scales, .v_scales = v_scales[together]};
    out[together] = poisoned(ex, DType::bf16, {batch, heads * d});
    if (together) {
      append_attention(ex, q, new_k, new_v, positions, {}, table, cache, args, out[1]);
    } else {
      rope_append(ex, q, new_k, new_v, positions, {}, table, cache);
      attention_cached(ex, q, positions, cache, args, out[0]);
    }
    ex.sync();
  }
  EXPECT_EQ(first_difference(ex.to_host(k[1]), ex.to_host(k[0])), "");
  EXPECT_EQ(first_difference(ex.to_host(v_scales[1]), ex.to_host(v_scales[0])), "");
  EXPECT_LE(relative_error(ex.to_host(out[1]), ex.to_host(out[0])), tol::kBf16Op);
}

// Scales of NaN past the keys in sight change nothing.
TEST(AppendAttention, CudaSeesNothingPastItsPosition) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const int64_t capacity = 700, heads = 8, kv_heads = 2, d = 128;
  Tensor out[2];
  for (const bool poison : {false, true}) {
    const Shape scales_shape{1, kv_heads, capacity, 2 * int4_groups(d)};
    Tensor host_scales = Tensor::host(DType::bf16, scales_shape);
    for (int64_t i = 0; i < host_scales.numel(); ++i) {
      const int64_t key = i / (2 * int4_groups(d)) % capacity;
      host_scales.as<bf16>()[i] = poison && key > 333 ? std::numeric_limits<float>::quiet_NaN() : 0.01f;
    }
    const Tensor scales = ex.to_device(host_scales), v_scales = ex.to_device(host_scales);
    const Tensor k = ex.alloc_zeros(DType::u8, {1, kv_heads, capacity, d / 2}),
                 v = ex.alloc_zeros(DType::u8, {1, kv_heads, capacity, d / 2});
    const auto random = [&](int64_t cols, uint64_t seed) {
      return ex.to_device(random_normal(DType::bf16, {1, cols}, seed));
    };
    const Tensor q = random(heads * d, 1), new_k = random(kv_heads * d, 2), new_v = random(kv_heads * d, 3);
    const Tensor inv_freq = ex.to_device(random_normal(DType::f32, {d / 2}, 4));
    out[poison] = poisoned(ex, DType::bf16, {1, heads * d});
    append_attention(ex, q, new_k, new_v, ex.to_device(host_i32({333})), {}, {.inv_freq = inv_freq},
                     {.k = k, .v = v, .k_scales = scales, .v_scales = v_scales},
                     {.heads = heads, .kv_heads = kv_heads, .head_dim = d, .scale = 0.1f}, out[poison]);
  }
  EXPECT_EQ(first_difference(ex.to_host(out[0]), ex.to_host(out[1])), "");
}

}  // namespace append_and_attend
}  // namespace fewbit::test
