#pragma once
// One GGUF v3 file: header, metadata, table of tensors; reading from mapped bytes and writing. Little-endian.
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "formats/gguf/block_type.h"
#include "formats/gguf/metadata.h"
#include "formats/written_file.h"

namespace fewbit::gguf {

struct FileTensor {
  std::string name;
  const BlockType* type = nullptr;
  // Outermost first, as everywhere here; the file has it reversed. The last dimension is in blocks.
  Shape shape{};
  int64_t begin = 0;  // absolute in the file
  int64_t bytes = 0;

  int64_t cols() const { return shape.rank() == 0 ? 1 : shape[-1]; }
  int64_t rows() const { return shape.numel() / cols(); }
};

struct File {
  Metadata metadata;
  std::vector<FileTensor> tensors;  // in the order of the table
};

// Checks and reads the header; data stays where it is. `where` names the file in messages. Error{checkpoint}
// for what a GGUF file must not be (truncated, sizes and offsets that do not fit, names twice), and
// Error{unsupported} for versions, byte orders and tensor types that are valid but not read here.
File parse(std::span<const uint8_t> file, const std::string& where);

// A tensor to write: what it is, and its bytes when their turn comes.
struct TensorToWrite {
  std::string name;
  const BlockType* type = nullptr;
  Shape shape{};
  std::function<Tensor()> bytes{};  // contiguous; of the size that type and shape say
};
// Writes `path` under another name and renames it at the end. Two tensors are in memory at a time: one is written by
// a thread of its own while the next is made. Adds
// general.alignment only where the metadata has none. Error{checkpoint} for names that GGUF does not admit,
// Error{io}.
WrittenFile write(const std::filesystem::path& path, const Metadata& metadata,
                  const std::vector<TensorToWrite>& tensors);

// Bytes of a tensor of this type and shape. The last dimension is a multiple of the type's elements.
int64_t tensor_bytes(const BlockType&, const Shape&);

inline constexpr int64_t kAlignment = 32;   // of tensor data, where general.alignment says nothing
inline constexpr size_t kLongestName = 63;  // of a tensor, in bytes

}  // namespace fewbit::gguf
