#pragma once
// The files of a safetensors checkpoint, for a writer who knows all tensors of a file before its first byte and writes
// one file at a time. CheckpointWriter (container.h) is for those who do not.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "formats/container.h"
#include "formats/written_file.h"

namespace fewbit {

struct ShardTensor {
  TensorInfo info{};                       // name, dtype, shape and bytes; its place is not asked for
  std::function<ConstTensorView()> bytes;  // asked for once, when it is written
  std::function<void()> done{};            // it is written
};
using ShardNames = std::vector<std::string>;  // of the tensors in a file

// "model.safetensors", or "model-00001-of-00003.safetensors".
std::string shard_name(size_t index, size_t count);

// Writes one file in the reference writer's order. Error{io} with the path; what was written then stays.
WrittenFile write_shard(const std::filesystem::path& file, const std::vector<ShardTensor>& tensors);

// The writer of container_safetensors, which has `written` filled when it is finished.
std::unique_ptr<CheckpointWriter> create_with_digests(const std::filesystem::path& dir, const WriterOptions&,
                                                      std::vector<WrittenFile>& written);

// model.safetensors.index.json of several files; `total`: bytes of all tensors.
void write_shard_index(const std::filesystem::path& file, const std::vector<ShardNames>& shards, int64_t total);

}  // namespace fewbit
