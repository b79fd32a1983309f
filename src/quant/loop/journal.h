#pragma once
// Journal records the finished blocks of a run, so that it can be resumed. OUT.partial/ gets one safetensors file per
// sealed block and journal.jsonl one line. OUT itself appears by one rename, when everything is written.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/packing.h"
#include "src/quant/output/report.h"

namespace fewbit {

class Journal {
 public:
  enum class Start : uint8_t { fresh, resume };
  // `identity`: everything that decides the output's bits (recipe, model, calibration, seed …). Resuming with
  // another identity, or where nothing was begun, is an Error{usage} that says what differs.
  Journal(const std::filesystem::path& out, const std::string& identity, Start start);

  const std::filesystem::path& dir() const { return dir_; }
  bool sealed(int64_t layer) const { return layer < static_cast<int64_t>(blocks_.size()); }
  int64_t sealed_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  const std::vector<LinearRecord>& records(int64_t layer) const { return blocks_[static_cast<size_t>(layer)]; }
  std::filesystem::path block_file(int64_t layer) const;

  // Writes the block's tensors, then its line; a crash between the two leaves the block unsealed.
  void seal(int64_t layer, const std::vector<NamedTensor>& tensors, const std::vector<LinearRecord>& records);
  // Removes the folder of a run that cannot be resumed usefully (nothing sealed).
  void discard_if_empty();

 private:
  std::filesystem::path dir_;
  std::vector<std::vector<LinearRecord>> blocks_;
};

}  // namespace fewbit
