#pragma once
// Statistics of one input, as the linears behind it will see it. Rows come chunk by chunk; the sums are those of all
// rows at once, to the bit.
#include <functional>
#include <limits>
#include <memory>

#include "src/calib/gram_share.h"
#include "src/calib/input_stats.h"
#include "src/calib/row_cutter.h"

namespace fewbit {

inline constexpr int64_t kSampleTokens = 4096;

// Shows every chunk of an input, in order. Can be asked again, and shows the same.
using EachChunk = std::function<void(const std::function<void(const InputRows&)>&)>;

// What is summed of an input besides its own Gram matrix.
struct InputSumsOf {
  int64_t in = 0;
  bool cross = false;
  int64_t out = 0;         // features of the errors; 0 where there are none
  float error_factor = 1;  // times which they are summed
};

// What a static scale must reach: the largest |x| of all rows, or the asked percentile over at most kSampleTokens of
// them, evenly spaced.
class InputRange {
 public:
  // `tokens`: how many rows will come.
  InputRange(Exec&, const InputRounding&, int64_t tokens, int64_t in);
  void add(ConstTensorView x);
  float scale();                          // of the largest code; 1 where everything was zero or nothing came
  float reach() const { return reach_; }  // InputStats::input_reach, once scale() was asked

 private:
  Exec& ex_;
  InputRounding rounding_;
  int64_t step_ = 1, seen_ = 0;
  Tensor absmax_{}, abssum_{};
  std::vector<float> magnitudes_{};  // of the sampled rows, for a percentile
  float reach_ = 1;
};

// The sums over rows of an input, f32 | bf16: x rounded as `rounding` says, the others never. Several ranks all add the
// same rows, and share the products; finish() is collective then. Where cross sums are asked for, rows may come without
// those of the unquantized stream; the cross sums are then what they are taken to be by the rows that have both.
class InputSums {
 public:
  // `beside`: as GramShare has it.
  InputSums(Exec&, const InputSumsOf&, const InputRounding&, float input_scale, const Ranks& = one_process(),
            bool beside = false);
  InputSums(InputSums&&) = delete;
  void add(const InputRows&);
  // The same of rows that come in pieces for good, which are summed as they are.
  void add_piece(const InputRows&);
  InputStats finish();

 private:
  void count(const InputRows&);
  bool is_lone(const InputRows& rows) const { return !stats_.cross.empty() && !rows.full.data; }
  void sample(ConstTensorView x);
  void sum(const InputRows&);
  void join_lone();

  Exec& ex_;
  InputRounding rounding_;
  float error_factor_;
  GramShare share_;
  InputStats stats_{};
  Tensor sample_{};     // room for kSampleTokens rows
  Tensor lone_gram_{};  // of rows without the unquantized stream's beside cross sums
  int64_t lone_ = 0;    // such rows
  RowCutter cutter_, lone_cutter_;
};

// Some of the rows of an input: of every `stride` runs of kRun rows the first. They do not depend on how rows are dealt
// to chunks.
class SpreadRuns {
 public:
  // At most about `most` of `tokens` rows; all where there are no more.
  SpreadRuns(int64_t tokens, int64_t most) : stride_(tokens <= most ? 1 : (tokens + most - 1) / most) {}
  // Shows those among the next rows.
  void pick(const InputRows&, const std::function<void(const InputRows&)>& see);

 private:
  static constexpr int64_t kRun = 2048;
  int64_t stride_, seen_ = 0;
};

// The statistics of an input of `tokens` rows: two rounds where a static scale must be found first, which is
// that of all rows. The sums are those of about `summed` of them.
InputStats observe_input(Exec&, const EachChunk&, int64_t tokens, const InputSumsOf&, const InputRounding&,
                         const Ranks& = one_process(), int64_t summed = std::numeric_limits<int64_t>::max());
// The same of rows that are all at hand.
InputStats observe_input(Exec&, const InputRows&, const InputRounding& rounding);

// At most `count` rows of x at even distances.
Tensor spread_rows(Exec&, ConstTensorView x, int64_t count);
// Which row is number k of `count` at even distances among `rows`.
constexpr int64_t spread_row(int64_t k, int64_t count, int64_t rows) { return k * rows / count; }

}  // namespace fewbit
