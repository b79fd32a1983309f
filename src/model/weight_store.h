#pragma once
// WeightStore: tensor name -> view into mapped files. Never converts and never copies.
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "formats/container.h"

namespace fewbit {

class WeightStore {
 public:
  // Probes the containers, reads headers only, maps the files. Refuses pickled checkpoints with the way out.
  static WeightStore open(const std::filesystem::path& dir_or_file);

  bool has(const std::string& name) const { return index_.tensors.count(name) > 0; }
  const TensorInfo* find(const std::string& name) const;
  ConstTensorView get(const std::string& name) const;  // Error{checkpoint} naming file and tensor when absent
  // get() plus a check of dtype (any of `dtypes`) and shape; the Error prints expected and found.
  ConstTensorView expect(const std::string& name, std::initializer_list<DType> dtypes, const Shape& shape) const;
  const CheckpointIndex& index() const { return index_; }
  const std::filesystem::path& path() const { return path_; }
  int64_t total_bytes() const;

 private:
  std::filesystem::path path_;
  CheckpointIndex index_;
};

}  // namespace fewbit
