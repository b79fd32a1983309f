#include "src/core/digest.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "src/core/file_io.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/core/xxh3/hash_calls.h"

namespace fewbit {
namespace {

constexpr int64_t kPiece = int64_t{16} << 20;
constexpr int64_t kRead = int64_t{256} << 10;  // stays in the cache of a core for the hash and for what looks at it
constexpr int64_t kBefore = 8;  // bytes of an element at most: so many stay in reach in front of what is shown

// By the widest vectors of this processor.
const HashCalls& widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return kHashAvx512;
  if (__builtin_cpu_supports("avx2")) return kHashAvx2;
#endif
  return kHashPlain;
}

// The hash of bytes that come in parts.
class Hash {
 public:
  Hash() : state_(calls_.start()) {
    if (!state_) throw std::bad_alloc();
  }
  ~Hash() {
    if (state_) hex();
  }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  void add(const void* bytes, size_t count) { calls_.add(state_, bytes, count); }
  std::string hex() {  // once, behind the last part
    uint8_t digest[16];
    calls_.finish(std::exchange(state_, nullptr), digest);
    return hex_of(digest);
  }

 private:
  const HashCalls& calls_ = widest();
  void* state_;
};

// Bytes [begin, end) of the file: their digest, and whatever the reading asks for. A part stays in the cache of the
// processor for both.
std::string read_piece(const File& file, int64_t begin, int64_t end, const FileReading& reading) {
  ::posix_fadvise(file.fd(), begin, end - begin, POSIX_FADV_WILLNEED);
  Hash hash;
  const auto buffer = std::make_unique_for_overwrite<char[]>(kBefore + kRead);
  char* const bytes = buffer.get() + kBefore;
  if (begin >= kBefore) file.read_at(begin - kBefore, buffer.get(), kBefore);
  for (int64_t at = begin, n = 0; at < end; at += n) {
    n = std::min(end - at, kRead);
    file.read_at(at, bytes, n);
    hash.add(bytes, static_cast<size_t>(n));
    if (reading.see) reading.see(at, at + n, reinterpret_cast<const uint8_t*>(bytes));
    if (reading.done) reading.done(n);
    std::memmove(buffer.get(), buffer.get() + n, kBefore);
  }
  if (reading.drop_pages) ::posix_fadvise(file.fd(), begin, end - begin, POSIX_FADV_DONTNEED);
  return hash.hex();
}

// The digest of the digests of all pieces of `bytes` bytes.
std::string digest_of_all(int64_t bytes, const std::function<std::string(int64_t begin, int64_t end)>& piece) {
  std::vector<std::string> pieces(static_cast<size_t>((bytes + kPiece - 1) / kPiece));
  parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      pieces[static_cast<size_t>(i)] = piece(i * kPiece, std::min(bytes, (i + 1) * kPiece));
  });
  std::string all;
  for (const std::string& p : pieces) all += p;
  return digest_of(all);
}

}  // namespace

std::string digest_of(std::string_view bytes) {
  Hash hash;
  hash.add(bytes.data(), bytes.size());
  return hash.hex();
}

std::string digest_of_pieces(const void* bytes, int64_t count) {
  const auto* const data = static_cast<const char*>(bytes);
  return digest_of_all(count, [&](int64_t begin, int64_t end) {
    return digest_of({data + begin, static_cast<size_t>(end - begin)});
  });
}

std::string digest_of_file(const std::filesystem::path& path, const FileReading& reading) {
  const File file = File::read(path);
  return digest_of_all(file.size(), [&](int64_t begin, int64_t end) { return read_piece(file, begin, end, reading); });
}

}  // namespace fewbit
