#pragma once
// What readers of other programs' codes share: the float weight of a linear takes the place of its codes in the index
// of a store, and is decoded when it is asked for.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/model/model_spec.h"
#include "src/model/weight_store.h"

namespace fewbit {

// A tensor of a file that is opened anew, so that nothing stays mapped between two weights.
struct Stored {
  std::filesystem::path file{};
  TensorInfo info{};

  Tensor bytes() const;
  Tensor floats() const;  // of f32, f16 or bf16, as f32
};

// Rounded to the type, as a program that computes in it does after every operation.
float in_type(float, DType);

class Decoding {
 public:
  Decoding(CheckpointIndex& index, WeightStore::Makers& makers) : index_(index), makers_(makers) {}

  const CheckpointIndex& index() const { return index_; }
  const TensorInfo* find(const std::string& tensor) const;
  // "FILE: tensor 'NAME'", or the name alone where there is none.
  std::string where(const std::string& tensor) const;
  void complain(const std::string& tensor, const std::string& what);
  // The tensor where it has one of the types and that many elements; nothing, with a complaint, where it has not.
  std::optional<Stored> stored(const std::string& tensor, std::initializer_list<DType> types, int64_t elements);
  // `weight` [of the shape, in `type`], which `make` gives; `kind` is what `convert inspect` calls it. `codes`: the
  // tensor that lies in the file in its place, which goes with those `beside` it.
  void put(const std::string& weight, const std::string& codes, std::string_view kind, DType type, const Shape& shape,
           const std::vector<std::string>& beside, std::function<Tensor()> make);
  void fail_if_any() const;  // Error{checkpoint} with all complaints

 private:
  const std::filesystem::path& path_of(const TensorInfo& t) const;

  CheckpointIndex& index_;
  WeightStore::Makers& makers_;
  std::vector<std::string> complaints_;
};

}  // namespace fewbit
