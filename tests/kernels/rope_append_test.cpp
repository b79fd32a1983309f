#include "kernels/rope_append.h"

#include "kernels/hadamard.h"
#include "kernels/rope.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct Cache {
  Tensor k, v, k_scales, v_scales;
  KvCache view() const { return {.k = k, .v = v, .k_scales = k_scales, .v_scales = v_scales}; }
};
Cache make_cache(Exec& ex, DType type, const Shape& shape) {
  Cache c{.k = ex.alloc_zeros(type, shape), .v = ex.alloc_zeros(type, shape), .k_scales = {}, .v_scales = {}};
  if (type == DType::bf16 || type == DType::f32) return c;
  Tensor scales = Tensor::host(DType::f32, type == DType::i8 ? Shape{shape[0], shape[1], shape[2]} : Shape{shape[1]});
  for (int64_t i = 0; i < scales.numel(); ++i) scales.as<float>()[i] = 0.01f * static_cast<float>(1 + i);
  c.k_scales = ex.to_device(scales);
  c.v_scales = ex.to_device(scales);
  return c;
}

FEWBIT_OP_TEST(RopeAppend, HasTheBitsOfItsOps) {
  struct Case {
    int64_t heads, kv_heads, head_dim, rot;
    bool hadamard = false;
  };
  const int64_t batch = 2, len = 3, capacity = 9;
  const std::vector<int32_t> positions = {0, 1, 2, 6, 7, 8};
  for (const Case c : {Case{4, 2, 16, 16}, Case{9, 3, 80, 80}, Case{8, 1, 128, 64}, Case{4, 2, 64, 64, true},
                     Case{3, 1, 80, 48, true}})
    for (const DType dtype : kComputeTypes)
      for (const DType stored : {dtype, DType::f8_e4m3, DType::i8}) {
        const Tensor inv_freq = ex.to_device(random_normal(DType::f32, {c.rot / 2}, 4));
        const Tensor at = ex.to_device(host_i32(positions));
        const Tensor q = random_normal(dtype, {batch * len, c.heads * c.head_dim}, 1),
                     k = random_normal(dtype, {batch * len, c.kv_heads * c.head_dim}, 2),
                     v = random_normal(dtype, {batch * len, c.kv_heads * c.head_dim}, 3);
        const Cache apart = make_cache(ex, stored, {batch, c.kv_heads, capacity, c.head_dim}),
                    together = make_cache(ex, stored, {batch, c.kv_heads, capacity, c.head_dim});
        const Tensor q_apart = ex.to_device(q), k_apart = ex.to_device(k), q_together = ex.to_device(q),
                     k_together = ex.to_device(k), dv = ex.to_device(v);
        rope(ex, q_apart, at, inv_freq, c.head_dim, 1.25f);
        rope(ex, k_apart, at, inv_freq, c.head_dim, 1.25f);
        if (c.hadamard) hadamard(ex, q_apart, k_apart, c.head_dim);
        kv_append(ex, k_apart, dv, at, apart.view());
        rope_append(ex, q_together, k_together, dv, at,
                    {.inv_freq = inv_freq, .attention_scale = 1.25f, .hadamard = c.hadamard}, together.view());
        const auto same = [&](const Tensor& a, const Tensor& b, const char* what) {
          if (a.empty()) return;
          EXPECT_EQ(first_difference(ex.to_host(a), ex.to_host(b)), "")
              << what << ", " << name_of(dtype) << " in " << name_of(stored) << ", head_dim " << c.head_dim;
        };
        same(q_together, q_apart, "q");
        same(k_together, ex.to_device(k), "k");
        same(together.k, apart.k, "keys");
        same(together.v, apart.v, "values");
        same(together.k_scales, apart.k_scales, "scales of keys");
        same(together.v_scales, apart.v_scales, "scales of values");
      }
}

}  // namespace
}  // namespace fewbit::test
