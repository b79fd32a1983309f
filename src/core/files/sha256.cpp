#include "src/core/files/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <vector>

#include "src/core/error.h"
#include "src/core/file_io.h"
#include "src/core/strings.h"

namespace fewbit {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }
};

// Without the system's openssl.cnf, which a digest has no use for: the thread that reads it, which may be one that
// ends, is left with memory that nobody frees.
Sha256::Sha256() {
  OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  state_ = std::make_unique<State>();
  FEWBIT_ASSERT(state_->context && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::add(const void* bytes, size_t count) {
  FEWBIT_ASSERT(EVP_DigestUpdate(state_->context, bytes, count) == 1);
}

std::string Sha256::hex() {
  std::array<unsigned char, kSha256Digits / 2> bytes{};
  FEWBIT_ASSERT(EVP_DigestFinal_ex(state_->context, bytes.data(), nullptr) == 1);
  return hex_of(bytes);
}

std::string sha256_of_file(const std::filesystem::path& path) {
  constexpr int64_t kPart = int64_t{1} << 20;
  const File file = File::read(path);
  std::vector<char> buffer(kPart);
  Sha256 sha;
  for (int64_t at = 0, bytes = file.size(), n = 0; at < bytes; at += n) {
    n = std::min(bytes - at, kPart);
    file.read_at(at, buffer.data(), n);
    sha.add(buffer.data(), static_cast<size_t>(n));
  }
  return sha.hex();
}

}  // namespace fewbit
