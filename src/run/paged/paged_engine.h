#pragma once
// A whole model resident on a device with a paged cache: passes over new tokens of many sequences at once, of one token
// (decode) or of many (prefill), in any mixture.
//
// A row's bits depend on its own sequence alone, not on the rows beside it nor on how its sequence was cut into passes.
// Products of the CPU's matrix unit keep that promise for any number of rows, others up to kRowsAlike; a pass goes
// through the layers in slices of as many as all products of the model take. On a GPU a pass is one slice, whose rows
// decide which kernels run: bits differ with them, unless `batch_invariant` makes every slice kInvariantRows long. A
// step that decodes only is recorded there, for numbers of rows in steps; rows that are none fill it up.
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/run/block.h"
#include "src/run/head.h"
#include "src/run/paged/pass_rows.h"
#include "src/run/paged/ragged.h"
#include "src/run/paged/rows_alike.h"

namespace fewbit {

struct PagedOptions {
  LoadOptions load{};
  int64_t pages = 256;     // of kPagePositions each
  int64_t sequences = 32;  // at one time
  int64_t longest = 2048;  // positions of a sequence
  int64_t pass = 512;      // rows of a pass
  // On a GPU: bits of a row that depend on its own sequence alone, as they do on the CPU. Error{unsupported} for a
  // mixture of experts.
  bool batch_invariant = false;
  bool graph = true;  // record steps (CUDA)
};

// What came of a pass, on the host, by rows of logits.
struct PassRow {
  std::span<const float> logits{};
  int32_t likeliest = -1;
};
struct PassResult {
  std::vector<std::span<const float>> logits{};  // [vocab]; empty where they were not asked for
  std::span<const int32_t> likeliest{};          // of every row; empty on the CPU, where all logits are there
  PassRow row(size_t i) const { return {logits[i], likeliest.empty() ? -1 : likeliest[i]}; }
};

// New tokens of one sequence in a pass: they go behind its present length, for which grow() was called. Logits are
// wanted of the rows from `logits_from` on; -1: of none.
struct NewTokens {
  int sequence = 0;
  std::span<const int32_t> ids{};
  int64_t logits_from = -1;
};

class PagedEngine {
 public:
  // Error{unsupported} for a model that ranks share, and on a GPU for one with layers that go sequence by sequence.
  PagedEngine(Exec&, const Checkpoint&, const PagedOptions&);
  PagedEngine(const PagedEngine&) = delete;
  PagedEngine& operator=(const PagedEngine&) = delete;
  const ModelSpec& spec() const { return spec_; }
  const PagedOptions& options() const { return options_; }
  PagedCache& cache() { return cache_; }
  // Runs the new tokens and lengthens their sequences. The logits that were wanted, in order, f32 [rows, vocab] on the
  // device; valid until the next call. Error{usage} for ids outside the vocabulary.
  ConstTensorView pass(std::span<const NewTokens>);
  // Of the last pass, valid until the next; waits. `asked`: by row of logits, whether those are wanted.
  PassResult result(const std::vector<uint8_t>& asked);
  void set_batch_invariant(bool);                   // PagedOptions, for passes from now on
  int64_t rows_of_slice() const { return slice_; }  // kRowsAlike or kRowsInTiles on the CPU
  int64_t weight_bytes() const;                     // of one slice of a pass
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Step {
    RecordedGraph graph;
    bool warm = false;  // scratch memory has its size, so that it may be recorded
  };
  std::vector<PassSlice> slices_of(std::span<const NewTokens>) const;
  std::vector<size_t> in_order(std::span<const NewTokens>) const;  // their places
  int64_t padded(int64_t rows, bool step = false) const;
  bool recorded(const PassSlice&, int64_t rows) const;
  void run_slice(const PassSlice&, const PlacedRows&, TensorView x);
  void run_step(const PassSlice&, const PlacedRows&, TensorView logits);
  void head(ConstTensorView x, TensorView logits);
  TensorView room_for_logits(int64_t rows);
  int64_t invariant_splits() const;  // PagedRows::splits
  int64_t gpu_slice() const;

  Exec& ex_;
  ModelSpec spec_;
  PagedOptions options_;
  std::vector<std::string> notes_;
  Ends ends_;
  std::vector<BlockWeights> blocks_;
  RopeTables ropes_;
  std::vector<KvStaticScales> kv_scales_;
  PagedCache cache_;
  LatentStorage room_;
  SlotBuffers slots_;
  int64_t slice_ = kRowsAlike;
  std::string host_routes_;  // why the host reads the routing of few tokens too; "" where it does not
  std::unique_ptr<PassRows> rows_;
  // logits_ f32 [rows, vocab] and likeliest_ i32 [rows] of the pass; those of recorded steps stay where they are.
  Tensor x_, last_, normed_, logits_, more_logits_, likeliest_;
  Tensor host_logits_, host_likeliest_;
  TensorView found_{};  // logits of the last pass
  bool likeliest_are_made_ = false;
  std::map<std::pair<int64_t, int64_t>, Step> steps_;  // by rows, and blocks of a table
};

}  // namespace fewbit
