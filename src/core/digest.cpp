#include "src/core/digest.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "src/core/file_io.h"
#include "src/core/parallel.h"
#include "src/core/xxh3/wide_hash.h"

namespace fewbit {
namespace {

constexpr int64_t kPiece = int64_t{16} << 20;
constexpr int64_t kRead = int64_t{256} << 10;  // stays in the cache of a core for the hash and for what looks at it
constexpr int64_t kBefore = 8;  // bytes of an element at most: so many stay in reach in front of what is shown

std::string hex(const uint8_t digest[16]) {
  std::string s;
  for (int i = 0; i < 16; ++i)
    for (const int nibble : {digest[i] >> 4, digest[i] & 15}) s += "0123456789abcdef"[nibble];
  return s;
}

void* start() {
  XXH3_state_t* const state = XXH3_createState();
  if (state) XXH3_128bits_reset(state);
  return state;
}

void add(void* state, const void* bytes, size_t count) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), bytes, count);
}

void finish(void* state, uint8_t digest[16]) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(static_cast<XXH3_state_t*>(state)));
  XXH3_freeState(static_cast<XXH3_state_t*>(state));
  std::copy(std::begin(bytes.digest), std::end(bytes.digest), digest);
}

const WideHash& widest() {
  static const WideHash narrow{.start = start, .add = add, .finish = finish};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return kHashAvx512;
  if (__builtin_cpu_supports("avx2")) return kHashAvx2;
#endif
  return narrow;
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
    return fewbit::hex(digest);
  }

 private:
  const WideHash& calls_ = widest();
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
