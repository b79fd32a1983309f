#include "src/quant/loop/code_ways.h"

namespace fewbit {

CodeWays::Fetched CodeWays::fetch(ConstTensorView codes) {
  std::unique_ptr<Way> way;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      way = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!way) way = std::make_unique<Way>(ex_);
  if (way->pinned.bytes() < codes.bytes()) way->pinned = ex_.alloc_pinned(DType::u8, {codes.bytes()});
  const TensorView host{way->pinned.view().data, DType::u8, codes.shape, {}};
  way->side.copy(codes, host);
  return {*this, std::move(way), host};
}

void CodeWays::give_back(std::unique_ptr<Way> way) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(way));
}

}  // namespace fewbit
