#pragma once
// The rows of a pass over pages as a device wants them: what is fed, where it goes, and the pages of every sequence.
#include <vector>

#include "src/run/paged/paged_cache.h"

namespace fewbit {

// Rows that go through the layers together, by the runs of their sequences.
struct PassSlice {
  std::vector<RowRun> runs{};
  std::vector<int> sequences{};             // of each run
  std::vector<int32_t> ids{}, positions{};  // [rows]
  std::vector<int32_t> wanted{};            // rows whose logits are, in the order in which they are
  int64_t rows() const { return std::ssize(ids); }
  bool decodes() const { return runs.size() == ids.size() && wanted.size() == ids.size(); }  // a step of each sequence
};

// The same on the Exec's device, valid until the next place(). Rows and runs past those of the slice are none.
struct PlacedRows {
  ConstTensorView ids{}, positions{}, wanted{};  // i32 [rows], [rows], [wanted]
  std::vector<PagedRows> groups{};               // with the tables of each group of the cache
  int64_t blocks = 0;                            // of a table
};

class PassRows {
 public:
  // For slices of up to `rows` rows and `runs` runs, of sequences of up to `longest` positions.
  PassRows(Exec&, const PagedCache&, int64_t rows, int64_t runs, int64_t longest);

  // How a slice is placed: with rows (and a run each, if it decodes) up to `rows`; each row by itself where `apart`.
  struct Form {
    int64_t rows = 0;  // 0: as many as there are
    bool apart = false;
    int64_t splits = 0;  // PagedRows
  };
  // On a GPU one copy from pinned memory; waits until the one before is done.
  PlacedRows place(const PassSlice&, const Form&);

 private:
  int64_t blocks_of(const PassSlice&) const;
  void fill_tables(const PassSlice&, size_t group, int64_t runs, int64_t blocks, int32_t* to) const;

  Exec& ex_;
  const PagedCache& cache_;
  int64_t most_blocks_;
  Tensor host_, device_;  // i32; device_ is empty on the CPU
};

}  // namespace fewbit
