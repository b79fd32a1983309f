#include <algorithm>
#include <map>

#include "formats/containers/out_file.h"
#include "formats/containers/safetensors_file.h"
#include "formats/shards.h"

namespace fewbit {
namespace {

constexpr int64_t kSlice = int64_t{16} << 20;  // bytes on their way to the disk at a time: others wait for no more
constexpr int64_t kPart = int64_t{1} << 20;    // bytes read back for the digest at a time

std::string header_of(const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& t : tensors) order.push_back(&t);
  safetensors::put_in_written_order(order);
  return safetensors::serialize(order);
}

}  // namespace

struct OpenShard::State {
  struct Place {
    TensorInfo info{};  // `begin` in this file
    bool there = false;
  };
  safetensors::OutFile file;
  std::string header;
  std::vector<Place> places{};                      // in their order
  std::map<std::string, size_t, std::less<>> at{};  // [name]
  size_t hashed = 0;                                // so many places are in the digest
  FileDigests digests{};
  std::vector<char> buffer{};

  State(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors)
      : file(path), header(header_of(tensors)) {
    for (const TensorInfo& t : tensors) places.push_back({t});
    std::sort(places.begin(), places.end(),
              [](const Place& a, const Place& b) { return safetensors::written_before(a.info, b.info); });
    auto next = static_cast<int64_t>(header.size());
    for (size_t i = 0; i < places.size(); ++i) {
      places[i].info.begin = next;
      next += places[i].info.bytes;
      at.emplace(places[i].info.name, i);
    }
    file.write(header.data(), static_cast<int64_t>(header.size()));
    digests.add(header.data(), static_cast<int64_t>(header.size()));
  }

  // A file system without the call has it all in the sync at the end.
  void to_disk(int64_t begin, int64_t bytes, unsigned how) {
    if (bytes <= 0 || ::sync_file_range(file.fd(), begin, bytes, how) == 0) return;
    if (errno == EIO || errno == ENOSPC || errno == EDQUOT) file.refuse("cannot write");
  }

  // Slice by slice: while the disk takes one the next is written and, of the tensor that is next in the digest, added
  // to it. No more than two are on their way, for a queue that is full would hold up the syncs of others.
  void write(const TensorInfo& t, const char* data, bool next) {
    int64_t before = 0;  // bytes of the slice before
    for (int64_t done = 0, n = 0; done < t.bytes; done += n) {
      n = std::min(kSlice, t.bytes - done);
      file.write_at(t.begin + done, data + done, n);
      to_disk(t.begin + done, n, SYNC_FILE_RANGE_WRITE);
      if (next) digests.add(data + done, n);
      to_disk(t.begin + done - before, before, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE);
      before = n;
    }
  }

  // The digest of the file as far as it has no gap.
  void hash() {
    for (; hashed < places.size() && places[hashed].there; ++hashed) read_back(places[hashed].info);
  }

  void read_back(const TensorInfo& t) {
    buffer.resize(kPart);
    for (int64_t done = 0; done < t.bytes;) {
      const int64_t n = file.read_some(t.begin + done, buffer.data(), std::min(kPart, t.bytes - done));
      digests.add(buffer.data(), n);
      done += n;
    }
  }
};

OpenShard::OpenShard(const std::filesystem::path& file, const std::vector<TensorInfo>& tensors)
    : state_(std::make_unique<State>(file, tensors)) {}
OpenShard::OpenShard(OpenShard&&) noexcept = default;
OpenShard& OpenShard::operator=(OpenShard&&) noexcept = default;
OpenShard::~OpenShard() = default;

bool OpenShard::holds(const std::vector<TensorInfo>& tensors) const { return header_of(tensors) == state_->header; }

bool OpenShard::wants(const TensorInfo& t) const {
  const auto found = state_->at.find(t.name);
  if (found == state_->at.end()) return false;
  const State::Place& p = state_->places[found->second];
  return !p.there && p.info.dtype == t.dtype && p.info.shape == t.shape;
}

void OpenShard::put(const std::string& name, ConstTensorView bytes) {
  const size_t i = state_->at.at(name);
  State::Place& p = state_->places[i];
  FEWBIT_ASSERT(!p.there && bytes.bytes() == p.info.bytes);
  const bool next = i == state_->hashed;
  state_->write(p.info, static_cast<const char*>(bytes.data), next);
  state_->digests.know_tensor(name, digest_of_pieces(bytes.data, p.info.bytes));
  p.there = true;
  if (next) ++state_->hashed;
  state_->hash();
}

WrittenFile OpenShard::finish() {
  FEWBIT_ASSERT(state_->hashed == state_->places.size());
  const std::filesystem::path path = state_->file.path();
  state_->file.close();
  return state_->digests.finish(path);
}

}  // namespace fewbit
