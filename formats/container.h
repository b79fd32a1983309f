#pragma once
// Containers: how named tensors lie in files. A container knows names, dtypes, shapes and bytes, nothing of models.
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/mapped_file.h"
#include "src/core/tensor.h"

namespace fewbit {

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape{};
  int file = 0;       // index into CheckpointIndex::files
  int64_t begin = 0;  // byte offset in that file
  int64_t bytes = 0;
  // Where the file's elements have no DType (blocks of GGUF): their name. `dtype` and `shape` are then what a
  // reader gets, `begin` and `bytes` what lies in the file.
  std::string_view stored{};
};

// Headers of all files of a checkpoint, checked; the files stay mapped as long as this lives.
struct CheckpointIndex {
  std::vector<MappedFile> files;
  std::map<std::string, TensorInfo> tensors;        // by name
  std::map<std::string, std::string> metadata;      // of the container, merged over the files
  ConstTensorView view(const TensorInfo& t) const;  // into the mapping; may be unaligned for its dtype
};

// The one virtual interface: a stream of tensors into shards. Nothing under the final name exists before finish().
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;
  virtual void add(const std::string& name, ConstTensorView host) = 0;  // bytes are taken before it returns
  virtual void finish() = 0;                                            // closes shards, writes the index, renames
};

struct WriterOptions {
  int64_t shard_bytes = int64_t{5} << 30;  // a new shard begins before this would be exceeded
};

struct Container {
  std::string_view name, summary;
  bool (*probe)(const std::filesystem::path& dir_or_file);
  CheckpointIndex (*open)(const std::filesystem::path& dir_or_file);  // Error{checkpoint|io} with file and reason
  std::unique_ptr<CheckpointWriter> (*create)(const std::filesystem::path& dir, const WriterOptions&);
};

const std::vector<const Container*>& containers();
// The container that recognises the path; Error{checkpoint} naming what was looked for otherwise.
const Container& container_for(const std::filesystem::path& dir_or_file);

#define FEWBIT_CONTAINER(id) extern const Container container_##id;
#include "formats/containers.def"
#undef FEWBIT_CONTAINER

}  // namespace fewbit
