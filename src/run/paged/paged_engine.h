#pragma once
// A whole model resident on a device with a paged cache: passes over new tokens of many sequences at once, of one token
// (decode) or of many (prefill), in any mixture.
//
// A row's bits depend on its own sequence alone, not on the rows beside it nor on how its sequence was cut into passes.
// Products of the CPU's matrix unit keep that promise for any number of rows, others up to kRowsAlike; a pass goes
// through the layers in slices of as many as all products of the model take.
#include <span>
#include <string>
#include <vector>

#include "src/run/block.h"
#include "src/run/head.h"
#include "src/run/paged/paged_cache.h"
#include "src/run/paged/ragged.h"
#include "src/run/paged/rows_alike.h"

namespace fewbit {

struct PagedOptions {
  LoadOptions load{};
  int64_t pages = 256;     // of kPagePositions each
  int64_t sequences = 32;  // at one time
  int64_t longest = 2048;  // positions of a sequence
  int64_t pass = 512;      // rows of a pass
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
  // Error{unsupported} on a GPU and for a model that ranks share: neither has the paged form.
  PagedEngine(Exec&, const Checkpoint&, const PagedOptions&);
  const ModelSpec& spec() const { return spec_; }
  const PagedOptions& options() const { return options_; }
  PagedCache& cache() { return cache_; }
  // Runs the new tokens and lengthens their sequences. The logits that were wanted, in order, f32 [rows, vocab] on the
  // device; valid until the next call. Error{usage} for ids outside the vocabulary.
  ConstTensorView pass(std::span<const NewTokens>);
  int64_t rows_of_slice() const { return slice_; }  // kRowsAlike or kRowsInTiles
  int64_t weight_bytes() const;                     // of one slice of a pass
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Slice {
    std::vector<RowRun> runs;
    std::vector<int> sequences;   // of each run
    Tensor ids, positions;        // i32 [rows]
    std::vector<int32_t> wanted;  // rows whose logits are
    int64_t rows() const { return ids.numel(); }
  };
  std::vector<Slice> slices_of(std::span<const NewTokens>) const;
  Tensor tables_of(const Slice&, size_t group) const;
  void run_slice(const Slice&, TensorView x);
  void head(const Slice&, ConstTensorView x, TensorView logits);

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
  Tensor x_, last_, normed_, logits_;
  int64_t slice_ = kRowsAlike;
};

}  // namespace fewbit
