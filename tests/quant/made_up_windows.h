#pragma once
// Calibration windows without a text.
#include "src/core/rng.h"
#include "src/model/model_spec.h"
#include "src/text/corpus.h"

namespace fewbit::test {

// `count` windows of `length` ids of the model's vocabulary, the same on every call.
inline Windows made_up_windows(const ModelSpec& spec, int64_t count, int64_t length) {
  Windows w{.count = count, .length = length, .ids = {}, .source = "made up"};
  w.ids.resize(static_cast<size_t>(count * length));
  for (size_t i = 0; i < w.ids.size(); ++i)
    w.ids[i] = static_cast<int32_t>(mix64(i) % static_cast<uint64_t>(spec.vocab));
  return w;
}

}  // namespace fewbit::test
