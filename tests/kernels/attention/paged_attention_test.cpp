// Attention over pages against attention over a contiguous cache: the same bits, for few queries that read rows where
// they lie and for many that read widened ones.
#include "kernels/attention/paged_attention.h"

#include <algorithm>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 64, kLength = 53;

struct Caches {
  Tensor k, v, k_scales, v_scales;
  KvCache view() const { return {.k = k, .v = v, .k_scales = k_scales, .v_scales = v_scales}; }
};

Caches caches(DType dtype, DType stored, int64_t first, int64_t second) {
  Caches c{Tensor::host_zeros(stored, {first, kKvHeads, second, kHeadDim}),
           Tensor::host_zeros(stored, {first, kKvHeads, second, kHeadDim}),
           {},
           {}};
  if (stored == dtype) return c;
  const Shape shape = stored == DType::i8 ? Shape{first, kKvHeads, second} : Shape{kKvHeads};
  for (Tensor* t : {&c.k_scales, &c.v_scales}) {
    *t = Tensor::host(DType::f32, shape);
    std::fill_n(t->as<float>(), t->numel(), .02f);
  }
  return c;
}

// Rows [begin, end) of q over pages, against each row alone over the contiguous cache.
void compare(DType dtype, DType stored, const AttentionArgs& a, int64_t begin, int64_t end) {
  Exec ex = Exec::cpu();
  const Tensor k = random_normal(dtype, {kLength, kKvHeads * kHeadDim}, 2),
               v = random_normal(dtype, {kLength, kKvHeads * kHeadDim}, 3),
               q = random_normal(dtype, {kLength, kHeads * kHeadDim}, 1);
  std::vector<int32_t> all;
  for (int32_t t = 0; t < kLength; ++t) all.push_back(t);
  const Tensor positions = host_i32(all), table = host_i32({4, 1, 3, 0});  // page 2 is nobody's
  const Caches one = caches(dtype, stored, 1, kLength), pages = caches(dtype, stored, 5, kPagePositions);
  kv_append(ex, k, v, positions, one.view());
  const RowRun whole{0, kLength}, run{0, end - begin};
  const ConstTensorView tables = table.view().reshaped({1, 4});
  kv_append_paged(ex, k, v, {.runs = {&whole, 1}, .tables = tables, .positions = positions}, pages.view());
  const ConstTensorView rows = q.view().row_range(begin, end);
  const Tensor paged = Tensor::host_zeros(dtype, {end - begin, q.cols()}),
               alone = Tensor::host_zeros(dtype, paged.shape());
  attention_paged(ex, rows, {.runs = {&run, 1}, .tables = tables, .positions = positions.view().row_range(begin, end)},
                  pages.view(), a, paged);
  for (int64_t t = begin; t < end; ++t)
    attention_cached(ex, q.view().row_range(t, t + 1), positions.view().row_range(t, t + 1), one.view(), a,
                     alone.view().row_range(t - begin, t - begin + 1));
  EXPECT_EQ(first_difference(paged, alone), "")
      << name_of(dtype) << " over " << name_of(stored) << ", rows " << begin << " to " << end;
}

TEST(PagedAttention, HasTheBitsOfTheContiguousOne) {
  const Tensor sinks = random_normal(DType::f32, {kHeads}, 4, 3.f);
  const AttentionArgs plain{.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kHeadDim, .scale = .125f};
  AttentionArgs windowed = plain, chunked = plain, capped = plain;
  windowed.window = 21, windowed.sinks = sinks;
  chunked.chunk = 16;
  capped.softcap = 5;
  for (const DType dtype : kComputeTypes)
    for (const DType stored : {dtype, DType::f8_e4m3, DType::i8})
      for (const AttentionArgs& a : {plain, windowed, chunked, capped})
        for (const auto& [begin, end] : {std::pair{kLength - 1, kLength}, {40, 47}, {40, 49}, {0, kLength}})
          compare(dtype, stored, a, begin, end);
}

}  // namespace
}  // namespace fewbit::test
