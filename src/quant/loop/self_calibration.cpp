#include "src/quant/loop/self_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/core/digest.h"
#include "src/core/file_io.h"
#include "src/core/parallel.h"
#include "src/core/rng.h"
#include "src/core/stopwatch.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kBatch = 32;  // windows that are sampled side by side

std::string_view bytes_of_ids(const std::vector<int32_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)};
}

}  // namespace

Windows sample_calibration(Exec& ex, const Checkpoint& c, DType dtype, int64_t samples, int64_t length, uint64_t seed,
                           const std::function<void(double)>& progress) {
  const int64_t batch = std::min(samples, kBatch);
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

double price_of_sampling(Exec& ex, const Checkpoint& c, DType dtype, int64_t samples, int64_t length, double limit) {
  const int64_t batch = std::min(samples, kBatch);
  const double steps = static_cast<double>(((samples + batch - 1) / batch * (length - 1)));
  const double rate = ex.on_cuda() ? 10e12 : 1e12;  // bytes a second, above any device of its kind
  const double at_least = steps * static_cast<double>(parameter_count(c.spec) * bytes_of(dtype)) / rate;
  if (at_least >= limit) return at_least;
  constexpr int kTimed = 16;
  Engine engine(ex, c, {.load = {.dtype = dtype}, .batch = batch, .capacity = std::max<int64_t>(length, kTimed + 2)});
  const std::vector<int32_t> ids(static_cast<size_t>(batch), 0);
  const Tensor next = ex.to_device(Tensor::host_from<int32_t>(DType::i32, {batch}, ids));
  ex.to_host(engine.prefill(ids));
  ex.to_host(engine.decode(next));  // the first one is recorded
  const Stopwatch watch;
  for (int i = 0; i < kTimed; ++i) ex.to_host(engine.decode(next));
  return steps * watch.seconds() / kTimed;
}

std::string refuse_to_sample(const Checkpoint& c, DType dtype, int64_t samples, int64_t length,
                             const MemoryLimits& limits, bool on_gpu) {
  int64_t cache = 0;
  for (int64_t layer = 0; layer < c.spec.layers; ++layer)
    if (const Attention* a = own_attention_of(c.spec.block(layer))) cache += 2 * a->kv_heads * a->head_dim;
  for (int64_t layer = 0; layer < c.spec.layers; ++layer)
    cache += latent_bytes(c.spec.block(layer), KvType::plain, dtype) / bytes_of(dtype);
  const int64_t elements = parameter_count(c.spec) + cache * std::min(samples, kBatch) * length;
  const int64_t needs = elements * bytes_of(dtype), may = on_gpu ? limits.device : limits.host;
  if (needs <= may) return "";
  return fmt::format(
      "--calib self samples from the whole model at once, which takes {} of {} memory, and this run may use {}; "
      "calibrate with --calib builtin or --calib FILE, which need one block at a time",
      human_bytes(needs), on_gpu ? "GPU" : "host", human_bytes(may));
}

// A line that says what the ids are of, with their digest, and then the ids.
std::optional<Windows> kept_sample(const fs::path& file, const std::string& of) {
  std::error_code ec;
  if (!fs::is_regular_file(file, ec)) return std::nullopt;
  const std::string text = File::read(file).read_all();
  const size_t line = std::min(text.find('\n'), text.size());
  const Json j = Json::parse(text.substr(0, line), nullptr, false);
  if (!j.is_object() || j.value("of", "") != of) return std::nullopt;
  Windows w{
      .count = j.value("count", int64_t{0}), .length = j.value("length", int64_t{0}), .ids = {}, .source = "self"};
  const std::string_view ids = std::string_view(text).substr(std::min(line + 1, text.size()));
  if (w.count < 1 || w.length < 1 || ids.size() % sizeof(int32_t) != 0 || j.value("digest", "") != digest_of(ids) ||
      static_cast<int64_t>(ids.size() / sizeof(int32_t)) / w.length != w.count)
    return std::nullopt;
  w.ids.resize(ids.size() / sizeof(int32_t));
  std::memcpy(w.ids.data(), ids.data(), ids.size());
  return w;
}

void keep_sample(const fs::path& file, const std::string& of, const Windows& w) {
  const fs::path fresh = file.string() + ".tmp";
  std::error_code ec;
  fs::remove(fresh, ec);
  {
    const std::string_view ids = bytes_of_ids(w.ids);
    const Json line = {{"of", of}, {"count", w.count}, {"length", w.length}, {"digest", digest_of(ids)}};
    File out = File::append(fresh);
    out.append_whole(line.dump() + "\n");
    out.append_whole(ids);
    out.sync();
  }
  fs::rename(fresh, file);
  sync_folder(file.parent_path());
}

}  // namespace fewbit
