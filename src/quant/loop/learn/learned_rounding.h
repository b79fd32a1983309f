#pragma once
// Learned rounding: after the linears of a block are coded, their codes and scales move together down the
// gradient of the block's output error. What it aims at is the output of the unquantized block on the
// unquantized stream, so that a block also repairs what the blocks before it lost. The idea of moving the
// rounding by the sign of its gradient is SignRound's (Cheng et al., 2023).
#include <functional>
#include <string>
#include <vector>

#include "src/calib/chunk_share.h"
#include "src/core/quantized_linear.h"
#include "src/run/block.h"

namespace fewbit {

inline constexpr int kLearningSteps = 200;

struct LearnedLinear {
  std::string name;                  // relative to the block
  QuantizedLinear* coded = nullptr;  // in host memory; an integer grid of consecutive groups. Changed if better
};

struct BlockLearning {
  const ModelSpec* spec = nullptr;
  int64_t layer = 0;
  const RopeTables* ropes = nullptr;
  const BlockWeights* weights = nullptr;  // dense, in any compute dtype; biases, norms and linears not learned
  const States* entering = nullptr;       // quantized stream in front of the block
  const States* target = nullptr;         // the same windows: unquantized stream behind it
  const ChunkShare* share = nullptr;      // where the chunks of both are the ranks'; all of them then learn alike
  uint64_t seed = 0;                      // of the order of the windows
  std::vector<LearnedLinear> linears{};
  std::function<void(double)> progress{};  // fraction done
  // Seconds that may still be spent, the same on every rank; empty: as many as it needs. Then the steps are as many as
  // will fit, by the time of the first loss, and they end when the time does; the bits depend on the clock.
  std::function<double()> seconds_left{};
};

struct LearnedResult {
  double before = 0,
         after = 0;      // mean squared error of the block's output on all windows; what `coded` has then
  bool changed = false;  // false: the start was better, and `coded` is as it was
  int steps = 0;         // that were made
};
// Works in f32.
LearnedResult learn_rounding(Exec&, const BlockLearning&);

// Device memory that it needs for a block of `weights` weights and windows of `len` tokens.
int64_t learning_bytes(const ModelSpec&, const std::vector<BlockOp>&, int64_t weights, int64_t windows, int64_t len);
// What it computes, in forward passes of one window through the block: of a step one, and twice as much on its way
// back.
double learning_passes(int64_t windows);

}  // namespace fewbit
