#pragma once
// Blocks whose bytes lie in files of OUT that are not full yet: which tensors, and the digest of each. Such a block has
// no file of its own: what it wrote is what OUT has.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/container.h"

namespace fewbit {

struct SealedRange {
  int64_t shard = 0;
  std::string tensor, digest;  // digest_of_pieces() of its bytes
};
using SealedRanges = std::vector<SealedRange>;

// Reads ranges, with each file opened once. A file that cannot be opened holds none.
class RangeReader {
 public:
  using FileOf = std::function<std::filesystem::path(int64_t shard)>;
  explicit RangeReader(FileOf file) : file_(std::move(file)) {}

  // Whether every tensor is there with its digest; else `damaged` has the name of the first that is not.
  bool are_whole(const SealedRanges&, std::string& damaged);
  // The tensors, and the files that they lie in. Error{checkpoint | io} where one is not there.
  static CheckpointIndex open(const SealedRanges&, const FileOf& file);

 private:
  const CheckpointIndex* opened(int64_t shard);
  FileOf file_;
  std::map<int64_t, CheckpointIndex> files_{};
};

}  // namespace fewbit
