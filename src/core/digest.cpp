#include "src/core/digest.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "src/core/file_io.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

constexpr int64_t kPiece = int64_t{16} << 20;
constexpr int64_t kRead = int64_t{1} << 20;
constexpr int64_t kBefore = 8;  // bytes of an element at most: so many stay in reach in front of what is shown

std::string hex(XXH128_hash_t h) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, h);
  std::string s;
  for (const uint8_t b : bytes.digest)
    for (const int nibble : {b >> 4, b & 15}) s += "0123456789abcdef"[nibble];
  return s;
}

struct FreeState {
  void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
};

// Bytes [begin, end) of the file: their digest, and whatever the reading asks for. A part stays in the cache of the
// processor for both.
std::string read_piece(const File& file, int64_t begin, int64_t end, const FileReading& reading) {
  ::posix_fadvise(file.fd(), begin, end - begin, POSIX_FADV_WILLNEED);
  const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  XXH3_128bits_reset(state.get());
  std::vector<char> buffer(kBefore + kRead);
  char* const bytes = buffer.data() + kBefore;
  if (begin >= kBefore) file.read_at(begin - kBefore, buffer.data(), kBefore);
  for (int64_t at = begin, n = 0; at < end; at += n) {
    n = std::min(end - at, kRead);
    file.read_at(at, bytes, n);
    XXH3_128bits_update(state.get(), bytes, static_cast<size_t>(n));
    if (reading.see) reading.see(at, at + n, reinterpret_cast<const uint8_t*>(bytes));
    if (reading.done) reading.done(n);
    std::memmove(buffer.data(), buffer.data() + n, kBefore);
  }
  if (reading.drop_pages) ::posix_fadvise(file.fd(), begin, end - begin, POSIX_FADV_DONTNEED);
  return hex(XXH3_128bits_digest(state.get()));
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

std::string digest_of(std::string_view bytes) { return hex(XXH3_128bits(bytes.data(), bytes.size())); }

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
