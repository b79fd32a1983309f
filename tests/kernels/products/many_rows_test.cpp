// Products of many rows in 8-bit codes, with the norm or the activation before them
// (kernels/products/normed_gemms.h, kernels/products/gated_gemms.h): they have the bits of the ops one after another.
#include "kernels/model/norm.h"
#include "kernels/products/gated_gemms.h"
#include "kernels/products/normed_gemms.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Narrow rows, which a GPU norms in another order; widths around what a block reads at once; that of a feed-forward
// layer; more than a block's registers hold.
constexpr int64_t kWidths[] = {512, 1088, 4096, 4104, 14336, 40960};
constexpr int64_t kRowCounts[] = {16, 17, 300};
constexpr int64_t kMostValues = int64_t{1} << 20;  // of x; wide rows come in small numbers only, to save time

struct Weight {
  Tensor codes, scales;
  Weight(Exec& ex, DType type, int64_t out, int64_t in) {
    Tensor c = Tensor::host(type, {out, in});
    const Rng rng(static_cast<uint64_t>(in), "codes");
    for (int64_t i = 0; i < c.numel(); ++i) {
      const auto byte = static_cast<uint8_t>(rng.at(static_cast<uint64_t>(i)));
      c.as<uint8_t>()[i] = type == DType::f8_e4m3 && byte % 128 == 127 ? byte - 1 : byte;  // no NaN
    }
    codes = ex.to_device(c);
    scales = ex.to_device(random_normal(DType::f32, {out}, 1, 0.01f));
  }
  ByteProduct to(TensorView y, bool add) const { return {.w = {.codes = codes, .scales = scales}, .y = y, .add = add}; }
};

// Runs `ops` and `reference` on the same two products, whose y began alike, and compares the bits.
template <class Ops, class Reference>
void same_bits(Exec& ex, DType type, int64_t rows, int64_t in, bool add, const Ops& ops, const Reference& reference) {
  const Weight a(ex, type, 48, in), b(ex, type, 32, in);
  const Tensor start = random_normal(DType::bf16, {rows, 48}, 5);
  const auto run = [&](const auto& f) {
    std::vector<Tensor> ys;
    ys.push_back(ex.to_device(start));
    ys.push_back(poisoned(ex, DType::bf16, {rows, 32}));
    const ByteProduct products[] = {a.to(ys[0], add), b.to(ys[1], false)};
    f(std::span<const ByteProduct>(products));
    for (Tensor& y : ys) y = ex.to_host(y);
    return ys;
  };
  const std::vector<Tensor> found = run(ops), want = run(reference);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(first_difference(found[i], want[i]), "") << name_of(type) << " [" << rows << ", " << in << "] " << i;
}

FEWBIT_DEVICE_TEST(ManyRows, ANormAndTheProductsAtOnce) {
  for (const DType type : {DType::i8, DType::f8_e4m3})
    for (const int64_t in : kWidths)
      for (const int64_t rows : kRowCounts) {
        if (rows * in > kMostValues) continue;
        const Tensor x = ex.to_device(random_normal(DType::bf16, {rows, in}, 7));
        const Tensor weight = ex.to_device(random_normal(DType::bf16, {in}, 8)),
                     room = ex.alloc(DType::bf16, {rows, in});
        const RowQuant q{.codes = type};
        same_bits(
            ex, type, rows, in, false,
            [&](auto products) {
              normed_byte_gemms(ex, x, {.weight = weight, .eps = 1e-5f, .offset = 1.f}, room, q, products);
            },
            [&](auto products) {
              const Tensor normed = ex.alloc(DType::bf16, {rows, in});
              rms_norm(ex, x, weight, 1e-5f, 1.f, normed);
              byte_gemms(ex, normed, q, products);
            });
      }
}

FEWBIT_DEVICE_TEST(ManyRows, AnActivationAndTheProductsAtOnce) {
  for (const DType type : {DType::i8, DType::f8_e4m3})
    for (const int64_t in : kWidths)
      for (const int64_t rows : kRowCounts)
        for (const ActKind act : {ActKind::silu, ActKind::gelu_tanh}) {
          if (rows * in > kMostValues) continue;
          const Tensor gate = ex.to_device(random_normal(DType::bf16, {rows, in}, 7, 3.f));
          const Tensor up = ex.to_device(random_normal(DType::bf16, {rows, in}, 8)),
                       room = ex.alloc(DType::bf16, {rows, in});
          const RowQuant q{.codes = type, .fixed = act == ActKind::silu ? 0 : 0.02f};
          same_bits(
              ex, type, rows, in, true, [&](auto products) { gated_byte_gemms(ex, gate, up, act, room, q, products); },
              [&](auto products) {
                const Tensor activated = ex.alloc(DType::bf16, {rows, in});
                gated_act(ex, gate, up, act, activated);
                byte_gemms(ex, activated, q, products);
              });
        }
}

}  // namespace
}  // namespace fewbit::test
