// The streaming writer. Tensors arrive in any order, but a file holds them sorted by type and name behind a
// header that must know them all: so each shard's bytes go to a spool file first, and a closed shard is
// assembled from it with copy_file_range (one shard of extra disk, no model in memory). Everything has a
// temporary name until finish().
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "formats/containers/out_file.h"
#include "formats/containers/safetensors_file.h"
#include "formats/shards.h"

namespace fewbit::safetensors {
namespace {

namespace fs = std::filesystem;

// Appends `bytes` of `from`, beginning at `at`; what `digests` is to see passes through memory.
void append(OutFile& to, const OutFile& from, int64_t at, int64_t bytes, FileDigests* digests) {
  off_t offset = at;
  while (bytes > 0 && !digests) {
    const ssize_t n = ::copy_file_range(from.fd(), &offset, to.fd(), nullptr, static_cast<size_t>(bytes), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EXDEV || errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP)) break;
    if (n <= 0) to.refuse("cannot copy into");
    bytes -= n;
  }
  std::vector<char> buffer(bytes > 0 ? size_t{8} << 20 : 0);  // also for file systems without the call
  while (bytes > 0) {
    const int64_t n =
        from.read_some(offset, buffer.data(), std::min<int64_t>(bytes, static_cast<int64_t>(buffer.size())));
    to.write(buffer.data(), n);
    if (digests) digests->add(buffer.data(), n);
    offset += n;
    bytes -= n;
  }
}

class Writer final : public CheckpointWriter {
 public:
  // `written`: gets the digests of the files; null where nobody asks for them.
  Writer(const fs::path& dir, const WriterOptions& options, std::vector<WrittenFile>* written)
      : dir_(dir), options_(options), written_(written), tag_('.' + std::to_string(::getpid()) + ".tmp") {
    std::error_code ec;
    fs::create_directories(dir, ec);
    if (ec) fail(ErrorKind::io, dir.string() + ": cannot create the folder: " + ec.message());
  }

  ~Writer() override {
    std::error_code ignored;
    for (const fs::path& p : temporaries_) fs::remove(p, ignored);
  }

  void add(const std::string& name, ConstTensorView host) override {
    FEWBIT_ASSERT(host.device.kind == Device::cpu);
    FEWBIT_ASSERT(!finished_);
    check_name(name);
    const int64_t bytes = host.bytes();
    if (spool_ && !shard_.empty() && spooled_ + bytes > options_.shard_bytes) close_shard();
    if (!spool_) {
      spool_path_ = temporary("spool", closed_.size());
      spool_ = std::make_unique<OutFile>(spool_path_);
    }
    spool_->write(host.data, bytes);
    if (written_) digests_[name] = digest_of_pieces(host.data, bytes);
    shard_.push_back({name, host.dtype, host.shape, 0, spooled_, bytes});
    spooled_ += bytes;
    total_ += bytes;
  }

  void finish() override {
    FEWBIT_ASSERT(!finished_);
    if (spool_ || closed_.empty()) close_shard();
    const bool sharded = closed_.size() > 1;
    const fs::path index = dir_ / "model.safetensors.index.json";
    const fs::path index_tmp = temporary("index", 0);
    if (sharded) {
      std::vector<ShardNames> names;
      names.reserve(closed_.size());
      for (Shard& s : closed_) names.push_back(std::move(s.names));
      write_shard_index(index_tmp, names, total_);
    }
    for (size_t i = 0; i < closed_.size(); ++i) {
      const std::string name = shard_name(i, closed_.size());
      rename(closed_[i].path, dir_ / name);
      if (written_) written_->at(i).name = name;
    }
    // A reader would take an older checkpoint's single file or index for this one's.
    std::error_code ignored;
    fs::remove(sharded ? dir_ / "model.safetensors" : index, ignored);
    if (sharded) rename(index_tmp, index);  // last: a complete index means complete shards
    temporaries_.clear();
    finished_ = true;
  }

 private:
  struct Shard {
    fs::path path;
    ShardNames names;
  };

  fs::path temporary(const char* what, size_t number) {
    temporaries_.push_back(dir_ / ('.' + std::string(what) + '-' + std::to_string(number) + tag_));
    return temporaries_.back();
  }

  void check_name(const std::string& name) {
    if (name == "__metadata__") fail(ErrorKind::checkpoint, dir_.string() + ": a tensor cannot be called __metadata__");
    try {
      (void)nlohmann::json(name).dump();
    } catch (const nlohmann::json::exception&) {
      fail(ErrorKind::checkpoint, dir_.string() + ": tensor name '" + printable(name) + "' is not UTF-8");
    }
    if (!names_.insert(name).second)
      fail(ErrorKind::checkpoint, dir_.string() + ": tensor '" + printable(name) + "' would be written twice");
  }

  void close_shard() {
    std::vector<const TensorInfo*> order;
    order.reserve(shard_.size());
    for (const TensorInfo& t : shard_) order.push_back(&t);
    put_in_written_order(order);
    Shard done{temporary("shard", closed_.size()), {}};
    OutFile out(done.path);
    const std::string header = serialize(order);
    out.write(header.data(), static_cast<int64_t>(header.size()));
    std::optional<FileDigests> digests;
    if (written_) digests.emplace().add(header.data(), static_cast<int64_t>(header.size()));
    for (size_t i = 0; i < order.size();) {  // runs that lie together in the spool are copied at once
      const int64_t begin = order[i]->begin;
      int64_t end = begin;
      for (; i < order.size() && order[i]->begin == end; ++i) end += order[i]->bytes;
      if (end > begin) append(out, *spool_, begin, end - begin, digests ? &*digests : nullptr);
    }
    out.close();
    if (digests) {
      for (const TensorInfo& t : shard_) digests->know_tensor(t.name, std::move(digests_.at(t.name)));
      written_->push_back(digests->finish(done.path));
      digests_.clear();
    }
    for (const TensorInfo& t : shard_) done.names.push_back(t.name);
    closed_.push_back(std::move(done));
    shard_.clear();
    spooled_ = 0;
    spool_.reset();
    std::error_code ec;
    if (!spool_path_.empty()) fs::remove(spool_path_, ec);
    if (ec) fail(ErrorKind::io, spool_path_.string() + ": cannot be removed: " + ec.message());
  }

  static void rename(const fs::path& from, const fs::path& to) {
    std::error_code ec;
    fs::rename(from, to, ec);
    if (ec) fail(ErrorKind::io, to.string() + ": cannot rename " + from.filename().string() + ": " + ec.message());
  }

  fs::path dir_;
  WriterOptions options_;
  std::vector<WrittenFile>* written_;
  TensorDigests digests_;  // of the open shard
  std::string tag_;        // makes temporary names this process's own
  std::deque<fs::path> temporaries_;
  std::set<std::string> names_;
  std::unique_ptr<OutFile> spool_;
  fs::path spool_path_;
  std::vector<TensorInfo> shard_;  // of the open shard; begin is the offset in the spool
  int64_t spooled_ = 0, total_ = 0;
  std::vector<Shard> closed_;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<CheckpointWriter> create_writer(const fs::path& dir, const WriterOptions& options) {
  return std::make_unique<Writer>(dir, options, nullptr);
}

}  // namespace fewbit::safetensors

namespace fewbit {

std::unique_ptr<CheckpointWriter> create_with_digests(const std::filesystem::path& dir, const WriterOptions& options,
                                                      std::vector<WrittenFile>& written) {
  return std::make_unique<safetensors::Writer>(dir, options, &written);
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

void write_shard_index(const std::filesystem::path& file, const std::vector<ShardNames>& shards, int64_t total) {
  nlohmann::json map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i)
    for (const std::string& name : shards[i]) map[name] = shard_name(i, shards.size());
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  index["weight_map"] = map;
  const std::string text = index.dump(2) + '\n';
  safetensors::OutFile out(file);
  out.write(text.data(), static_cast<int64_t>(text.size()));
  out.close();
}

}  // namespace fewbit
