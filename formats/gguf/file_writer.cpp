// Writing a GGUF file: magic, counts, metadata, table, data; every tensor padded to the alignment, the last
// one too.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <set>

#include "formats/gguf/file.h"
#include "src/core/error.h"
#include "src/core/file_io.h"
#include "src/core/inline_parallel.h"

namespace fewbit::gguf {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kVersion = 3;

template <class T>
void put(std::string& out, T v) {
  out.append(reinterpret_cast<const char*>(&v), sizeof v);
}
void put_text(std::string& out, const std::string& s) {
  put<uint64_t>(out, s.size());
  out += s;
}

template <class T>
void put_one(std::string& out, const T& v) {
  if constexpr (std::is_same_v<T, std::string>) {
    put_text(out, v);
  } else if constexpr (std::is_same_v<T, bool>) {
    put<uint8_t>(out, v ? 1 : 0);
  } else {
    put(out, v);
  }
}

void put_array(std::string& out, const Array& array) {
  std::visit(
      [&](const auto& list) {
        using List = std::decay_t<decltype(list)>;
        if constexpr (std::is_same_v<List, std::monostate>) {
          bug("a GGUF array without a type");
        } else {
          put<uint32_t>(out, static_cast<uint32_t>(array.index()));
          put<uint64_t>(out, list.size());
          for (const auto& v : list) put_one<typename List::value_type>(out, v);
        }
      },
      array);
}

void put_value(std::string& out, const Value& value) {
  put<uint32_t>(out, static_cast<uint32_t>(value.index()));
  std::visit(
      [&](const auto& v) {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, Array>) {
          put_array(out, v);
        } else {
          put_one(out, v);
        }
      },
      value);
}

int64_t aligned(int64_t n, int64_t alignment) { return (n + alignment - 1) / alignment * alignment; }

std::string header_of(const Metadata& metadata, const std::vector<TensorToWrite>& tensors, int64_t alignment) {
  std::string out = "GGUF";
  put<uint32_t>(out, kVersion);
  put<uint64_t>(out, tensors.size());
  put<uint64_t>(out, metadata.values().size());
  // Readers of partial files look for the architecture first.
  const auto pair = [&](const std::string& key, const Value& value) {
    put_text(out, key);
    put_value(out, value);
  };
  static const std::string first = "general.architecture";
  if (const auto it = metadata.values().find(first); it != metadata.values().end()) pair(first, it->second);
  for (const auto& [key, value] : metadata.values())
    if (key != first) pair(key, value);
  int64_t offset = 0;
  for (const TensorToWrite& t : tensors) {
    put_text(out, t.name);
    put<uint32_t>(out, static_cast<uint32_t>(t.shape.rank()));
    for (int i = t.shape.rank() - 1; i >= 0; --i) put<uint64_t>(out, static_cast<uint64_t>(t.shape[i]));
    put<uint32_t>(out, t.type->id);
    put<uint64_t>(out, static_cast<uint64_t>(offset));
    offset += aligned(tensor_bytes(*t.type, t.shape), alignment);
  }
  out.resize(static_cast<size_t>(aligned(static_cast<int64_t>(out.size()), alignment)));
  return out;
}

void check(const fs::path& path, const std::vector<TensorToWrite>& tensors) {
  std::set<std::string> names;
  for (const TensorToWrite& t : tensors) {
    const std::string what = path.string() + ": tensor '" + t.name + "': ";
    if (t.name.empty() || t.name.size() > kLongestName)
      fail(ErrorKind::checkpoint, what + "GGUF wants a name of 1 to " + std::to_string(kLongestName) + " bytes");
    if (!names.insert(t.name).second) fail(ErrorKind::checkpoint, what + "would be written twice");
    if (t.shape.rank() < 1 || t.shape.rank() > 4)
      fail(ErrorKind::unsupported, what + "GGUF wants 1 to 4 dimensions, found " + t.shape.str());
    FEWBIT_ASSERT(t.shape[-1] % t.type->elements == 0);
  }
}

// The file under its temporary name; removed where it was not finished.
class Output {
 public:
  explicit Output(const fs::path& path)
      : path_(path),
        temporary_(path.string() + '.' + std::to_string(::getpid()) + ".tmp"),
        file_(fewbit::File::with_flags(temporary_, O_WRONLY | O_CREAT | O_TRUNC)) {
    if (!file_.open()) file_.refuse("cannot create");
  }
  ~Output() {
    std::error_code ignored;
    if (!done_) fs::remove(temporary_, ignored);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(const void* data, int64_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(file_.fd(), p, static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30)));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) file_.refuse("cannot write");
      p += n;
      bytes -= n;
    }
  }
  void finish() {
    file_.sync();
    std::error_code ec;
    fs::rename(temporary_, path_, ec);
    if (ec) fail(ErrorKind::io, path_.string() + ": cannot rename: " + ec.message());
    done_ = true;
    sync_folder(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
  }

 private:
  fs::path path_, temporary_;
  fewbit::File file_;
  bool done_ = false;
};

}  // namespace

WrittenFile write(const fs::path& path, const Metadata& metadata, const std::vector<TensorToWrite>& tensors) {
  check(path, tensors);
  const int64_t alignment = metadata.integer("general.alignment", kAlignment);
  const std::string header = header_of(metadata, tensors, alignment);
  Output out(path);
  FileDigests digests;
  out.write(header.data(), static_cast<int64_t>(header.size()));
  digests.add(header.data(), static_cast<int64_t>(header.size()));
  const std::string zeros(static_cast<size_t>(alignment), '\0');
  const auto add = [&](const TensorToWrite& t, const Tensor& data) {
    const InlineParallel alone;  // the other threads make the next tensor
    const int64_t bytes = data.bytes(), padding = aligned(bytes, alignment) - bytes;
    out.write(data.view().data, bytes);
    out.write(zeros.data(), padding);
    digests.add_tensor(t.name, data.view().data, bytes);
    digests.add(zeros.data(), padding);
  };
  std::future<void> before;  // the tensor before, on its way into the file
  for (const TensorToWrite& t : tensors) {
    Tensor data = t.bytes();
    FEWBIT_ASSERT(data.bytes() == tensor_bytes(*t.type, t.shape));
    if (before.valid()) before.get();
    before = std::async(std::launch::async, [&add, &t, data = std::move(data)] { add(t, data); });
  }
  if (before.valid()) before.get();
  out.finish();
  return digests.finish(path);
}

}  // namespace fewbit::gguf
