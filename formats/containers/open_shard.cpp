#include <algorithm>
#include <map>
#include <mutex>

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
  // Held for moments, over `there`, `hashed`, `hashing` and the tensors of `digests`.
  mutable std::mutex guard{};
  bool hashing = false;  // a thread has the digest of the file, and the buffer
  size_t hashed = 0;     // so many places are in it
  FileDigests digests{};
  std::vector<char> buffer{};

  State(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors, safetensors::OutFile::Begin begin)
      : file(path, begin), header(header_of(tensors)) {
    for (const TensorInfo& t : tensors) places.push_back({t});
    std::sort(places.begin(), places.end(),
              [](const Place& a, const Place& b) { return safetensors::written_before(a.info, b.info); });
    auto next = static_cast<int64_t>(header.size());
    for (size_t i = 0; i < places.size(); ++i) {
      places[i].info.begin = next;
      next += places[i].info.bytes;
      at.emplace(places[i].info.name, i);
    }
    if (begin == safetensors::OutFile::Begin::anew) {
      file.write(header.data(), static_cast<int64_t>(header.size()));
      file.resize(next);
    }
    digests.add(header.data(), static_cast<int64_t>(header.size()));
  }

  // Whether the file, which was there, has this header and length.
  bool was_begun_for_these() const {
    std::error_code ec;
    const int64_t data = places.empty() ? 0 : places.back().info.begin + places.back().info.bytes;
    const auto all = std::max(data, static_cast<int64_t>(header.size()));
    if (static_cast<int64_t>(std::filesystem::file_size(file.path(), ec)) != all) return false;
    std::string found(header.size(), '\0');
    for (int64_t done = 0; done < static_cast<int64_t>(found.size());)
      done += file.read_some(done, found.data() + done, static_cast<int64_t>(found.size()) - done);
    return found == header;
  }

  // A file system without the call has it all in the sync at the end.
  void to_disk(int64_t begin, int64_t bytes, unsigned how) {
    if (bytes <= 0 || ::sync_file_range(file.fd(), begin, bytes, how) == 0) return;
    if (errno == EIO || errno == ENOSPC || errno == EDQUOT) file.refuse("cannot write");
  }

  // Slice by slice: while the disk takes one the next is written and, of the tensor that is next in the digest, added
  // to it. Where it waits no more than two are on their way, for a queue that is full would hold up the syncs of
  // others.
  void write(const TensorInfo& t, const char* data, bool waits, bool next) {
    int64_t before = 0;  // bytes of the slice before
    for (int64_t done = 0, n = 0; done < t.bytes; done += n) {
      n = std::min(kSlice, t.bytes - done);
      file.write_at(t.begin + done, data + done, n);
      to_disk(t.begin + done, n, SYNC_FILE_RANGE_WRITE);
      if (next) digests.add(data + done, n);
      if (waits) to_disk(t.begin + done - before, before, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE);
      before = n;
    }
  }

  std::string put(const std::string& name, ConstTensorView bytes, bool in_passing) {
    const size_t i = at.at(name);
    Place& p = places[i];
    bool next = false;
    {
      const std::lock_guard lock(guard);
      FEWBIT_ASSERT(!p.there && bytes.bytes() == p.info.bytes);
      next = !in_passing && !hashing && i == hashed;
      if (next) hashing = true;
    }
    write(p.info, static_cast<const char*>(bytes.data), !in_passing, next);
    std::string digest = digest_of_pieces(bytes.data, p.info.bytes);
    const std::lock_guard lock(guard);
    digests.know_tensor(name, digest);
    p.there = true;
    if (next) ++hashed, hashing = false;
    return digest;
  }

  // The digest of the file as far as it has no gap and no tensor of more than `most` bytes; a thread that is at it
  // already is left alone.
  void hash(int64_t most = INT64_MAX) {
    std::unique_lock lock(guard);
    if (hashing) return;
    hashing = true;
    for (; hashed < places.size() && places[hashed].there && places[hashed].info.bytes <= most; ++hashed) {
      lock.unlock();
      read_back(places[hashed].info);
      lock.lock();
    }
    hashing = false;
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
    : state_(std::make_unique<State>(file, tensors, safetensors::OutFile::Begin::anew)) {}
OpenShard::OpenShard(std::unique_ptr<State> state) : state_(std::move(state)) {}
OpenShard::OpenShard(OpenShard&&) noexcept = default;
OpenShard& OpenShard::operator=(OpenShard&&) noexcept = default;
OpenShard::~OpenShard() = default;

bool OpenShard::holds(const std::vector<TensorInfo>& tensors) const { return header_of(tensors) == state_->header; }

bool OpenShard::wants(const TensorInfo& t) const {
  const auto found = state_->at.find(t.name);
  if (found == state_->at.end()) return false;
  const State::Place& p = state_->places[found->second];
  const std::lock_guard lock(state_->guard);
  return !p.there && p.info.dtype == t.dtype && p.info.shape == t.shape;
}

std::optional<OpenShard> OpenShard::go_on(const std::filesystem::path& file, const std::vector<TensorInfo>& tensors,
                                          TensorDigests there) {
  auto state = std::make_unique<State>(file, tensors, safetensors::OutFile::Begin::as_it_is);
  if (!state->was_begun_for_these()) return std::nullopt;
  for (State::Place& p : state->places)
    if (const auto known = there.find(p.info.name); known != there.end()) {
      state->digests.know_tensor(p.info.name, std::move(known->second));
      p.there = true;
    }
  return OpenShard(std::move(state));
}

std::string OpenShard::put(const std::string& name, ConstTensorView bytes) {
  std::string digest = state_->put(name, bytes, false);
  state_->hash();
  return digest;
}

std::string OpenShard::put_in_passing(const std::string& name, ConstTensorView bytes) {
  return state_->put(name, bytes, true);
}

void OpenShard::catch_up(int64_t most) { state_->hash(most); }

WrittenFile OpenShard::finish() {
  state_->hash();
  FEWBIT_ASSERT(state_->hashed == state_->places.size());
  const std::filesystem::path path = state_->file.path();
  state_->file.close();
  return state_->digests.finish(path);
}

}  // namespace fewbit
