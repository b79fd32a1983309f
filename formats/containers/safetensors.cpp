// safetensors checkpoints: a file, a folder with model.safetensors (or one .safetensors file of any name), or
// shards named by model.safetensors.index.json. Every file is checked on its own (safetensors_file.cpp); here
// the index and the shards are checked against each other. docs: checkpoint-formats paper, section 1.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/containers/safetensors_file.h"
#include "formats/guarded_json.h"
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

// The index's object of tensors and files: read as it comes, because a tree would keep one of two equal keys and say
// nothing.
class IndexEvents final : public nlohmann::json_sax<json> {
 public:
  std::map<std::string, std::string> weight_map{};
  bool found = false;
  std::string problem{};

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("boolean"); }
  bool number_integer(number_integer_t) override { return value("number"); }
  bool number_unsigned(number_unsigned_t) override { return value("number"); }
  bool number_float(number_float_t, const string_t&) override { return value("number"); }
  bool binary(binary_t&) override { return false; }
  bool string(string_t& s) override {
    if (!inside()) return value("string");
    weight_map[key_] = s;
    return true;
  }
  bool start_object(size_t) override {
    if (!open("object")) return false;
    if (open_.size() == 2 && key_ == kMap) found = in_map_ = true;
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    if (open_.size() == 1) in_map_ = false;
    return true;
  }
  bool start_array(size_t) override { return open("list"); }
  bool end_array() override { return end_object(); }
  bool key(string_t& s) override {
    key_ = s;
    return open_.back().insert(s).second || refuse("duplicate key '" + printable(s) + "', expected each once");
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("not UTF-8 JSON: syntax error at byte " + std::to_string(at));
  }

 private:
  static constexpr size_t kDepth = 16;  // the format has two levels, and free metadata
  static constexpr const char* kMap = "weight_map";

  bool inside() const { return in_map_ && open_.size() == 2; }
  bool refuse(std::string what) {
    problem = std::move(what);
    return false;
  }
  bool open(const char* type) {
    if (!value(type)) return false;
    open_.emplace_back();
    return open_.size() <= kDepth || refuse("is nested more than " + std::to_string(kDepth) + " deep");
  }
  bool value(const char* type) {
    if (open_.empty() && type != std::string_view("object"))
      return refuse("expected an object, found " + std::string(type));
    if (!inside()) return true;
    return refuse(std::string(kMap) + " '" + printable(key_) + "': expected a file name, found " + type);
  }

  std::vector<std::set<std::string>> open_{};  // keys seen in each enclosing object
  std::string key_{};
  bool in_map_ = false;
};

// weight_map of the index: tensor name -> file name, both checked.
std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  const std::string where = path.string(), text = json_text(path, kTableJson);
  IndexEvents index;
  json::sax_parse(text, &index);
  if (!index.problem.empty()) fail(ErrorKind::checkpoint, where + ": " + index.problem);
  if (!index.found) fail(ErrorKind::checkpoint, where + ": expected an object with an object 'weight_map'");
  for (const auto& [name, shard] : index.weight_map)
    if (shard.empty() || shard != fs::path(shard).filename().string() || shard == "." || shard == ".." ||
        shard.find('\0') != std::string::npos)
      fail(ErrorKind::checkpoint, where + ": weight_map '" + printable(name) +
                                      "': expected a plain file name, found '" + printable(shard) + "'");
  return std::move(index.weight_map);
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
