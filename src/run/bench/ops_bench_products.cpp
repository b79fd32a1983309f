// Sections of time_ops(): products of a block, together and alone, and the head.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/model/norm.h"
#include "kernels/products/bytes/byte_gemms.h"
#include "kernels/products/gemm.h"
#include "kernels/products/normed_gemms.h"
#include "src/core/marlin_layout.h"
#include "src/run/bench/ops_bench_parts.h"

namespace fewbit::ops {
namespace {

constexpr std::initializer_list<int64_t> kRowCounts = {1, 8, 16, 32, 64, 256, 2048};

template <class List>
auto& in_turn(List& list, int64_t i) {
  return list[static_cast<size_t>(i) % list.size()];
}

// The first values of a buffer as a matrix.
TensorView matrix(const Tensor& t, int64_t rows, int64_t cols) {
  return {t.view().data, t.dtype(), {rows, cols}, t.device()};
}

int64_t weights_of(const std::vector<OpsProduct>& products) {
  int64_t n = 0;
  for (const OpsProduct& p : products) n += p.in * p.out;
  return n;
}
int64_t widest(const std::vector<OpsProduct>& products) {
  int64_t most = 0;
  for (const OpsProduct& p : products) most = std::max({most, p.in, p.out});
  return most;
}

std::string block_name(const std::vector<OpsProduct>& products) { return fmt::format("block of {}", products.size()); }

// How the bytes of a row-major weight meet x.
struct PlainType {
  const char* name;
  DType weights, input;
};
constexpr PlainType kPlainTypes[] = {{"bf16", DType::bf16, DType::bf16},
                                     {"fp8", DType::f8_e4m3, DType::f8_e4m3},
                                     {"fp8, x unrounded", DType::f8_e4m3, DType::f16},
                                     {"int8", DType::i8, DType::i8}};
constexpr std::initializer_list<int64_t> kPlainRows = {1, 2, 8, 16, 32, 64, 256, 2048};

// One product by cuBLAS.
void library_gemm(Exec& ex, ConstTensorView x, ConstTensorView w, TensorView y) {
  const GemmProduct product{.w = w, .y = y};
  library_gemms(ex, x, std::span(&product, 1));
}

// Row-major weights of a block, copy after copy: bf16, or codes of a byte, which every such type reads as its own.
std::vector<Tensor> plain_copies(OpsRun& run, const std::vector<OpsProduct>& products, bool dense) {
  const int64_t copies = run.copies_for(weights_of(products) * (dense ? 2 : 1));
  std::vector<Tensor> list;
  for (int64_t i = 0; i < copies; ++i)
    for (const OpsProduct& p : products)
      list.push_back(dense ? run.random.normal({p.out, p.in}) : run.random.words({(p.out * p.in + 3) / 4}));
  return list;
}

void packed_linear(OpsRun& run, const OpsModel& model, const OpsProduct& p) {
  Exec& ex = run.ex;
  const int64_t weights = p.in * p.out, dense_copies = run.copies_for(2 * weights),
                packed_copies = run.copies_for(weights / 2);
  std::vector<Tensor> dense;
  for (int64_t i = 0; i < dense_copies; ++i) dense.push_back(run.random.normal({p.out, p.in}));
  std::vector<PackedWeight> four, eight;
  for (int64_t i = 0; i < packed_copies; ++i) four.push_back(packed_weight(ex, run.random, p.out, p.in, 4));
  for (int64_t i = 0; i < (packed_copies + 1) / 2; ++i) eight.push_back(packed_weight(ex, run.random, p.out, p.in, 8));
  for (const int64_t rows : run.up_to_most(kRowCounts)) {
    const Tensor x = run.random.normal({rows, p.in}), y = ex.alloc(DType::bf16, {rows, p.out});
    OpRow row{
        .section = "linear",
        .model = model.name,
        .op = p.name,
        .type = "bf16",
        .in = p.in,
        .out = p.out,
        .rows = rows,
    };
    row.flop = 2 * static_cast<double>(weights * rows);
    const auto packed = [&](const char* type, double bytes_each, const std::vector<PackedWeight>& copies) {
      OpRow of_type = row;
      of_type.type = type;
      of_type.bytes = bytes_each * static_cast<double>(weights);
      return Timed{of_type, std::max<int64_t>(packed_copies, 4),
                   [&](int64_t i) { marlin_gemm(ex, x, in_turn(copies, i).view, {}, y); }};
    };
    run.add_with_peer(
        {row, std::max<int64_t>(dense_copies, 4), [&](int64_t i) { library_gemm(ex, x, in_turn(dense, i), y); }},
        {packed("int4 g128", kInt4Bytes, four), packed("int8 g128", kInt8Bytes, eight)});
  }
}

}  // namespace

// Back to back in one graph, as decode runs them.
void packed_block(OpsRun& run, const OpsModel& model) {
  Exec& ex = run.ex;
  const std::vector<OpsProduct> products = packable(run, model);
  if (products.empty()) return;
  const int64_t weights = weights_of(products), most = widest(products), copies = run.copies_for(weights / 2);
  std::vector<PackedWeight> packed;
  std::vector<Tensor> dense;
  for (int64_t i = 0; i < copies; ++i)
    for (const OpsProduct& p : products) {
      packed.push_back(packed_weight(ex, run.random, p.out, p.in, 4));
      dense.push_back(run.random.normal({p.out, p.in}));
    }
  const std::vector<int64_t> counts = run.up_to_most(kRowCounts);
  run.expect(counts.size());
  for (const int64_t rows : counts) {
    const Tensor x = run.random.normal({rows * most}), y = ex.alloc(DType::bf16, {rows * most});
    const auto block = [&](const OpRow& row, const std::function<void(size_t, const OpsProduct&)>& product) {
      return Timed{row, std::max(copies, kBlocks), [&, product](int64_t call) {
                     for (size_t i = 0; i < products.size(); ++i)
                       product(static_cast<size_t>(call % copies) * products.size() + i, products[i]);
                   }};
    };
    OpRow row{.section = "block", .model = model.name, .op = block_name(products), .type = "int4 g128", .rows = rows};
    row.flop = 2 * static_cast<double>(weights * rows);
    OpRow floats = row;
    floats.type = "bf16";
    row.bytes = kInt4Bytes * static_cast<double>(weights);
    Timed peer = block(floats, [&](size_t i, const OpsProduct& p) {
      library_gemm(ex, matrix(x, rows, p.in), dense[i], matrix(y, rows, p.out));
    });
    Timed op = block(row, [&](size_t i, const OpsProduct& p) {
      marlin_gemm(ex, matrix(x, rows, p.in), packed[i].view, {}, matrix(y, rows, p.out));
    });
    run.add_with_peer(std::move(peer), {std::move(op)});
  }
}

void plain_block(OpsRun& run, const OpsModel& model) {
  if (model.products.empty()) return;
  Exec& ex = run.ex;
  const std::vector<OpsProduct>& products = model.products;
  const int64_t weights = weights_of(products), most = widest(products);
  const std::vector<Tensor> floats = plain_copies(run, products, true), codes = plain_copies(run, products, false);
  const Tensor scales = ex.alloc_zeros(DType::f32, {most});
  const std::vector<int64_t> counts = run.up_to_most(kPlainRows);
  run.expect(std::size(kPlainTypes) * counts.size());
  for (const int64_t rows : counts) {
    const Tensor x = run.random.normal({rows * most}), y = ex.alloc(DType::bf16, {rows * most});
    using Product = std::function<void(TensorView in, TensorView w, TensorView out)>;
    const auto block = [&](const PlainType& type, const Product& product) {
      const std::vector<Tensor>& copies = type.weights == DType::bf16 ? floats : codes;
      OpRow row{.section = "bytes", .model = model.name, .op = block_name(products), .type = type.name, .rows = rows};
      row.bytes = static_cast<double>(weights * bytes_of(type.weights));
      row.flop = 2 * static_cast<double>(weights * rows);
      return Timed{row, static_cast<int64_t>(copies.size() / products.size()), [&, product](int64_t copy) {
                     for (size_t i = 0; i < products.size(); ++i) {
                       const OpsProduct& p = products[i];
                       const Tensor& w = copies[static_cast<size_t>(copy) * products.size() + i];
                       product(matrix(x, rows, p.in), {w.view().data, type.weights, {p.out, p.in}, w.device()},
                               matrix(y, rows, p.out));
                     }
                   }};
    };
    std::vector<Timed> ops;
    for (const PlainType& type : kPlainTypes)
      ops.push_back(block(type, [&](TensorView in, TensorView w, TensorView out) {
        const GemmProduct dense{.w = w, .y = out};
        const ByteProduct bytes{.w = {.codes = w, .scales = scales.view().row_range(0, w.rows())}, .y = out};
        if (type.weights == DType::bf16)
          gemms(ex, in, std::span(&dense, 1));
        else
          byte_gemms(ex, in, {.codes = type.input}, std::span(&bytes, 1));
      }));
    Timed peer =
        block(kPlainTypes[0], [&](TensorView in, TensorView w, TensorView out) { library_gemm(ex, in, w, out); });
    run.add_with_peer(std::move(peer), std::move(ops));
  }
}

// On rows that are normed first, into f32.
void head(OpsRun& run, const OpsModel& model) {
  constexpr int64_t kCalls = 4;
  Exec& ex = run.ex;
  const int64_t vocab = model.vocab, hidden = model.hidden;
  const bool packs = marlin::admits(vocab, hidden, 128, 4);
  if (!packs)
    run.note(fmt::format("{} head: {} x {} does not fit the Marlin layout; no int4", model.name, hidden, vocab));
  const Tensor norm_weight = run.random.normal({hidden}), scales = ex.alloc_zeros(DType::f32, {vocab});
  const Tensor bf16_weight = run.random.normal({vocab, hidden}), words = run.random.words({(vocab * hidden + 3) / 4});
  const Tensor group_scales = ex.alloc_zeros(DType::f16, {std::max<int64_t>(hidden / 128, 1), vocab});
  const RowNorm norm{.weight = norm_weight, .eps = 1e-5f};
  const std::vector<int64_t> counts = run.up_to_most({1, 2, 8, 16, 32, 64});
  run.expect((packs ? 3 : 2) * counts.size());
  for (const int64_t rows : counts) {
    const Tensor x = run.random.normal({rows, hidden}), room = ex.alloc(DType::bf16, {rows, hidden});
    const Tensor y = ex.alloc(DType::f32, {rows, vocab});
    const auto weights = static_cast<double>(vocab * hidden);
    OpRow library{
        .section = "head",
        .model = model.name,
        .op = "norm, head",
        .type = "bf16",
        .in = hidden,
        .out = vocab,
    };
    library.rows = rows, library.flop = 2 * weights * static_cast<double>(rows);
    std::vector<Timed> ops;
    const auto line = [&](const char* type, double bytes, const std::function<void()>& product) {
      OpRow row = library;
      row.type = type, row.bytes = bytes;
      ops.push_back({std::move(row), kCalls, [product](int64_t) { product(); }});
    };
    line("bf16", 2 * weights, [&] {
      const GemmProduct dense{.w = bf16_weight, .y = y};
      normed_gemms(ex, x, norm, room, std::span(&dense, 1));
    });
    line("fp8, x unrounded", weights, [&] {
      const TensorView codes{words.view().data, DType::f8_e4m3, {vocab, hidden}, words.device()};
      const ByteProduct product{.w = {.codes = codes, .scales = scales}, .y = y};
      normed_byte_gemms(ex, x, norm, room, kUnrounded, std::span(&product, 1));
    });
    if (packs)
      line("int4 g128", weights / 2 + 2 * static_cast<double>(group_scales.numel()), [&] {
        rms_norm(ex, x, norm_weight, norm.eps, 0, room);
        const TensorView b{words.view().data, DType::i32, {hidden / 16, vocab * 2}, words.device()};
        const MarlinProduct packed{.w = {.b = b, .s = group_scales, .out = vocab, .in = hidden}, .y = y};
        marlin_gemms(ex, room, std::span(&packed, 1));
      });
    const auto peer = [&](int64_t) {
      rms_norm(ex, x, norm_weight, norm.eps, 0, room);
      library_gemm(ex, room, bf16_weight, y);
    };
    run.add_with_peer({std::move(library), kCalls, peer}, std::move(ops));
  }
}

void packed_linears(OpsRun& run, const OpsModel& model) {
  const std::vector<OpsProduct> products = packable(run, model);
  run.expect(2 * products.size() * run.up_to_most(kRowCounts).size());
  for (const OpsProduct& p : products)
    run.attempt({.section = "linear", .model = model.name, .op = p.name, .in = p.in, .out = p.out},
                [&] { packed_linear(run, model, p); });
}

}  // namespace fewbit::ops
