#pragma once
// imatrix files: what llama.cpp's llama-imatrix saw in front of each linear, a sum of squares for every input. Today's
// form is a GGUF file of tensors NAME.in_sum2 and NAME.counts; the older .dat form is read too (docs/formats/gguf.md).
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/written_file.h"

namespace fewbit::gguf {

struct ImatrixEntry {
  std::vector<float> squares{};  // [matrices, inputs]: sums over tokens; several matrices: experts
  std::vector<float> counts{};   // tokens of each matrix, or one count for all
};

struct Imatrix {
  std::map<std::string, ImatrixEntry> entries{};  // by tensor: "blk.0.attn_q.weight"
  std::vector<std::string> datasets{};
  int64_t chunks = 0, chunk_tokens = 0;
};

// Both forms. The older one has means times calls in the place of sums. Error{checkpoint} naming
// `file` and the entry: truncated, sizes that do not fit each other, negative or not finite.
Imatrix parse_imatrix(std::span<const uint8_t> bytes, const std::string& file);
Imatrix read_imatrix(const std::filesystem::path& file);

// Today's form. Error{io}.
WrittenFile write_imatrix(const std::filesystem::path& file, const Imatrix&);

}  // namespace fewbit::gguf
