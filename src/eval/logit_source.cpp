#include "src/eval/logit_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "formats/container.h"
#include "formats/guarded_json.h"
#include "src/core/hash.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
constexpr float kCodes = 65535;

std::string numbered(const char* name, int64_t window) { return fmt::format("{}.{:06}", name, window); }

struct CodedRows {
  Tensor code, top, step;
};

// The rows of one window as codes; appends [begin, end) of them.
void encode_rows(ConstTensorView logits, CodedRows& out, int64_t at) {
  const int64_t vocab = logits.cols();
  parallel_for(logits.rows(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* z = logits.as<float>() + r * vocab;
      const auto [low, high] = std::minmax_element(z, z + vocab);
      const float step = std::min(kCacheRange, *high - *low) / kCodes;
      out.top.as<float>()[at + r] = *high;
      out.step.as<float>()[at + r] = step;
      uint16_t* code = out.code.as<uint16_t>() + (at + r) * vocab;
      for (int64_t v = 0; v < vocab; ++v)
        code[v] = step > 0 ? static_cast<uint16_t>(std::min(kCodes, (*high - z[v]) / step + 0.5f)) : 0;
    }
  });
}

struct Cache {
  CheckpointIndex index;
  Tensor get(const std::string& name, DType dtype, const Shape& shape, const fs::path& dir) const {
    const auto it = index.tensors.find(name);
    if (it == index.tensors.end() || it->second.dtype != dtype || !(it->second.shape == shape))
      fail(ErrorKind::checkpoint, fmt::format("{}: no tensor {} {} {}; remove the folder to make the cache anew",
                                              dir.string(), name, name_of(dtype), shape.str()));
    return clone_host(index.view(it->second));
  }
};

Tensor decode_rows(const CodedRows& rows, int64_t begin, int64_t end) {
  const int64_t vocab = rows.code.cols();
  Tensor out = Tensor::host(DType::f32, {end - begin, vocab});
  parallel_for(end - begin, 4, [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r) {
      const float top = rows.top.as<float>()[begin + r], step = rows.step.as<float>()[begin + r];
      const uint16_t* code = rows.code.as<uint16_t>() + (begin + r) * vocab;
      float* z = out.as<float>() + r * vocab;
      for (int64_t v = 0; v < vocab; ++v) z[v] = top - step * static_cast<float>(code[v]);
    }
  });
  return out;
}

nlohmann::ordered_json json_of(const CacheKey& k, const ScoredWindows& w, int64_t vocab) {
  return {{"version", 1},
          {"model", k.model},
          {"dtype", k.dtype},
          {"protocol", k.protocol},
          {"vocab", vocab},
          {"windows", w.windows.count},
          {"context", w.windows.length},
          {"tokens", content_hash(w.windows.ids.data(), w.windows.ids.size() * sizeof(int32_t))}};
}

void add_window(CheckpointWriter& writer, Exec& ex, const BatchLogits& logits, int64_t window, int64_t row,
                int64_t rows, int64_t vocab) {
  CodedRows coded{Tensor::host(DType::u16, {rows, vocab}), Tensor::host(DType::f32, {rows}),
                  Tensor::host(DType::f32, {rows})};
  const int64_t chunk = logit_rows_at_once(ex, vocab);
  for (int64_t at = 0; at < rows; at += chunk) {
    const int64_t end = std::min(rows, at + chunk);
    encode_rows(ex.to_host(logits(row + at, row + end)), coded, at);
  }
  writer.add(numbered("code", window), coded.code);
  writer.add(numbered("top", window), coded.top);
  writer.add(numbered("step", window), coded.step);
}

}  // namespace

LogitSource logits_from(Exec& ex, Runner& runner, const ScoredWindows& w) {
  return {runner.spec().vocab, [&ex, &runner, &w](int64_t begin, int64_t end) -> BatchLogits {
            const int64_t len = w.windows.length;
            const std::span<const int32_t> ids =
                std::span(w.windows.ids)
                    .subspan(static_cast<size_t>(begin * len), static_cast<size_t>((end - begin) * len));
            const Tensor x = runner.hidden(ids, end - begin);
            const auto rows = std::make_shared<Tensor>(predicting_rows(ex, x, end - begin, w.first_of(begin)));
            return
                [&runner, rows](int64_t from, int64_t to) { return runner.logits(rows->view().row_range(from, to)); };
          }};
}

void write_logit_cache(Exec& ex, const fs::path& dir, const CacheKey& key, const LogitSource& base,
                       const ScoredWindows& w, int64_t batch_tokens,
                       const std::function<void(int64_t, int64_t)>& progress) {
  const fs::path partial = dir.string() + ".partial";
  std::error_code error;
  fs::remove_all(partial, error);
  try {
    const auto writer = container_safetensors.create(partial, {});
    const int64_t limit = std::max<int64_t>(1, batch_tokens / w.windows.length);
    for (int64_t begin = 0; begin < w.windows.count;) {
      const int64_t end = w.run_end(begin, limit), rows = w.scored_in(begin);
      const BatchLogits logits = base.windows(begin, end);
      for (int64_t i = begin; i < end; ++i) add_window(*writer, ex, logits, i, (i - begin) * rows, rows, base.vocab);
      begin = end;
      if (progress) progress(begin, w.windows.count);
    }
    writer->finish();
    std::ofstream out(partial / "cache.json");
    out << json_of(key, w, base.vocab).dump(1) << "\n";
    if (!out.flush()) fail(ErrorKind::io, fmt::format("{}: cannot write", (partial / "cache.json").string()));
    out.close();
    fs::rename(partial, dir, error);
    if (error) fail(ErrorKind::io, fmt::format("{}: cannot rename: {}", dir.string(), error.message()));
  } catch (const Error&) {
    fs::remove_all(partial, error);
    throw;
  }
}

LogitSource logits_from_cache(Exec& ex, const fs::path& dir, const CacheKey& key, const ScoredWindows& w) {
  const auto found = ordered_json_or_discarded(json_text(dir / "cache.json", kConfigJson), kConfigJson);
  if (!found.is_object() || !found.contains("vocab") || !found["vocab"].is_number_integer())
    fail(ErrorKind::checkpoint, fmt::format("{}: is no cache of logits", (dir / "cache.json").string()));
  const int64_t vocab = found["vocab"];
  const nlohmann::ordered_json wanted = json_of(key, w, vocab);
  for (const auto& [name, expected] : wanted.items()) {
    const std::string theirs = found.contains(name) ? found[name].dump() : "nothing";
    if (theirs != expected.dump())
      fail(ErrorKind::usage,
           fmt::format("{}: was made with another {} ({}, expected {}); give another --base-cache, or remove it",
                       dir.string(), name, theirs, expected.dump()));
  }
  const auto cache = std::make_shared<Cache>(Cache{container_safetensors.open(dir)});
  return {vocab, [&ex, &w, cache, dir, vocab](int64_t begin, int64_t) -> BatchLogits {
            const int64_t rows = w.scored_in(begin);
            const auto held = std::make_shared<std::pair<int64_t, CodedRows>>(-1, CodedRows{});
            return [&ex, cache, dir, vocab, rows, begin, held](int64_t from, int64_t to) {
              Tensor out = ex.alloc(DType::f32, {to - from, vocab});
              for (int64_t at = from; at < to;) {
                const int64_t window = begin + at / rows, in_window = at % rows,
                              n = std::min(rows - in_window, to - at);
                if (held->first != window)
                  *held = {window, CodedRows{cache->get(numbered("code", window), DType::u16, {rows, vocab}, dir),
                                             cache->get(numbered("top", window), DType::f32, {rows}, dir),
                                             cache->get(numbered("step", window), DType::f32, {rows}, dir)}};
                ex.copy(decode_rows(held->second, in_window, in_window + n),
                        out.view().row_range(at - from, at - from + n));
                at += n;
              }
              return out;
            };
          }};
}

std::string fingerprint(const Checkpoint& c) {
  constexpr int64_t kEdge = 4096;
  Hasher h;
  const std::string config = read_text(c.dir / "config.json");
  h.add(config.data(), config.size());
  const CheckpointIndex index = container_for(c.dir).open(c.dir);
  for (const auto& [name, info] : index.tensors) {
    const std::string head = fmt::format("{} {} {}", name, name_of(info.dtype), info.shape.str());
    h.add(head.data(), head.size());
    const auto* bytes = static_cast<const uint8_t*>(index.view(info).data);
    const int64_t edge = std::min(kEdge, info.bytes);
    h.add(bytes, static_cast<size_t>(edge));
    h.add(bytes + info.bytes - edge, static_cast<size_t>(edge));
  }
  return h.hex();
}

}  // namespace fewbit
