// safetensors checkpoints: a file, a folder with model.safetensors (or one .safetensors file of any name), or
// shards named by model.safetensors.index.json. Every file is checked on its own (safetensors_file.cpp); here
// the index and the shards are checked against each other. docs: checkpoint-formats paper, section 1.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/containers/safetensors_file.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using safetensors::printable;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_file(const fs::path& p) {
  std::error_code ignored;
  return fs::is_regular_file(p, ignored);
}

std::vector<fs::path> files_in(const fs::path& dir) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == ".safetensors" && is_file(it->path())) out.push_back(it->path());
  std::sort(out.begin(), out.end());
  return out;
}

bool probe(const fs::path& p) {
  std::error_code ignored;
  if (fs::is_directory(p, ignored)) return is_file(p / kIndex) || !files_in(p).empty();
  return p.extension() == ".safetensors" && is_file(p);
}

// The tree of a small JSON file; a repeated key anywhere is an error.
json parse_strictly(const MappedFile& file) {
  const std::string where = file.path().string();
  if (file.bytes().size() > safetensors::kMaxHeader)
    fail(ErrorKind::checkpoint, where + ": the index is larger than 100 MB");
  std::vector<std::set<std::string>> open;  // keys seen in each enclosing object
  std::string duplicate;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second && duplicate.empty())
      duplicate = value.get<std::string>();
    return true;
  };
  json tree;
  try {
    tree = json::parse(file.bytes().begin(), file.bytes().end(), watch);
  } catch (const json::exception& e) {
    fail(ErrorKind::checkpoint, where + ": not UTF-8 JSON: " + printable(e.what()));
  }
  if (!duplicate.empty())
    fail(ErrorKind::checkpoint, where + ": duplicate key '" + printable(duplicate) + "', expected each once");
  return tree;
}

// weight_map of the index: tensor name -> file name, both checked.
std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  const MappedFile file(path);
  const json tree = parse_strictly(file);
  const std::string where = path.string();
  if (!tree.is_object() || !tree.contains("weight_map") || !tree["weight_map"].is_object())
    fail(ErrorKind::checkpoint, where + ": expected an object with an object 'weight_map'");
  std::map<std::string, std::string> map;
  for (const auto& [name, value] : tree["weight_map"].items()) {
    const std::string entry = where + ": weight_map '" + printable(name) + "': ";
    if (!value.is_string()) fail(ErrorKind::checkpoint, entry + "expected a file name, found " + value.type_name());
    const std::string shard = value.get<std::string>();
    if (shard.empty() || shard != fs::path(shard).filename().string() || shard == "." || shard == ".." ||
        shard.find('\0') != std::string::npos)
      fail(ErrorKind::checkpoint, entry + "expected a plain file name, found '" + printable(shard) + "'");
    map[name] = shard;
  }
  return map;
}

void add_file(CheckpointIndex& index, const fs::path& path) {
  const int number = static_cast<int>(index.files.size());
  const MappedFile& file = index.files.emplace_back(MappedFile::windowed(path));
  const int64_t head = std::min(file.size(), safetensors::head_bytes(file));
  safetensors::Header header =
      safetensors::parse({file.at(0, head), static_cast<size_t>(head)}, file.size(), path.string());
  file.forget(0, head);
  index.metadata.merge(header.metadata);
  for (TensorInfo& t : header.tensors) {
    t.file = number;
    const auto [at, fresh] = index.tensors.emplace(t.name, t);
    if (!fresh) {
      fail(ErrorKind::checkpoint, path.string() + ": tensor '" + printable(t.name) + "' is also in " +
                                      index.files[static_cast<size_t>(at->second.file)].path().filename().string() +
                                      ", expected it in one shard");
    }
  }
}

CheckpointIndex open_sharded(const fs::path& dir) {
  const fs::path index_path = dir / kIndex;
  const auto weight_map = read_weight_map(index_path);
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  std::string missing;
  int lacking = 0;
  for (const std::string& shard : shards)
    if (!is_file(dir / shard)) missing += (lacking++ ? ", " : "") + printable(shard);
  if (lacking == 1)
    fail(ErrorKind::checkpoint, index_path.string() + ": names shard " + missing + ", which is missing");
  if (lacking > 1)
    fail(ErrorKind::checkpoint, index_path.string() + ": " + std::to_string(lacking) + " of its " +
                                    std::to_string(shards.size()) + " shards are missing: " + missing);
  CheckpointIndex index;
  for (const std::string& shard : shards) add_file(index, dir / shard);
  for (const auto& [name, shard] : weight_map) {
    const auto at = index.tensors.find(name);
    const std::string found = at == index.tensors.end()
                                  ? "it nowhere"
                                  : index.files[static_cast<size_t>(at->second.file)].path().filename().string();
    if (found != shard) {
      fail(ErrorKind::checkpoint, index_path.string() + ": tensor '" + printable(name) +
                                      "' is missing in its shard, expected it in " + shard + ", found " + found);
    }
  }
  for (const auto& [name, t] : index.tensors)
    if (!weight_map.count(name)) {
      fail(ErrorKind::checkpoint, index.files[static_cast<size_t>(t.file)].path().string() + ": tensor '" +
                                      printable(name) + "' is not in the index, expected every tensor of a shard in " +
                                      kIndex);
    }
  return index;
}

CheckpointIndex open(const fs::path& p) {
  CheckpointIndex index;
  std::error_code ignored;
  if (!fs::is_directory(p, ignored)) {
    add_file(index, p);
    return index;
  }
  if (is_file(p / kSingle)) {
    add_file(index, p / kSingle);
    return index;
  }
  if (is_file(p / kIndex)) return open_sharded(p);
  const auto files = files_in(p);
  if (files.size() != 1) {
    fail(ErrorKind::checkpoint, p.string() + ": expected " + kSingle + " or " + kIndex + ", found " +
                                    std::to_string(files.size()) + " other .safetensors files");
  }
  add_file(index, files[0]);
  return index;
}

}  // namespace

constinit const Container container_safetensors = {
    .name = "safetensors",
    .summary = "model.safetensors, or shards with model.safetensors.index.json",
    .probe = probe,
    .open = open,
    .create = safetensors::create_writer,
};

}  // namespace fewbit
