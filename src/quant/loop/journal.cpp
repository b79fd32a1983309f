#include "src/quant/loop/journal.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/container.h"

namespace fewbit {
namespace fs = std::filesystem;

Journal::Journal(const fs::path& out, const std::string& identity, Start start) : dir_(out.string() + ".partial") {
  const fs::path log = dir_ / "journal.jsonl";
  if (start == Start::resume) {
    std::ifstream in(log);
    std::string line;
    if (!in || !std::getline(in, line))
      fail(ErrorKind::usage, fmt::format("nothing to resume: {} does not exist; run without --resume", log.string()));
    if (line != identity)
      fail(ErrorKind::usage, fmt::format("{} was begun with other settings; resume with the same command, or remove "
                                         "it. Then: {} Now: {}",
                                         dir_.string(), line, identity));
    while (std::getline(in, line)) {
      const auto j = nlohmann::json::parse(line, nullptr, false);
      if (j.is_discarded() || !fs::exists(block_file(static_cast<int64_t>(blocks_.size())))) break;
      std::vector<LinearRecord> records;
      for (const auto& r : j.at("linears")) records.push_back(linear_record_from_json(r.dump()));
      blocks_.push_back(std::move(records));
    }
    return;
  }
  std::error_code ec;
  fs::remove_all(dir_, ec);
  if (!fs::create_directories(dir_, ec) || ec)
    fail(ErrorKind::io, fmt::format("{}: cannot create: {}", dir_.string(), ec.message()));
  std::ofstream(log) << identity << "\n";
}

fs::path Journal::block_file(int64_t layer) const {
  return dir_ / fmt::format("block-{:05d}", layer) / "model.safetensors";
}

void Journal::seal(int64_t layer, const std::vector<NamedTensor>& tensors, const std::vector<LinearRecord>& records) {
  const fs::path folder = block_file(layer).parent_path();
  std::error_code ec;
  fs::create_directories(folder, ec);
  auto writer = container_safetensors.create(folder, WriterOptions{.shard_bytes = INT64_MAX});
  for (const NamedTensor& t : tensors) writer->add(t.name, t.tensor);
  writer->finish();
  nlohmann::json line = {{"layer", layer}, {"linears", nlohmann::json::array()}};
  for (const LinearRecord& r : records) line["linears"].push_back(nlohmann::json::parse(to_json(r)));
  std::ofstream log(dir_ / "journal.jsonl", std::ios::app);
  log << line.dump() << "\n";
  if (!log.flush()) fail(ErrorKind::io, fmt::format("{}: cannot write the journal", dir_.string()));
  blocks_.push_back(records);
}

void Journal::discard_if_empty() {
  if (!blocks_.empty()) return;
  std::error_code ignored;
  fs::remove_all(dir_, ignored);
}

}  // namespace fewbit
