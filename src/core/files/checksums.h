#pragma once
// The file SHA256SUMS of a checkpoint: a line for every other file, which `sha256sum -c` accepts, and a comment with a
// digest of these lines, so that damage to this file is not taken for damage to another.
#include <map>
#include <string>
#include <vector>

namespace fewbit {

inline constexpr const char* kChecksumsFile = "SHA256SUMS";

using Checksums = std::map<std::string, std::string>;  // file name -> SHA-256

std::string checksums_text(const Checksums&);

struct ReadChecksums {
  Checksums files;
  std::vector<std::string> problems;  // a line each; what could be read is in `files` nevertheless
};
ReadChecksums read_checksums(const std::string& text);

}  // namespace fewbit
