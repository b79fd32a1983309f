#include "src/quant/loop/self_calibration.h"

#include <algorithm>

#include "src/core/parallel.h"
#include "src/core/rng.h"

namespace fewbit {

Windows sample_calibration(Exec& ex, const Checkpoint& c, DType dtype, int64_t samples, int64_t length, uint64_t seed,
                           const std::function<void(double)>& progress) {
  const int64_t batch = std::min<int64_t>(samples, 32);
  Engine engine(ex, c, {.load = {.dtype = dtype}, .batch = batch, .capacity = length});
  Windows w{.count = samples,
            .length = length,
            .ids = std::vector<int32_t>(static_cast<size_t>(samples * length)),
            .source = "self"};
  const Rng first(seed, "self-calibration");
  const SamplerOptions options{.temperature = 1, .seed = seed};
  for (int64_t begin = 0; begin < samples; begin += batch) {
    engine.reset();
    const auto at = [&](int64_t b, int64_t t) -> int32_t& {
      // The last batch may be wider than what is left; its surplus rows repeat the last sample.
      return w.ids[static_cast<size_t>(std::min(begin + b, samples - 1) * length + t)];
    };
    std::vector<int32_t> next(static_cast<size_t>(batch));
    for (int64_t b = 0; b < batch; ++b) {
      const auto drawn =
          static_cast<int32_t>(first.at(static_cast<uint64_t>(begin + b)) % static_cast<uint64_t>(c.spec.vocab));
      next[static_cast<size_t>(b)] = at(b, 0) = c.spec.bos >= 0 ? static_cast<int32_t>(c.spec.bos) : drawn;
    }
    ConstTensorView logits = engine.prefill(next);
    for (int64_t t = 1; t < length; ++t) {
      const Tensor host = ex.to_host(logits);
      parallel_for(batch, 1, [&](int64_t b0, int64_t b1) {
        for (int64_t b = b0; b < b1; ++b)
          next[static_cast<size_t>(b)] =
              sample({host.as<float>() + b * c.spec.vocab, static_cast<size_t>(c.spec.vocab)}, options,
                     std::min(begin + b, samples - 1), t);
      });
      for (int64_t b = 0; b < batch; ++b) at(b, t) = next[static_cast<size_t>(b)];
      if (t + 1 < length) logits = engine.decode(ex.to_device(Tensor::host_from<int32_t>(DType::i32, {batch}, next)));
      if (progress)
        progress((static_cast<double>(begin) + static_cast<double>(batch * t) / static_cast<double>(length)) /
                 static_cast<double>(samples));
    }
  }
  return w;
}

}  // namespace fewbit
