#pragma once
// What the sections of time_ops() share (src/run/ops_bench*.cpp): random data, the clock, the rows.
#include "kernels/products/marlin/marlin_gemm.h"
#include "src/run/bench/ops_bench.h"

namespace fewbit::ops {

// At least so many blocks are in a graph of blocks: its launch and its end are not the kernels'.
inline constexpr int64_t kBlocks = 8;
// of a weight in groups of 128, f16 scales
inline constexpr double kInt4Bytes = 0.5 + 2.0 / 128, kInt8Bytes = 1 + 2.0 / 128;

// Random values in device memory: a block made once on the host and repeated, at a shifted place each time.
class RandomSource {
 public:
  explicit RandomSource(Exec&);
  Tensor normal(Shape shape);  // bf16
  Tensor words(Shape shape);   // i32

 private:
  Tensor fill(Tensor t, const Tensor& from);
  Exec& ex_;
  Tensor normal_, words_;
  int64_t shifts_ = 0;
};

struct PackedWeight {
  Tensor b, s;
  MarlinView view{};
};
PackedWeight packed_weight(Exec&, RandomSource&, int64_t out, int64_t in, int bits);

// row.us = microseconds of one call of body(i), i = 0 .. calls - 1.
struct Timed {
  OpRow row;
  int64_t calls = 1;
  std::function<void(int64_t)> body;
};

class OpsRun {
 public:
  OpsRun(Exec& exec, const OpsOptions& options, OpsReport& out, std::function<void(double)> tell)
      : ex(exec), random(exec), report(out), options_(options), tell_(std::move(tell)) {}
  Exec& ex;
  RandomSource random;
  OpsReport& report;

  // Copies of weights (or caches) of so many bytes that are cold when their turn comes again.
  int64_t copies_for(int64_t bytes) const { return std::max<int64_t>(1, (options_.cold_bytes + bytes - 1) / bytes); }
  std::vector<int64_t> up_to_most(std::initializer_list<int64_t> counts) const;
  // Replays A B C A B C ...: the clock, which a GPU at its power limit moves by what ran in the last second, meets all
  // alike. An Error becomes its op's row.error, and the others go on. After one that sticks to the GPU's context that
  // row alone is kept, lost() is true and the Error goes on, here and in attempt().
  void time_in_turn(std::span<Timed> ops);
  // Adds a timed row with its rates and shares.
  void keep(OpRow row);
  void add(Timed op);
  // In turn with the same work done otherwise, which is a row of its own only where it fails.
  void add_with_peer(Timed peer, std::vector<Timed> ops);
  // What lays out data for rows: an Error becomes a row with it.
  void attempt(OpRow what, const std::function<void()>& work);
  void note(const std::string& text);  // once
  // Progress: how many rows this section makes for this model.
  void expect(size_t rows) { expected_ = rows, kept_ = 0; }
  bool lost() const { return lost_; }

 private:
  bool answers();
  bool tried(OpRow& row, const std::function<void()>& work);
  const OpsOptions& options_;
  std::function<void(double)> tell_;
  size_t expected_ = 1, kept_ = 0;
  bool lost_ = false;
};

// The sections.
void small_ops(OpsRun&, const OpsModel&);
void decode_attention(OpsRun&, const OpsModel&);
void prefill_attention(OpsRun&, const OpsModel&);
void packed_block(OpsRun&, const OpsModel&);
void decoder_layer(OpsRun&, const OpsModel&);
void plain_block(OpsRun&, const OpsModel&);
void head(OpsRun&, const OpsModel&);
void packed_linears(OpsRun&, const OpsModel&);
void latent_attention_rows(OpsRun&, const OpsModel&);
void delta_rule_rows(OpsRun&, const OpsModel&);

// The products that the Marlin layout takes in groups of 128; the others become notes.
std::vector<OpsProduct> packable(OpsRun&, const OpsModel&);

}  // namespace fewbit::ops
