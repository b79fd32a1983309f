#pragma once
// Two checkpoints, tensor by tensor: packed linears by their codes and their values, everything else by type,
// shape and values. One pair of tensors is in memory at a time.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/model/checkpoint.h"

namespace fewbit {

enum class Sameness : uint8_t {
  identical,    // the same type, shape and bytes; of packed linears the same grid, codes, scales and zero
                // points
  same_values,  // stored otherwise; every value is the same as f32
  different,    // other values
  reshaped,     // other shapes
  only_a,
  only_b,
};
const char* name_of(Sameness);  // "identical", "same values", "different", "other shape", "only in A", "only in B"

struct TensorDiff {
  std::string name;  // of a packed linear "<linear>.weight"
  Sameness state = Sameness::identical;
  std::string a, b;                // "bf16 [256, 256]", "marlin int4 g128 sym [256, 256]"; "" where it is absent
  double max_abs = 0;              // largest |B - A|; not finite where a value of one side is not a number
  double relative = 0;             // ||B - A|| / ||A||; infinite where A is zero and B is not
  int64_t values = 0;              // that differ; of tensors without a float type, bytes
  std::optional<int64_t> codes{};  // that differ, where both sides are packed with the same shape and bits
};

struct CheckpointDiff {
  std::vector<TensorDiff> tensors;  // worst first
  int64_t count(Sameness) const;
  bool same() const;  // every tensor is in both, with the same values
};

// A checkpoint folder or .gguf file, or one weight file (or folder of them) without its config.
class DiffSide {
 public:
  static DiffSide open(const std::filesystem::path&);
  // The checkpoint; null where there is no config, so that nothing is known to be packed.
  const Checkpoint* checkpoint() const { return checkpoint_ ? &*checkpoint_ : nullptr; }
  const WeightStore& store() const { return checkpoint_ ? checkpoint_->store : *store_; }

 private:
  std::optional<Checkpoint> checkpoint_{};
  std::optional<WeightStore> store_{};
};

CheckpointDiff diff_checkpoints(const DiffSide& a, const DiffSide& b, const std::function<void(double)>& progress);

}  // namespace fewbit
