#include "src/quant/journal/sealed_ranges.h"

#include <fmt/format.h>

#include "src/core/digest.h"
#include "src/core/error.h"

namespace fewbit {

const CheckpointIndex* RangeReader::opened(int64_t shard) {
  auto it = files_.find(shard);
  if (it == files_.end()) try {
      it = files_.emplace(shard, container_safetensors.open(file_(shard))).first;
    } catch (const Error&) {  // it is not there, or its header is not what was written
      it = files_.emplace(shard, CheckpointIndex{}).first;
    }
  return &it->second;
}

bool RangeReader::are_whole(const SealedRanges& ranges, std::string& damaged) {
  for (const SealedRange& r : ranges) {
    const CheckpointIndex& file = *opened(r.shard);
    const auto at = file.tensors.find(r.tensor);
    if (at != file.tensors.end()) {
      const ConstTensorView bytes = file.view(at->second);
      if (digest_of_pieces(bytes.data, at->second.bytes) == r.digest) continue;
    }
    damaged = r.tensor;
    return false;
  }
  return true;
}

CheckpointIndex RangeReader::open(const SealedRanges& ranges, const FileOf& file) {
  CheckpointIndex all;
  std::map<int64_t, CheckpointIndex> opened;
  for (const SealedRange& r : ranges) {
    auto it = opened.find(r.shard);
    if (it == opened.end()) it = opened.emplace(r.shard, container_safetensors.open(file(r.shard))).first;
    const auto at = it->second.tensors.find(r.tensor);
    if (at == it->second.tensors.end())
      fail(ErrorKind::checkpoint, fmt::format("{}: has no tensor {}", file(r.shard).string(), r.tensor));
    all.tensors.emplace(r.tensor, at->second);
  }
  std::map<int64_t, int> number;
  for (auto& [shard, index] : opened) {
    number.emplace(shard, static_cast<int>(all.files.size()));
    all.files.push_back(std::move(index.files.front()));
  }
  for (const SealedRange& r : ranges) all.tensors.at(r.tensor).file = number.at(r.shard);
  return all;
}

}  // namespace fewbit
