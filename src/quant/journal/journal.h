#pragma once
// Journal records the finished blocks of a run, so that it can be resumed. The bytes of a sealed block lie in the files
// of OUT that are being written, as ranges of them, or, where nobody can tell yet what these files will hold, in a
// safetensors file of its own in OUT.partial/. The file `journal` gets a record: a line with its own digest in front,
// which comes after what it speaks of. A finished file of OUT (a shard) is a seal too: its record takes the place of
// the blocks that are in it, whose own files then go. OUT itself appears by one rename, when everything is written.
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/container.h"
#include "formats/packing.h"
#include "formats/written_file.h"
#include "src/core/stopwatch.h"
#include "src/quant/journal/run_folder.h"
#include "src/quant/journal/sealed_ranges.h"
#include "src/quant/output/report.h"

namespace fewbit {

class Journal {
 public:
  enum class Start : uint8_t { fresh, resume };
  // `identity`: a JSON object of everything that decides the output's bits (src/quant/journal/identity.h). Resuming
  // with another one is an Error{usage} that names every key that differs, before anything is changed. Every sealed
  // block is then compared with its digest, and every shard; from the first that is damaged on they are done again, and
  // note() says so.
  Journal(RunFolder& folder, const std::string& identity, Start start);
  // Of a rank that writes nothing: it only counts what rank 0 has sealed in `partial`.
  Journal(std::filesystem::path partial, int64_t sealed)
      : dir_(std::move(partial)), blocks_(static_cast<size_t>(sealed)), ranges_(static_cast<size_t>(sealed)) {}

  const std::filesystem::path& dir() const { return dir_; }
  bool sealed(int64_t layer) const { return layer < static_cast<int64_t>(blocks_.size()); }
  int64_t sealed_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  const std::vector<LinearRecord>& records(int64_t layer) const { return blocks_[static_cast<size_t>(layer)]; }
  std::filesystem::path block_file(int64_t layer) const;  // of a block that no shards cover, and that has no ranges
  // The tensors of a sealed block, and others where they lie in shards.
  CheckpointIndex open_block(int64_t layer) const;
  const std::string& note() const { return note_; }  // what must be done again, and why; "" = nothing

  // Writes a block's tensors into files of OUT; nothing where that cannot be done now, and nobody is the worse for it.
  using Place = std::function<std::optional<SealedRanges>(int64_t layer, const std::vector<NamedTensor>&)>;
  // To be asked for every block that is sealed from now on; {}: nobody is any more. Whoever sets it calls
  // make_safe_in_time().
  void place_blocks_by(Place place) { place_ = std::move(place); }
  SealedRanges ranges(int64_t layer) const;  // none: it has a file of its own
  // Where the ranges of a shard lie that is not sealed, and all such files that blocks need which no shards cover.
  std::filesystem::path file_of_ranges(int64_t shard) const;
  std::set<std::filesystem::path> files_of_ranges() const;
  // The next shard's file will be another than the one that there is, in which blocks may lie: it gets a name of its
  // own, until these blocks are in shards.
  void set_aside(int64_t shard);

  // Writes the block's tensors, then its record; a crash before the end leaves the block unsealed. Blocks that come
  // faster than one in kSafeEvery seconds go down to the disk together, and their records: who kills the program loses
  // none of them, who cuts the power those of the last seconds, which are found damaged then and done again.
  static constexpr double kSafeEvery = 10;
  void seal(int64_t layer, const std::vector<NamedTensor>& tensors, const std::vector<LinearRecord>& records);

  // Returns when what was sealed more than kSafeEvery seconds ago is on the disk. Beside seal().
  void make_safe_in_time();

  // Shards lie in the folder kBuilt under names of their own until name_shards().
  int64_t shards() const { return static_cast<int64_t>(shards_.size()); }
  std::filesystem::path shard_file(int64_t shard) const;
  int64_t covered_blocks() const { return shards_.empty() ? 0 : shards_.back(); }  // the first so many lie in shards
  // The next shard is written, and all of the first `blocks` blocks lie in it and in those before: makes it safe on the
  // disk, records it with the digests of `written` and removes the files of these blocks.
  void seal_shard(int64_t blocks, WrittenFile written);
  std::vector<WrittenFile> written_shards() const;  // under the names that name_shards() gives
  // The names that readers look for; a run that goes on after this takes them back.
  void name_shards();

  // The checkpoint in `built` is whole and on the disk; from here on settle() can put it in place.
  void finished(const std::filesystem::path& built);

 private:
  void append(const std::string& record, bool safe = true);
  void load(const std::string& identity);
  void rewrite(const std::string& text);
  void take_names_back();
  void drop_covered();
  void write_block(int64_t layer, const std::vector<NamedTensor>& tensors);
  std::filesystem::path set_aside_file(int64_t shard) const;
  std::filesystem::path dir_;
  RunFolder* folder_ = nullptr;  // null: writes nothing
  std::optional<File> log_{};
  std::unique_ptr<std::mutex> appending_ = std::make_unique<std::mutex>();  // blocks and shards have a thread each
  std::unique_ptr<std::mutex> guard_ = std::make_unique<std::mutex>();      // of what both look at, for moments
  Place place_{};
  std::vector<std::vector<LinearRecord>> blocks_;
  std::vector<SealedRanges> ranges_;  // of the same blocks
  std::vector<int64_t> shards_;       // of each: the blocks that lie in it and in those before
  std::vector<WrittenFile> written_;  // the same shards
  std::string note_;
  std::vector<int64_t> unsafe_;  // blocks that may not be on the disk yet
  Stopwatch since_safe_{};
};

// Whether a run got so far that something would be lost without it.
bool holds_work(const std::filesystem::path& partial);
// How many blocks (the ends, where they have one, counted) the journal has records of. Reads only.
int64_t recorded_blocks(const std::filesystem::path& partial);
// The digest of the report of the checkpoint that finished() spoke of last; nothing where it was not called.
std::optional<std::string> finished_report(const std::filesystem::path& partial);

}  // namespace fewbit
