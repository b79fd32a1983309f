#pragma once
// WrittenFile: the digests of a file of tensors, made while it was written, so that nothing must be read for them.
#include <filesystem>
#include <map>
#include <string>

#include "src/core/digest.h"
#include "src/core/files/sha256.h"
#include "src/core/tensor.h"

namespace fewbit {

using TensorDigests = std::map<std::string, std::string>;  // tensor -> digest_of_pieces() of its bytes in the file

struct WrittenFile {
  std::string name;    // without its folder
  std::string sha256;  // of the whole file
  TensorDigests tensors{};
};

// Gathers them: is shown the bytes of a file in their order.
class FileDigests {
 public:
  void add(const void* bytes, int64_t count) { sha_.add(bytes, static_cast<size_t>(count)); }
  void add_tensor(const std::string& name, const void* bytes, int64_t count) {
    tensors_[name] = digest_of_pieces(bytes, count);
    add(bytes, count);
  }
  // The digest of a tensor whose bytes are added in another way.
  void know_tensor(const std::string& name, std::string digest) { tensors_[name] = std::move(digest); }
  WrittenFile finish(const std::filesystem::path& file) {
    return {file.filename().string(), sha_.hex(), std::move(tensors_)};
  }

 private:
  Sha256 sha_;
  TensorDigests tensors_{};
};

}  // namespace fewbit
