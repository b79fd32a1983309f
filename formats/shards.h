#pragma once
// The files of a safetensors checkpoint, for a writer who knows all tensors of a file before its first byte.
// CheckpointWriter (container.h) is for those who do not.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/container.h"
#include "formats/written_file.h"

namespace fewbit {

using ShardNames = std::vector<std::string>;  // of the tensors in a file

// "model.safetensors", or "model-00001-of-00003.safetensors".
std::string shard_name(size_t index, size_t count);

// A file whose tensors come in any order, each whole. It has its header and its length from the start, so that readers
// can open it and find what came. What came is on its way to the disk at once, so that a sync of the finished file has
// little left to wait for; the digest of the file goes as far as its tensors lie without a gap. Several threads may put
// tensors, each its own. Error{io} with the path; what was written then stays.
class OpenShard {
 public:
  // Makes the file, in the place of any other, with its header in the reference writer's order. Of the tensors name,
  // dtype, shape and bytes count.
  OpenShard(const std::filesystem::path& file, const std::vector<TensorInfo>& tensors);
  // Goes on with a file that was begun for these tensors; those in `there` have their bytes, and these digests. Nothing
  // where the file was begun for others.
  static std::optional<OpenShard> go_on(const std::filesystem::path& file, const std::vector<TensorInfo>& tensors,
                                        TensorDigests there);
  OpenShard(OpenShard&&) noexcept;
  OpenShard& operator=(OpenShard&&) noexcept;
  ~OpenShard();

  bool holds(const std::vector<TensorInfo>&) const;  // whether it was begun for these, in any order
  bool wants(const TensorInfo&) const;               // has such a tensor, which was not put yet
  // Returns the tensor's digest. Waits while much is on its way to the disk.
  std::string put(const std::string& name, ConstTensorView bytes);
  // The same for a thread that has more to do: waits for no disk, and leaves the digest of the file to catch_up().
  std::string put_in_passing(const std::string& name, ConstTensorView bytes);
  // Takes the digest of the file as far as there is no gap, and no tensor of more than `most` bytes.
  void catch_up(int64_t most = INT64_MAX);
  WrittenFile finish();  // all were put, and nobody else is at it

 private:
  struct State;
  explicit OpenShard(std::unique_ptr<State>);
  std::unique_ptr<State> state_;
};

// The writer of container_safetensors, which has `written` filled when it is finished.
std::unique_ptr<CheckpointWriter> create_with_digests(const std::filesystem::path& dir, const WriterOptions&,
                                                      std::vector<WrittenFile>& written);

// model.safetensors.index.json of several files; `total`: bytes of all tensors.
void write_shard_index(const std::filesystem::path& file, const std::vector<ShardNames>& shards, int64_t total);

}  // namespace fewbit
