// Times of the inference ops on a GPU: microseconds, bytes or operations per second, and the share of the
// ceilings measured first. Every time is the median over replays of one recorded graph that holds many
// launches; weights are rotated among copies larger together than the L2 cache, so they come from memory;
// data are random.
//   ops_bench [section...]     sections: block layer bytes head marlin attention small (default: all); 8b, 32b, 70b choose
//   model shapes
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "kernels/add.h"
#include "kernels/attention.h"
#include "kernels/byte_gemms.h"
#include "kernels/decode_layers.h"
#include "kernels/gated_act.h"
#include "kernels/gemm.h"
#include "kernels/marlin_gemm.h"
#include "kernels/nll.h"
#include "kernels/norm.h"
#include "kernels/normed_gemms.h"
#include "kernels/read_all.h"
#include "kernels/rope.h"
#include "src/core/half.h"
#include "src/core/marlin_layout.h"
#include "src/core/rng.h"

namespace fewbit::bench {
namespace {

constexpr int64_t kColdBytes = int64_t{200} << 20;  // beyond the L2 of an H200 (60 MB)
constexpr int kReplays = 21;
constexpr int64_t kBlocks = 8;  // at least, in a graph: its launch and its end are not the kernels'

struct Ceilings {
  double read_gb_s = 0, bf16_tflops = 0;
};

int64_t copies_for(int64_t bytes) { return std::max<int64_t>(1, (kColdBytes + bytes - 1) / bytes); }

// Microseconds of one call of body(i), i = 0 .. calls - 1 in turn.
double time_us(Exec& ex, int64_t calls, const std::function<void(int64_t)>& body) {
  for (int64_t i = 0; i < calls; ++i) body(i);
  const RecordedGraph graph = ex.record([&] {
    for (int64_t i = 0; i < calls; ++i) body(i);
  });
  for (int i = 0; i < 3; ++i) ex.replay(graph);
  std::vector<int> marks = {ex.mark()};
  for (int i = 0; i < kReplays; ++i) {
    ex.replay(graph);
    marks.push_back(ex.mark());
  }
  std::vector<double> ms;
  for (int i = 0; i < kReplays; ++i)
    ms.push_back(ex.elapsed_ms(marks[static_cast<size_t>(i)], marks[static_cast<size_t>(i) + 1]));
  std::nth_element(ms.begin(), ms.begin() + kReplays / 2, ms.end());
  return ms[kReplays / 2] * 1000 / static_cast<double>(calls);
}

// Random values in device memory: a block made once on the host and repeated, at a shifted place each time.
class RandomSource {
 public:
  explicit RandomSource(Exec& ex) : ex_(ex) {
    const Rng rng(1, "bench");
    Tensor normal = Tensor::host(DType::bf16, {kCount}), words = Tensor::host(DType::i32, {kCount});
    for (int64_t i = 0; i < kCount; ++i) {
      normal.as<bf16>()[i] = static_cast<float>(rng.normal_at(static_cast<uint64_t>(i))) * 0.1f;
      words.as<uint32_t>()[i] = static_cast<uint32_t>(rng.at(static_cast<uint64_t>(i)));
    }
    normal_ = ex.to_device(normal);
    words_ = ex.to_device(words);
  }
  Tensor normal(Shape shape) { return fill(ex_.alloc(DType::bf16, shape), normal_); }
  Tensor words(Shape shape) { return fill(ex_.alloc(DType::i32, shape), words_); }

 private:
  static constexpr int64_t kCount = int64_t{1} << 22;
  Tensor fill(Tensor t, const Tensor& from) {
    const int64_t width = bytes_of(t.dtype()), block = kCount - 4096;
    for (int64_t done = 0; done < t.numel(); done += block) {
      const int64_t n = std::min(block, t.numel() - done), shift = (shifts_++ * 64) % 4096;
      ex_.copy({static_cast<const char*>(from.view().data) + shift * width, t.dtype(), Shape{n}, t.device()},
               {static_cast<char*>(t.view().data) + done * width, t.dtype(), Shape{n}, t.device()});
    }
    return t;
  }
  Exec& ex_;
  Tensor normal_, words_;
  int64_t shifts_ = 0;
};

Ceilings measure_ceilings(Exec& ex, RandomSource& random) {
  Ceilings c;
  const Tensor big = random.words({int64_t{1} << 30});  // 4 GiB
  const Tensor mixed = ex.alloc(DType::i32, {1});
  c.read_gb_s =
      static_cast<double>(big.bytes()) / time_us(ex, 2, [&](int64_t) { read_all(ex, big, mixed); }) / 1e3;
  const int64_t n = 8192;
  const Tensor x = random.normal({n, n}), w = random.normal({n, n}), y = ex.alloc(DType::bf16, {n, n});
  const double us = time_us(ex, 4, [&](int64_t) { gemm(ex, x, w, {}, y); });
  c.bf16_tflops = 2.0 * static_cast<double>(n * n * n) / us / 1e6;
  fmt::print("{}\nread {:.0f} GB/s   bf16 {}^3 {:.0f} TFLOP/s\n", ex.device_name(), c.read_gb_s, n,
             c.bf16_tflops);
  return c;
}

struct LinearShape {
  const char* model;
  const char* name;
  int64_t in, out;
};
constexpr LinearShape kShapes[] = {
    {"8b", "qkv", 4096, 6144},       {"8b", "o", 4096, 4096},         {"8b", "gate+up", 4096, 28672},
    {"8b", "down", 14336, 4096},     {"32b", "qkv", 5120, 7168},      {"32b", "o", 5120, 5120},
    {"32b", "gate+up", 5120, 55296}, {"32b", "down", 27648, 5120},    {"70b", "qkv", 8192, 10240},
    {"70b", "o", 8192, 8192},        {"70b", "gate+up", 8192, 57344}, {"70b", "down", 28672, 8192},
};
constexpr int64_t kRowCounts[] = {1, 8, 16, 32, 64, 256, 2048};

struct PackedWeight {
  Tensor b, s;
  MarlinView view{};
};
PackedWeight packed_weight(Exec& ex, RandomSource& random, int64_t out, int64_t in, int bits) {
  PackedWeight w;
  w.b = random.words({in / 16, marlin::words_per_row(out, bits)});
  Tensor scales = Tensor::host(DType::f16, {in / 128, out});
  for (int64_t i = 0; i < scales.numel(); ++i)
    scales.as<f16>()[i] = 0.001f + 0.0001f * static_cast<float>(i % 17);
  w.s = ex.to_device(scales);
  w.view = {.b = w.b, .s = w.s, .bits = bits, .out = out, .in = in};
  return w;
}

void bench_linear(Exec& ex, RandomSource& random, const Ceilings& c, const LinearShape& shape) {
  const double weights = static_cast<double>(shape.in * shape.out);
  const auto dense_copies = copies_for(2 * shape.in * shape.out),
             packed_copies = copies_for(shape.in * shape.out / 2);
  std::vector<Tensor> dense;
  for (int64_t i = 0; i < dense_copies; ++i) dense.push_back(random.normal({shape.out, shape.in}));
  std::vector<PackedWeight> four, eight;
  for (int64_t i = 0; i < packed_copies; ++i)
    four.push_back(packed_weight(ex, random, shape.out, shape.in, 4));
  for (int64_t i = 0; i < (packed_copies + 1) / 2; ++i)
    eight.push_back(packed_weight(ex, random, shape.out, shape.in, 8));
  for (const int64_t rows : kRowCounts) {
    const Tensor x = random.normal({rows, shape.in}), y = ex.alloc(DType::bf16, {rows, shape.out});
    const auto of = [](auto& list, int64_t i) -> auto& { return list[static_cast<size_t>(i) % list.size()]; };
    const auto calls = std::max<int64_t>(packed_copies, 4);
    const double us16 =
        time_us(ex, std::max<int64_t>(dense_copies, 4), [&](int64_t i) { gemm(ex, x, of(dense, i), {}, y); });
    const double us4 = time_us(ex, calls, [&](int64_t i) { marlin_gemm(ex, x, of(four, i).view, {}, y); });
    const double us8 = time_us(ex, calls, [&](int64_t i) { marlin_gemm(ex, x, of(eight, i).view, {}, y); });
    const double bytes = weights / 2 + weights / 64, flop = 2 * weights * static_cast<double>(rows);
    fmt::print(
        "{:>4} {:<8} {:>5}x{:<5} {:>5} | {:>9.1f} {:>6.0f} {:>4.0f}% {:>6.1f} {:>4.0f}% | {:>9.1f} | "
        "{:>9.1f} | {:>5.2f}\n",
        shape.model, shape.name, shape.in, shape.out, rows, us4, bytes / us4 / 1e3,
        100 * bytes / us4 / 1e3 / c.read_gb_s, flop / us4 / 1e6, 100 * flop / us4 / 1e6 / c.bf16_tflops, us8,
        us16, us16 / us4);
    std::fflush(stdout);
  }
}

// The four products of a decoder block, back to back in one graph, as decode runs them.
void bench_block(Exec& ex, RandomSource& random, const Ceilings& c, const std::string& model) {
  std::vector<LinearShape> shapes;
  int64_t weights = 0, most = 0;
  for (const LinearShape& shape : kShapes)
    if (model == shape.model) {
      shapes.push_back(shape);
      weights += shape.in * shape.out;
      most = std::max({most, shape.in, shape.out});
    }
  const int64_t copies = copies_for(weights / 2);
  std::vector<PackedWeight> packed;
  std::vector<Tensor> dense;
  for (int64_t i = 0; i < copies; ++i)
    for (const LinearShape& shape : shapes) {
      packed.push_back(packed_weight(ex, random, shape.out, shape.in, 4));
      dense.push_back(random.normal({shape.out, shape.in}));
    }
  for (const int64_t rows : kRowCounts) {
    const Tensor x = random.normal({rows * most}), y = ex.alloc(DType::bf16, {rows * most});
    const auto matrix = [&](const Tensor& t, int64_t cols) {
      return TensorView{t.view().data, DType::bf16, {rows, cols}, t.device()};
    };
    const auto time_block = [&](const std::function<void(size_t, const LinearShape&)>& product) {
      return time_us(ex, std::max(copies, kBlocks), [&](int64_t call) {
        for (size_t i = 0; i < shapes.size(); ++i)
          product(static_cast<size_t>(call % copies) * shapes.size() + i, shapes[i]);
      });
    };
    const double us4 = time_block([&](size_t i, const LinearShape& shape) {
      marlin_gemm(ex, matrix(x, shape.in), packed[i].view, {}, matrix(y, shape.out));
    });
    const double us16 = time_block([&](size_t i, const LinearShape& shape) {
      gemm(ex, matrix(x, shape.in), dense[i], {}, matrix(y, shape.out));
    });
    const double rate = static_cast<double>(weights) * (0.5 + 1.0 / 64) / us4 / 1e3;
    fmt::print("{:>4} {:>5} | {:>9.1f} {:>6.0f} {:>4.0f}% | {:>9.1f} | {:>5.2f}\n", model, rows, us4, rate,
               100 * rate / c.read_gb_s, us16, us16 / us4);
    std::fflush(stdout);
  }
}

void bench_blocks(Exec& ex, RandomSource& random, const Ceilings& c, const std::set<std::string>& models) {
  fmt::print(
      "\nblock of four products, group 128\nmodel  rows |   4-bit us   GB/s read |   bf16 us | gain\n");
  for (const char* model : {"8b", "32b", "70b"})
    if (models.empty() || models.count(model)) bench_block(ex, random, c, model);
}

// The same with weights as they lie: bf16, FP8 and int8, whose x is quantized on the way, and FP8 with x as it is.
void bench_bytes(Exec& ex, RandomSource& random, const Ceilings& c, const std::set<std::string>& models) {
  fmt::print("\nblock of four products on row-major weights\nmodel  type     rows |         us   GB/s read\n");
  for (const char* model : {"8b", "32b", "70b"})
    for (const auto& [type, input] : {std::pair{DType::bf16, DType::bf16}, {DType::f8_e4m3, DType::f8_e4m3},
                                      {DType::f8_e4m3, DType::f16}, {DType::i8, DType::i8}}) {
      if (!models.empty() && !models.count(model)) continue;
      std::vector<LinearShape> shapes;
      int64_t bytes = 0, most = 0;
      for (const LinearShape& shape : kShapes)
        if (std::string_view(model) == shape.model) {
          shapes.push_back(shape);
          bytes += shape.in * shape.out * bytes_of(type);
          most = std::max({most, shape.in, shape.out});
        }
      const int64_t copies = copies_for(bytes);
      std::vector<Tensor> storage;
      std::vector<TensorView> weights;
      for (int64_t i = 0; i < copies; ++i)
        for (const LinearShape& shape : shapes) {
          storage.push_back(type == DType::bf16 ? random.normal({shape.out, shape.in})
                                                : random.words({shape.out, shape.in / 4}));
          weights.push_back({storage.back().view().data, type, {shape.out, shape.in}, storage.back().device()});
        }
      const Tensor scales = ex.alloc_zeros(DType::f32, {most});
      for (const int64_t rows : {1, 2, 8, 16}) {
        const Tensor x = random.normal({rows * most}), y = ex.alloc(DType::bf16, {rows * most});
        const auto matrix = [&](const Tensor& t, int64_t cols) {
          return TensorView{t.view().data, DType::bf16, {rows, cols}, t.device()};
        };
        const double us = time_us(ex, copies, [&](int64_t copy) {
          for (size_t i = 0; i < shapes.size(); ++i) {
            const TensorView w = weights[static_cast<size_t>(copy) * shapes.size() + i];
            const TensorView in = matrix(x, shapes[i].in), out = matrix(y, shapes[i].out);
            const GemmProduct dense{.w = w, .y = out};
            const ByteProduct codes{.w = {.codes = w, .scales = scales.view().row_range(0, shapes[i].out)}, .y = out};
            if (type == DType::bf16)
              gemms(ex, in, std::span(&dense, 1));
            else
              byte_gemms(ex, in, {.codes = input}, std::span(&codes, 1));
          }
        });
        const double rate = static_cast<double>(bytes) / us / 1e3;
        fmt::print("{:>5}  {:<7} {:>5} | {:>10.1f} {:>6.0f} {:>4.0f}%{}\n", model, name_of(type), rows, us, rate,
                   100 * rate / c.read_gb_s, input == DType::f16 ? "  x unrounded" : "");
        std::fflush(stdout);
      }
    }
}

// The head of the 8b shape on rows that are normed first, into f32: bf16, FP8 with x as it is, int4.
void bench_head(Exec& ex, RandomSource& random, const Ceilings& c) {
  constexpr int64_t kVocab = 128256, kHidden = 4096, kGroups = kHidden / 128, kCalls = 4;
  fmt::print("\nhead of {} x {} and the norm before it\ntype     rows |         us   GB/s read\n", kVocab, kHidden);
  const Tensor norm_weight = random.normal({kHidden}), scales = ex.alloc_zeros(DType::f32, {kVocab});
  const Tensor bf16_weight = random.normal({kVocab, kHidden}), words = random.words({kVocab, kHidden / 4});
  const Tensor group_scales = ex.alloc_zeros(DType::f16, {kGroups, kVocab});
  const RowNorm norm{.weight = norm_weight, .eps = 1e-5f};
  for (const int64_t rows : {1, 2, 8, 16, 32, 64}) {
    const Tensor x = random.normal({rows, kHidden}), room = ex.alloc(DType::bf16, {rows, kHidden});
    const Tensor y = ex.alloc(DType::f32, {rows, kVocab});
    const auto line = [&](const char* type, double bytes, const std::function<void()>& product) {
      const double us = time_us(ex, kCalls, [&](int64_t) { product(); }), rate = bytes / us / 1e3;
      fmt::print("{:<7} {:>5} | {:>10.1f} {:>6.0f} {:>4.0f}%\n", type, rows, us, rate, 100 * rate / c.read_gb_s);
      std::fflush(stdout);
    };
    const auto weights = static_cast<double>(kVocab * kHidden);
    line("bf16", 2 * weights, [&] {
      const GemmProduct dense{.w = bf16_weight, .y = y};
      normed_gemms(ex, x, norm, room, std::span(&dense, 1));
    });
    line("fp8", weights, [&] {
      const TensorView codes{words.view().data, DType::f8_e4m3, {kVocab, kHidden}, words.device()};
      const ByteProduct product{.w = {.codes = codes, .scales = scales}, .y = y};
      normed_byte_gemms(ex, x, norm, room, kUnrounded, std::span(&product, 1));
    });
    line("int4", weights / 2 + 2 * static_cast<double>(group_scales.numel()), [&] {
      rms_norm(ex, x, norm_weight, norm.eps, 0, room);
      const TensorView b{words.view().data, DType::i32, {kHidden / 16, kVocab * 2}, words.device()};
      const MarlinProduct packed{.w = {.b = b, .s = group_scales, .out = kVocab, .in = kHidden}, .y = y};
      marlin_gemms(ex, room, std::span(&packed, 1));
    });
  }
}

void bench_marlin(Exec& ex, RandomSource& random, const Ceilings& c, const std::set<std::string>& models) {
  fmt::print(
      "\nlinear, group 128, in x out    rows |   4-bit us   GB/s read  TFLOP/s bf16 |  8-bit us |   bf16 us "
      "| gain\n");
  for (const LinearShape& shape : kShapes)
    if (models.empty() || models.count(shape.model)) bench_linear(ex, random, c, shape);
}

// One new token of each sequence over `copies` caches in turn, which hold `context` positions of random codes.
double decode_us(Exec& ex, RandomSource& random, const AttentionArgs& args, DType dtype, int64_t batch,
                 int64_t context, int64_t copies) {
  const int64_t heads = args.kv_heads, d = args.head_dim;
  const Shape scales = dtype == DType::i8 ? Shape{batch, heads, context} : Shape{heads};
  const Tensor scale = ex.alloc_zeros(DType::f32, scales);
  std::vector<Tensor> k, v;
  for (int64_t i = 0; i < copies; ++i)
    for (std::vector<Tensor>* side : {&k, &v}) {
      const Tensor values = random.normal({batch, heads, context, d});
      side->push_back(ex.alloc(dtype, values.shape()));
      const TensorView codes = values.view().reshaped({2, values.numel() / 2}).row_range(0, 1);
      if (dtype == DType::bf16)
        ex.copy(values, side->back());
      else
        ex.copy({codes.data, dtype, side->back().shape(), codes.device}, side->back());
    }
  const Tensor q = random.normal({batch, args.heads * d}), out = ex.alloc(DType::bf16, {batch, args.heads * d});
  Tensor host = Tensor::host(DType::i32, {batch});
  std::fill_n(host.as<int32_t>(), batch, static_cast<int32_t>(context - 1));
  const Tensor positions = ex.to_device(host);
  return time_us(ex, std::max<int64_t>(copies, 4), [&](int64_t i) {
    const auto at = static_cast<size_t>(i % copies);
    attention_cached(ex, q, positions, {k[at], v[at], scale, scale}, args, out);
  });
}

void bench_attention(Exec& ex, RandomSource& random, const Ceilings& c) {
  const int heads = 32, kv_heads = 8;
  const int64_t d = 128;
  const AttentionArgs args{.heads = heads, .kv_heads = kv_heads, .head_dim = d, .scale = 0.088f};
  fmt::print("\ndecode attention, 32/8 heads of 128   cache  batch context |        us   GB/s  read\n");
  for (const DType cache : {DType::bf16, DType::f8_e4m3, DType::i8})
    for (const int64_t batch : {1, 8})
      for (const int64_t context : {512, 2048, 8192, 32768}) {
        const int64_t scale = cache == DType::i8 ? 4 : 0;
        const int64_t bytes = 2 * batch * kv_heads * context * (d * bytes_of(cache) + scale);
        const double us = decode_us(ex, random, args, cache, batch, context, copies_for(bytes));
        const double rate = static_cast<double>(bytes) / us / 1e3;
        fmt::print("{:>43} {:>6} {:>7} | {:>9.1f} {:>6.0f} {:>4.0f}%\n", name_of(cache), batch, context, us, rate,
                   100 * rate / c.read_gb_s);
      }
  fmt::print("\ncausal attention, 32/8 heads of 128    seqs  length |        us TFLOP/s  bf16\n");
  for (const int64_t length : {512, 2048, 8192}) {
    const int64_t seqs = std::max<int64_t>(1, 4096 / length);
    const Tensor q = random.normal({seqs * length, heads * d}),
                 out = ex.alloc(DType::bf16, {seqs * length, heads * d});
    const Tensor k = random.normal({seqs * length, kv_heads * d}),
                 v = random.normal({seqs * length, kv_heads * d});
    const double us = time_us(ex, 4, [&](int64_t) { attention(ex, q, k, v, seqs, args, out); });
    const double rate =
        2.0 * static_cast<double>(seqs * length * length * heads * d) / us / 1e6;  // half of the square
    fmt::print("{:>43} {:>7} | {:>9.1f} {:>6.0f} {:>4.0f}%\n", seqs, length, us, rate,
               100 * rate / c.bf16_tflops);
  }
}

void bench_small(Exec& ex, RandomSource& random, const Ceilings& c) {
  fmt::print("\nsmall ops, hidden 4096                 rows |        us   GB/s  read\n");
  const auto line = [&](const char* name, int64_t rows, double bytes, double us) {
    fmt::print("{:<36} {:>6} | {:>9.1f} {:>6.0f} {:>4.0f}%\n", name, rows, us, bytes / us / 1e3,
               100 * bytes / us / 1e3 / c.read_gb_s);
  };
  const Tensor weight = random.normal({4096}), freq = ex.alloc_zeros(DType::f32, {64});
  for (const int64_t rows : {1, 8, 2048}) {
    const Tensor x = random.normal({rows, 4096}), y = random.normal({rows, 4096});
    const Tensor gate = random.normal({rows, 14336}), up = random.normal({rows, 14336});
    const Tensor positions = ex.alloc_zeros(DType::i32, {rows}), out = ex.alloc(DType::bf16, {rows, 14336});
    const double n = static_cast<double>(x.bytes()), wide = static_cast<double>(gate.bytes());
    line("rms_norm", rows, 2 * n, time_us(ex, 50, [&](int64_t) { rms_norm(ex, x, weight, 1e-5f, 0, y); }));
    line("add", rows, 3 * n, time_us(ex, 50, [&](int64_t) { add(ex, x, y); }));
    line("rope, 32 heads", rows, 2 * n,
         time_us(ex, 50, [&](int64_t) { rope(ex, y, positions, freq, 128, 1); }));
    line("gated_act, 14336", rows, 3 * wide,
         time_us(ex, 50, [&](int64_t) { gated_act(ex, gate, up, ActKind::silu, out); }));
  }
  for (const int64_t rows : {1, 8, 1024}) {
    const Tensor logits = ex.alloc_zeros(DType::f32, {rows, 128256}),
                 ids = ex.alloc_zeros(DType::i32, {rows});
    const Tensor out = ex.alloc(DType::f32, {rows});
    const auto n = static_cast<double>(logits.bytes());
    line("argmax, vocabulary of 128256", rows, n, time_us(ex, 20, [&](int64_t) { argmax(ex, logits, ids); }));
    line("nll, vocabulary of 128256", rows, n,
         time_us(ex, 20, [&](int64_t) { nll(ex, logits, ids, 0, out); }));
  }
}

// Layers of the 8b shape on one token of several sequences, 512 positions in sight: op by op, and as decode_layers() launches them.
void bench_layers(Exec& ex, RandomSource& random) {
  constexpr int64_t kHidden = 4096, kInner = 14336, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kPositions = 512;
  fmt::print("\ndecoder layer of the 8b shape, 4-bit, group 128, attention over 512 positions\nrows | op by op us | in launches us | ratio\n");
  std::vector<PackedWeight> packed;
  std::vector<Tensor> kept;
  std::vector<DecodeLayer> layers;
  const auto linear = [&](int64_t out, int64_t in) { return packed.emplace_back(packed_weight(ex, random, out, in, 4)).view; };
  const Tensor weight = random.normal({kHidden});
  for (int64_t i = 0; i < kBlocks; ++i)
    layers.push_back({.input_norm = weight,
                      .middle_norm = weight,
                      .q = linear(kHeads * kHeadDim, kHidden),
                      .k = linear(kKvHeads * kHeadDim, kHidden),
                      .v = linear(kKvHeads * kHeadDim, kHidden),
                      .o = linear(kHidden, kHeads * kHeadDim),
                      .gate = linear(kInner, kHidden),
                      .up = linear(kInner, kHidden),
                      .down = linear(kHidden, kInner)});
  Tensor frequencies = Tensor::host(DType::f32, {kHeadDim / 2});
  for (int64_t i = 0; i < frequencies.numel(); ++i) frequencies.as<float>()[i] = 1.f / static_cast<float>(1 + i);
  const Tensor inv_freq = ex.to_device(frequencies);
  const DecodeForm form{.attention = {.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kHeadDim, .scale = 0.09f},
                        .rope = {.inv_freq = inv_freq},
                        .eps = 1e-5f};
  AttentionArgs behind_append = form.attention;  // as the engine asks for it
  behind_append.behind_append = true;
  for (const int64_t rows : {1, 2, 4, 8, 16}) {
    kept.clear();
    for (DecodeLayer& l : layers)
      for (TensorView* each : {&l.cache.k, &l.cache.v})
        *each = kept.emplace_back(random.normal({rows, kKvHeads, kPositions, kHeadDim}));
    const Tensor x = random.normal({rows, kHidden});
    const auto room = [&](int64_t cols) { return ex.alloc(DType::bf16, {rows, cols}); };
    const Tensor normed = room(kHidden), q = room(kHeads * kHeadDim), k = room(kKvHeads * kHeadDim), v = room(kKvHeads * kHeadDim);
    const Tensor attended = room(kHeads * kHeadDim), gate = room(kInner), up = room(kInner);
    Tensor at = Tensor::host(DType::i32, {rows});
    std::fill_n(at.as<int32_t>(), rows, static_cast<int32_t>(kPositions - 1));
    const Tensor positions = ex.to_device(at);
    const auto of = [](const DecodeLinear& l) { return std::get<MarlinView>(l); };
    const double ops = time_us(ex, kBlocks, [&](int64_t i) {
      const DecodeLayer& l = layers[static_cast<size_t>(i)];
      const auto add = [&](const Tensor& input, const DecodeLinear& w) {
        const MarlinProduct product{.w = of(w), .y = x, .add = true};
        marlin_gemms(ex, input, std::span(&product, 1));
      };
      rms_norm(ex, x, l.input_norm, form.eps, 0, normed);
      const MarlinProduct qkv[] = {{.w = of(l.q), .y = q}, {.w = of(l.k), .y = k}, {.w = of(l.v), .y = v}};
      marlin_gemms(ex, normed, qkv);
      rope_append(ex, q, k, v, positions, form.rope, l.cache);
      attention_cached(ex, q, positions, l.cache, behind_append, attended);
      add(attended, l.o);
      rms_norm(ex, x, l.middle_norm, form.eps, 0, normed);
      const MarlinProduct wide[] = {{.w = of(l.gate), .y = gate}, {.w = of(l.up), .y = up}};
      marlin_gemms(ex, normed, wide);
      gated_act(ex, gate, up, ActKind::silu, gate);
      add(gate, l.down);
    });
    if (const std::string why = refuses_stack(ex, layers, form); !why.empty()) {
      fmt::print("{:>4} | {:>11.1f} | {}\n", rows, ops, why);
      continue;
    }
    const DecodeStack stack = make_stack(ex, layers, form);
    const double launches = time_us(ex, 1, [&](int64_t) { decode_layers(ex, stack, positions, x); }) / kBlocks;
    fmt::print("{:>4} | {:>11.1f} | {:>14.1f} | {:>5.3f}\n", rows, ops, launches, launches / ops);
    std::fflush(stdout);
  }
}

int run(const std::vector<std::string>& words) {
  std::set<std::string> sections, models;
  for (const std::string& w : words) (w == "8b" || w == "32b" || w == "70b" ? models : sections).insert(w);
  const auto wanted = [&](const char* name) { return sections.empty() || sections.count(name) > 0; };
  Exec ex = Exec::cuda(0);
  RandomSource random(ex);
  const Ceilings c = measure_ceilings(ex, random);
  if (wanted("small")) bench_small(ex, random, c);
  if (wanted("attention")) bench_attention(ex, random, c);
  if (wanted("block")) bench_blocks(ex, random, c, models);
  if (wanted("layer")) bench_layers(ex, random);
  if (wanted("bytes")) bench_bytes(ex, random, c, models);
  if (wanted("head")) bench_head(ex, random, c);
  if (wanted("marlin")) bench_marlin(ex, random, c, models);
  return 0;
}

}  // namespace
}  // namespace fewbit::bench

int main(int argc, char** argv) {
  try {
    return fewbit::bench::run({argv + 1, argv + argc});
  } catch (const fewbit::Error& e) {
    fmt::print(stderr, "ops_bench: {}\n", e.what());
    return e.exit_code();
  }
}
