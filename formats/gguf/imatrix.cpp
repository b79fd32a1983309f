#include "formats/gguf/imatrix.h"

#include <cmath>
#include <cstring>

#include "formats/gguf/file.h"
#include "src/core/error.h"
#include "src/core/mapped_file.h"
#include "src/core/text/shown.h"

namespace fewbit::gguf {
namespace {

constexpr std::string_view kSquares = ".in_sum2", kCounts = ".counts";
constexpr const char* kDatasets = "imatrix.datasets";
constexpr const char* kChunks = "imatrix.chunk_count";
constexpr const char* kChunkTokens = "imatrix.chunk_size";

std::vector<float> floats_at(std::span<const uint8_t> bytes, size_t at, size_t count) {
  std::vector<float> v(count);
  if (count > 0) std::memcpy(v.data(), bytes.data() + at, count * sizeof(float));
  return v;
}

void check_entry(const std::string& name, const ImatrixEntry& e, const std::string& file) {
  const auto refuse = [&](const std::string& what) {
    fail(ErrorKind::checkpoint, file + ": entry '" + shown(name) + "': " + what);
  };
  if (e.squares.empty() || e.counts.empty()) refuse("expected sums and counts, found none");
  if (e.squares.size() % e.counts.size() != 0)
    refuse(std::to_string(e.squares.size()) + " sums are no whole rows of " + std::to_string(e.counts.size()) +
           " matrices");
  for (const std::vector<float>* all : {&e.squares, &e.counts})
    for (const float v : *all)
      if (!(v >= 0) || std::isinf(v)) refuse("expected sums of squares and counts, found " + std::to_string(v));
}

Imatrix from_gguf(std::span<const uint8_t> bytes, const std::string& where) {
  const File file = parse(bytes, where);
  Imatrix m;
  if (file.metadata.has(kDatasets)) m.datasets = file.metadata.texts(kDatasets);
  m.chunks = file.metadata.integer(kChunks, 0);
  m.chunk_tokens = file.metadata.integer(kChunkTokens, 0);
  for (const FileTensor& t : file.tensors) {
    const bool squares = t.name.ends_with(kSquares);
    if (!squares && !t.name.ends_with(kCounts)) continue;
    if (t.type != &type_f32)
      fail(ErrorKind::checkpoint,
           where + ": tensor '" + shown(t.name) + "': expected f32, found " + std::string(t.type->name));
    ImatrixEntry& e = m.entries[t.name.substr(0, t.name.size() - (squares ? kSquares : kCounts).size())];
    (squares ? e.squares : e.counts) =
        floats_at(bytes, static_cast<size_t>(t.begin), static_cast<size_t>(t.bytes) / sizeof(float));
  }
  return m;
}

// The older form: numbers of four bytes without any mark.
class OldReader {
 public:
  OldReader(std::span<const uint8_t> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  int32_t number(const char* what) {
    need(sizeof(int32_t), what);
    int32_t v = 0;
    std::memcpy(&v, bytes_.data() + at_, sizeof v);
    at_ += sizeof v;
    return v;
  }
  std::string text(const char* what) {
    const size_t length = size(what, 1);
    std::string s(reinterpret_cast<const char*>(bytes_.data() + at_), length);
    at_ += length;
    return s;
  }
  std::vector<float> floats(const char* what) {
    const size_t count = size(what, sizeof(float));
    std::vector<float> v = floats_at(bytes_, at_, count);
    at_ += count * sizeof(float);
    return v;
  }
  // How many things of `each` bytes follow.
  size_t size(const char* what, size_t each) {
    const int32_t n = number(what);
    if (n < 0 || static_cast<size_t>(n) > (bytes_.size() - at_) / each)
      fail(ErrorKind::checkpoint, file_ + ": no imatrix, or a damaged one: " + std::to_string(n) + " " + what +
                                      ", and " + std::to_string(bytes_.size() - at_) + " bytes are left");
    return static_cast<size_t>(n);
  }
  bool ended() const { return at_ == bytes_.size(); }

 private:
  void need(size_t bytes, const char* what) const {
    if (bytes > bytes_.size() - at_)
      fail(ErrorKind::checkpoint, file_ + ": no imatrix, or a truncated one: it ends inside the " + what);
  }
  std::span<const uint8_t> bytes_;
  const std::string& file_;
  size_t at_ = 0;
};

Imatrix from_old(std::span<const uint8_t> bytes, const std::string& file) {
  constexpr size_t kLeastEntry = 4 * sizeof(int32_t);  // length of the name, calls, number of sums, a sum
  OldReader r(bytes, file);
  Imatrix m;
  const size_t entries = r.size("entries", kLeastEntry);
  for (size_t i = 0; i < entries; ++i) {
    std::string name = r.text("characters of a name");
    const int32_t calls = r.number("calls");
    ImatrixEntry e{.squares = r.floats("sums"), .counts = {calls > 0 ? static_cast<float>(calls) : 1.f}};
    if (!m.entries.emplace(std::move(name), std::move(e)).second)
      fail(ErrorKind::checkpoint, file + ": two entries have one name");
  }
  if (r.ended()) return m;
  m.chunks = r.number("chunks");
  if (!r.ended()) m.datasets = {r.text("characters of a data set's name")};
  return m;
}

}  // namespace

Imatrix parse_imatrix(std::span<const uint8_t> bytes, const std::string& file) {
  const bool gguf = bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
  Imatrix m = gguf ? from_gguf(bytes, file) : from_old(bytes, file);
  if (m.entries.empty()) fail(ErrorKind::checkpoint, file + ": no imatrix: it has no sums of any tensor");
  for (const auto& [name, entry] : m.entries) check_entry(name, entry, file);
  return m;
}

Imatrix read_imatrix(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return parse_imatrix(mapped.bytes(), file.string());
}

WrittenFile write_imatrix(const std::filesystem::path& file, const Imatrix& m) {
  Metadata metadata;
  metadata.set("general.type", std::string("imatrix"));
  metadata.set(kDatasets, Array(m.datasets));
  metadata.set(kChunks, static_cast<uint32_t>(m.chunks));
  metadata.set(kChunkTokens, static_cast<uint32_t>(m.chunk_tokens));
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, e] : m.entries) {
    const auto matrices = static_cast<int64_t>(e.counts.size());
    const auto add = [&](std::string_view suffix, const std::vector<float>& values) {
      const Shape shape{matrices, static_cast<int64_t>(values.size()) / matrices};
      tensors.push_back({name + std::string(suffix), &type_f32, shape,
                         [&values, shape] { return Tensor::host_from<float>(DType::f32, shape, values); }});
    };
    add(kSquares, e.squares);
    add(kCounts, e.counts);
  }
  return write(file, metadata, tensors);
}

}  // namespace fewbit::gguf
