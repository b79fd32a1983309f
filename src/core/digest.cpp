#include "src/core/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "src/core/file_io.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

constexpr int64_t kPiece = int64_t{16} << 20;
constexpr int64_t kRead = int64_t{1} << 20;
constexpr int64_t kSamples = 64, kSample = int64_t{64} << 10;

std::string hex(XXH128_hash_t h) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, h);
  std::string s;
  for (const uint8_t b : bytes.digest)
    for (const int nibble : {b >> 4, b & 15}) s += "0123456789abcdef"[nibble];
  return s;
}

// Digests ranges of a file that are added one after the other.
class RangeDigest {
 public:
  explicit RangeDigest(const File& file) : file_(file), buffer_(kRead) { XXH3_128bits_reset(state_.get()); }
  void add(int64_t begin, int64_t end) {
    for (int64_t n = 0; begin < end; begin += n) {
      n = std::min(end - begin, kRead);
      file_.read_at(begin, buffer_.data(), n);
      XXH3_128bits_update(state_.get(), buffer_.data(), static_cast<size_t>(n));
    }
  }
  std::string str() const { return hex(XXH3_128bits_digest(state_.get())); }

 private:
  struct Free {
    void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
  };
  const File& file_;
  std::vector<char> buffer_;
  std::unique_ptr<XXH3_state_t, Free> state_{XXH3_createState()};
};

}  // namespace

std::string digest_of(std::string_view bytes) { return hex(XXH3_128bits(bytes.data(), bytes.size())); }

std::string digest_of_file(const std::filesystem::path& path) {
  const File file = File::read(path);
  const int64_t bytes = file.size();
  std::vector<std::string> pieces(static_cast<size_t>((bytes + kPiece - 1) / kPiece));
  parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      RangeDigest piece(file);
      piece.add(i * kPiece, std::min(bytes, (i + 1) * kPiece));
      pieces[static_cast<size_t>(i)] = piece.str();
    }
  });
  std::string all;
  for (const std::string& piece : pieces) all += piece;
  return digest_of(all);
}

std::string digest_of_samples(const std::filesystem::path& path) {
  const File file = File::read(path);
  const int64_t bytes = file.size(), ends = int64_t{1} << 20;
  RangeDigest digest(file);
  if (bytes <= 2 * ends + kSamples * kSample) {
    digest.add(0, bytes);
    return digest.str();
  }
  digest.add(0, ends);
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t begin = ends + (bytes - 2 * ends - kSample) / (kSamples - 1) * i;
    digest.add(begin, begin + kSample);
  }
  digest.add(bytes - ends, bytes);
  return digest.str();
}

}  // namespace fewbit
