#pragma once
// Internal to the journal: its file, line by line, and what of it can be gone on from. Nothing outside
// src/quant/journal includes this.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/written_file.h"
#include "src/quant/journal/sealed_ranges.h"
#include "src/quant/output/report.h"

namespace fewbit {

std::filesystem::path log_of(const std::filesystem::path& partial);
std::string line_of(const std::string& record);  // with its digest in front

struct Log {
  std::vector<std::string> records;  // without their digests, up to the first line that is not what was written
  bool damaged = false;              // a whole line is not what was written: no crash leaves that behind
};
Log read_log(const std::filesystem::path& partial);

// What a record speaks of: a block, in a file of its own or in ranges of shards, or a shard.
struct Sealed {
  bool shard = false;
  int64_t number = 0;  // of the block or shard
  int64_t bytes = 0;   // of the file; of a block in ranges there is none
  std::string digest;
  SealedRanges ranges{};
  std::vector<LinearRecord> linears;  // of a block
  int64_t covered = 0;                // by a shard and those before: the first so many blocks
  WrittenFile written{};              // a shard's digests
};
// Nothing where it is another record. Its digest was right, so that a shape that it should not have means a hand at
// work, which must not end the program.
std::optional<Sealed> sealed_from(const std::string& record);
std::optional<std::string> finished_from(const std::string& record);

// The records of a block and of a shard, whose digests and size are those of `file`.
std::string record_of_block(int64_t layer, const std::filesystem::path& file, const std::vector<LinearRecord>&);
std::string record_of_block(int64_t layer, const SealedRanges&, const std::vector<LinearRecord>&);
std::string record_of_shard(int64_t shard, const std::filesystem::path& file, int64_t blocks, const WrittenFile&);

bool is_whole(const std::filesystem::path& file, const Sealed&);

// What can be gone on from: the first so many shards and blocks.
struct Survivors {
  int64_t shards = 0, blocks = 0;
  bool have(const Sealed& s) const { return s.number < (s.shard ? shards : blocks); }
};
// Shards up to the first that is damaged; the blocks in them, and those behind that are whole where they lie.
Survivors survivors_of(const std::vector<Sealed>& records, const std::function<bool(const Sealed&)>& whole);

}  // namespace fewbit
