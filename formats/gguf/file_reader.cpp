// Reading a GGUF header. Every length is checked against what is left of the file before it is believed.
#include <algorithm>
#include <cstring>
#include <set>

#include "formats/gguf/file.h"
#include "src/core/error.h"
#include "src/core/text/shown.h"

namespace fewbit::gguf {
namespace {

constexpr uint32_t kVersion = 3, kOldestVersion = 2;
constexpr size_t kArrayType = 9;
constexpr uint32_t kMaxDims = 4;

// Real files have some 60 keys and 2,000 tensors. Each costs ten times its bytes once it is read.
constexpr uint64_t kMostKeys = 1 << 16, kMostTensors = 1 << 18;

class Reader {
 public:
  Reader(std::span<const uint8_t> bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& what) const { fail(ErrorKind::checkpoint, where_ + ": " + what); }
  size_t at() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }
  const std::string& where() const { return where_; }

  template <class T>
  T number(const std::string& what) {
    need(sizeof(T), what);
    T v;
    std::memcpy(&v, bytes_.data() + at_, sizeof v);
    at_ += sizeof v;
    return v;
  }
  std::string text(const std::string& what) {
    const auto length = number<uint64_t>("the length of " + what);
    need(length, what);
    std::string s(reinterpret_cast<const char*>(bytes_.data() + at_), static_cast<size_t>(length));
    at_ += static_cast<size_t>(length);
    return s;
  }
  // How many things of at least `least` bytes follow; more than fit is a lie.
  uint64_t count(const std::string& what, uint64_t least, uint64_t most = UINT64_MAX) {
    const auto n = number<uint64_t>("the number of " + what);
    if (n > left() / least)
      refuse("expected " + std::to_string(n) + " " + what + ", but only " + std::to_string(left()) +
             " bytes are left: the file is truncated or damaged");
    if (n > most) refuse("expected at most " + std::to_string(most) + " " + what + ", found " + std::to_string(n));
    return n;
  }

 private:
  void need(uint64_t bytes, const std::string& what) const {
    if (bytes > left())
      refuse("the file ends inside " + what + ": expected " + std::to_string(bytes) + " bytes at byte " +
             std::to_string(at_) + ", found " + std::to_string(left()));
  }
  std::span<const uint8_t> bytes_;
  std::string where_;
  size_t at_ = 0;
};

template <class T>
T read_one(Reader& r, const std::string& what) {
  if constexpr (std::is_same_v<T, std::string>) {
    return r.text(what);
  } else if constexpr (std::is_same_v<T, bool>) {
    return r.number<uint8_t>(what) != 0;
  } else {
    return r.number<T>(what);
  }
}

// Calls f.template operator()<T>() with the alternative of V that has this index.
template <class V, size_t kIndex = 0, class F>
void with_alternative(size_t index, F&& f) {
  if constexpr (kIndex < std::variant_size_v<V>) {
    if (index == kIndex) return f.template operator()<std::variant_alternative_t<kIndex, V>>();
    with_alternative<V, kIndex + 1>(index, std::forward<F>(f));
  }
}

Array read_array(Reader& r, const std::string& key) {
  const auto type = r.number<uint32_t>("the type of " + key);
  if (type == kArrayType || type >= std::variant_size_v<Array>)
    fail(ErrorKind::unsupported, r.where() + ": " + key + ": arrays of type " + std::to_string(type) + " are not read");
  Array out;
  with_alternative<Array>(type, [&]<class List>() {
    if constexpr (!std::is_same_v<List, std::monostate>) {
      using T = typename List::value_type;
      const uint64_t n = r.count("elements of " + key, std::is_same_v<T, std::string> ? 8 : sizeof(T));
      List list;
      list.reserve(static_cast<size_t>(n));
      for (uint64_t i = 0; i < n; ++i) list.push_back(read_one<T>(r, key));
      out = std::move(list);
    }
  });
  return out;
}

Value read_value(Reader& r, const std::string& key) {
  const auto type = r.number<uint32_t>("the type of " + key);
  if (type >= std::variant_size_v<Value>)
    r.refuse(key + ": expected a value type from 0 to 12, found " + std::to_string(type));
  if (type == kArrayType) return read_array(r, key);
  Value out;
  with_alternative<Value>(type, [&]<class T>() {
    if constexpr (!std::is_same_v<T, Array>) out = Value(std::in_place_type<T>, read_one<T>(r, key));
  });
  return out;
}

void read_magic(Reader& r, std::span<const uint8_t> bytes) {
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0)
    r.refuse("does not begin with \"GGUF\": not a GGUF file");
  r.number<uint32_t>("the magic");
  const auto version = r.number<uint32_t>("the version");
  if (version >= kOldestVersion && version <= kVersion) return;
  const bool swapped = (version & 0xffff) == 0 && version != 0;
  fail(ErrorKind::unsupported, r.where() + ": GGUF version 2 or 3 expected, found " +
                                   (swapped ? "a big-endian file" : std::to_string(version)) +
                                   "; convert it with llama.cpp's own tools");
}

FileTensor read_tensor(Reader& r) {
  FileTensor t;
  t.name = r.text("a tensor's name");
  const std::string what = "tensor '" + shown(t.name) + "'";
  if (t.name.empty()) r.refuse("a tensor has no name");
  const auto rank = r.number<uint32_t>(what);
  if (rank < 1 || rank > kMaxDims) r.refuse(what + ": expected 1 to 4 dimensions, found " + std::to_string(rank));
  int64_t dims[kMaxDims], elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto d = r.number<uint64_t>(what);
    dims[rank - 1 - i] = static_cast<int64_t>(d);
    if (d == 0) r.refuse(what + ": expected dimensions of at least 1, found 0");
    if (d > INT64_MAX || __builtin_mul_overflow(elements, static_cast<int64_t>(d), &elements) ||
        elements > INT64_MAX / 8)
      r.refuse(what + ": its dimensions overflow 64 bits");
  }
  t.shape = Shape(std::span<const int64_t>(dims, rank));
  const auto type = r.number<uint32_t>(what);
  t.type = find_block_type(type);
  if (!t.type)
    fail(ErrorKind::unsupported, r.where() + ": " + what + ": tensors of type " + std::to_string(type) +
                                     " are not read (docs/formats/gguf.md lists those that are)");
  if (t.cols() % t.type->elements != 0)
    r.refuse(what + ": rows of " + std::to_string(t.cols()) + " values are no whole blocks of " +
             std::string(t.type->name) + " (" + std::to_string(t.type->elements) + " values)");
  t.bytes = tensor_bytes(*t.type, t.shape);
  const auto offset = r.number<uint64_t>(what);
  if (offset > INT64_MAX) r.refuse(what + ": its offset " + std::to_string(offset) + " overflows 64 bits");
  t.begin = static_cast<int64_t>(offset);
  return t;
}

int64_t alignment_of(const Metadata& m) {
  const int64_t a = m.integer("general.alignment", kAlignment);
  if (a < 1 || a > (1 << 30) || (a & (a - 1)) != 0)
    fail(ErrorKind::checkpoint, m.where() + ": general.alignment: expected a power of two, found " + std::to_string(a));
  return a;
}

// Makes offsets absolute and checks that every tensor lies in the file, aligned, and none on another.
void place(std::vector<FileTensor>& tensors, const Reader& r, int64_t alignment, int64_t file_bytes) {
  const int64_t data = (static_cast<int64_t>(r.at()) + alignment - 1) / alignment * alignment;
  std::vector<const FileTensor*> order;
  for (FileTensor& t : tensors) {
    const std::string what = "tensor '" + shown(t.name) + "'";
    if (t.begin % alignment != 0)
      r.refuse(what + ": expected an offset that is a multiple of " + std::to_string(alignment) + ", found " +
               std::to_string(t.begin));
    if (data > file_bytes || t.begin > file_bytes - data || t.bytes > file_bytes - data - t.begin)
      r.refuse(what + ": its " + std::to_string(t.bytes) + " bytes at offset " + std::to_string(t.begin) +
               " lie outside the file of " + std::to_string(file_bytes) + " bytes: truncated or damaged");
    t.begin += data;
    order.push_back(&t);
  }
  std::sort(order.begin(), order.end(), [](const FileTensor* a, const FileTensor* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i - 1]->begin + order[i - 1]->bytes > order[i]->begin)
      r.refuse("tensor '" + shown(order[i]->name) + "': overlaps tensor '" + shown(order[i - 1]->name) + "'");
}

}  // namespace

File parse(std::span<const uint8_t> bytes, const std::string& where) {
  Reader r(bytes, where);
  read_magic(r, bytes);
  const uint64_t tensors = r.count("tensors", 24, kMostTensors), pairs = r.count("metadata keys", 13, kMostKeys);
  File file{.metadata = Metadata(where), .tensors = {}};
  for (uint64_t i = 0; i < pairs; ++i) {
    const std::string key = r.text("a metadata key");
    if (key.empty() || file.metadata.has(key)) r.refuse("metadata key '" + shown(key) + "': empty or there twice");
    file.metadata.set(key, read_value(r, shown(key)));
  }
  if (file.metadata.integer("split.count", 1) > 1)
    fail(ErrorKind::unsupported, where + ": is one of " + std::to_string(file.metadata.integer("split.count")) +
                                     " parts; put them together first (llama-gguf-split --merge)");
  std::set<std::string> names;
  for (uint64_t i = 0; i < tensors; ++i) {
    file.tensors.push_back(read_tensor(r));
    if (!names.insert(file.tensors.back().name).second)
      r.refuse("tensor '" + shown(file.tensors.back().name) + "' is there twice");
  }
  place(file.tensors, r, alignment_of(file.metadata), static_cast<int64_t>(bytes.size()));
  return file;
}

int64_t tensor_bytes(const BlockType& type, const Shape& shape) {
  const int64_t cols = shape.rank() == 0 ? 1 : shape[-1];
  return cols == 0 ? 0 : shape.numel() / cols * row_bytes(type, cols);
}

}  // namespace fewbit::gguf
