#pragma once
// Logits of scored tokens, wherever they come from: a model that runs, or a cache on disk.
#include <filesystem>
#include <functional>
#include <string>

#include "src/eval/protocol.h"
#include "src/run/runner.h"

namespace fewbit {

// Rows [begin, end) of a batch's scored tokens, window after window: f32 [end - begin, vocab] on the device.
using BatchLogits = std::function<Tensor(int64_t begin, int64_t end)>;

struct LogitSource {
  int64_t vocab = 0;
  // For windows [begin, end), which share their first scored position; valid until the next call.
  std::function<BatchLogits(int64_t begin, int64_t end)> windows{};
};

LogitSource logits_from(Exec&, Runner&, const ScoredWindows&);

// Cached logits: a folder with cache.json (the key) and safetensors; per window i of n scored tokens
//   code.i [n, vocab] u16, top.i [n] f32, step.i [n] f32:   logit = top - step * code
// step = min(kCacheRange, largest - smallest logit) / 65535. docs/evaluation.md describes it.
inline constexpr float kCacheRange = 24;  // nats below the largest logit; smaller ones are stored as that

// What a cache was made from; another one is not used.
struct CacheKey {
  std::string model;  // fingerprint
  std::string dtype, protocol;
};
// Runs `base` once over all windows. Error{io} where nothing can be written; nothing is left under `dir`
// then.
void write_logit_cache(Exec&, const std::filesystem::path& dir, const CacheKey&, const LogitSource& base,
                       const ScoredWindows&, int64_t batch_tokens,
                       const std::function<void(int64_t, int64_t)>& progress);
// Error{usage} naming what differs (model, dtype, protocol, tokens), Error{checkpoint} for a folder that is
// no cache.
LogitSource logits_from_cache(Exec&, const std::filesystem::path& dir, const CacheKey&, const ScoredWindows&);

// A short hash of a checkpoint: its config, and of every tensor name, type, shape and the first and last 4
// KiB.
std::string fingerprint(const Checkpoint&);

}  // namespace fewbit
