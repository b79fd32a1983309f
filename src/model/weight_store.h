#pragma once
// WeightStore: tensor name -> view into mapped files, without conversion or copy; tensors that are not stored
// as they are wanted (blocks of GGUF) are made when they are first asked for, and then kept.
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "formats/container.h"

namespace fewbit {

class WeightStore {
 public:
  // Probes the containers, reads headers only, maps the files. Refuses pickled checkpoints with the way out.
  static WeightStore open(const std::filesystem::path& dir_or_file);

  // The tensors of `index`; those in `makers` (by name) are made by a call instead of viewed.
  using Makers = std::map<std::string, std::function<Tensor()>>;
  static WeightStore of(std::filesystem::path path, CheckpointIndex index, Makers makers);

  // The same files under an index that `edit` changed, with the makers that it added.
  WeightStore reindexed(const std::function<void(const std::filesystem::path&, CheckpointIndex&, Makers&)>& edit) &&;

  bool has(const std::string& name) const { return index_.tensors.count(name) > 0; }
  const TensorInfo* find(const std::string& name) const;
  ConstTensorView get(const std::string& name) const;  // Error{checkpoint} naming file and tensor when absent
  // Frees what get() made for this name, if anything, and forget()s it; views of it end here. For passes over a whole
  // model.
  void release(const std::string& name) const;
  // Gives the memory behind a tensor of a file back to the system. Views of it stay good: what is read again is fetched
  // again.
  void forget(const std::string& name) const;
  // The same of `count` bytes from byte `from` of the tensor on, as the file has it.
  void forget(const std::string& name, int64_t from, int64_t count) const;
  // get() plus a check of dtype (any of `dtypes`) and shape; the Error prints expected and found.
  ConstTensorView expect(const std::string& name, std::initializer_list<DType> dtypes, const Shape& shape) const;
  const CheckpointIndex& index() const { return index_; }
  const std::filesystem::path& path() const { return path_; }
  int64_t total_bytes() const;

 private:
  std::filesystem::path path_;
  CheckpointIndex index_;
  Makers makers_;
  mutable std::map<std::string, Tensor> made_;
  std::unique_ptr<std::mutex> making_ = std::make_unique<std::mutex>();  // guards made_
};

}  // namespace fewbit
