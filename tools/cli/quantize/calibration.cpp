#include "tools/cli/quantize/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "src/quant/loop/self_calibration.h"
#include "src/ranks/exchange.h"
#include "src/text/files/text_file.h"
#include "src/text/files/token_file.h"
#include "tools/cli/ranks.h"

namespace fewbit::cli {
namespace {

constexpr int64_t kUsualLength = 2048;

// The file of windows that --calib names, if it does.
std::optional<std::string> token_file(const CalibrationArgs& a) {
  const auto it = std::find_if(a.calib.begin(), a.calib.end(), is_token_file);
  if (it == a.calib.end()) return std::nullopt;
  if (a.calib.size() > 1) fail(ErrorKind::usage, fmt::format("--calib {} cannot be mixed with other sources", *it));
  return *it;
}

Windows windows_of_file(const std::string& path, const CalibrationArgs& a, const ModelSpec& spec, std::string* note) {
  Windows w = read_token_file(path, a.samples, calibration_length(a, spec), spec.vocab);
  if (w.count < a.samples) *note = fmt::format("{} holds {} windows instead of {}", path, w.count, a.samples);
  return w;
}

// Up to kWholeText bytes of text in all, in the order given, are read whole; files that follow stay on disk.
std::vector<CalibText> texts_of(const CalibrationArgs& a) {
  std::vector<CalibText> texts;
  int64_t room = kWholeText;
  for (const std::string& source : a.calib) {
    if (source == "builtin") {
      CalibText& all = texts.emplace_back(CalibText{"builtin", ""});
      for (const CalibText& t : builtin_calibration()) all.text += t.text + "\n";
    } else {
      texts.push_back(calibration_text(source, room));
    }
    room = std::max<int64_t>(0, room - static_cast<int64_t>(texts.back().text.size()));
  }
  return texts;
}

bool samples_itself(const CalibrationArgs& a) {
  return std::find(a.calib.begin(), a.calib.end(), "self") != a.calib.end();
}

Windows sampled(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, Progress& progress,
                const KeptSample& kept) {
  if (a.calib.size() > 1) fail(ErrorKind::usage, "--calib self cannot be mixed with other sources");
  const int64_t length = calibration_length(a, c.spec);
  const std::string of = fmt::format("{} windows of {} tokens, seed {}, {} on {}, model {}", a.samples, length, a.seed,
                                     name_of(dtype), ex.on_cuda() ? "cuda" : "cpu", kept.model);
  if (!kept.file.empty())
    if (auto before = kept_sample(kept.file, of)) return *std::move(before);
  Windows w = sample_calibration(ex, c, dtype, a.samples, length, a.seed,
                                 [&](double f) { progress.update("sampling the calibration text", f); });
  if (!kept.file.empty()) keep_sample(kept.file, of, w);
  return w;
}

Windows drawn(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, Progress& progress,
              std::string* note, const KeptSample& kept) {
  if (samples_itself(a)) return sampled(ex, a, c, dtype, progress, kept);
  const int64_t length = calibration_length(a, c.spec);
  if (const auto path = token_file(a)) return windows_of_file(*path, a, c.spec, note);
  return draw_calibration(Tokenizer::open(c.dir), texts_of(a), a.samples, length, a.seed, note);
}

}  // namespace

void add_calibration_arguments(CLI::App& app, CalibrationArgs& a) {
  app.add_option("--calib", a.calib,
                 "builtin, self (sampled from the model) or a text FILE; may be repeated; or a .safetensors FILE whose "
                 "input_ids [n, t] are n windows")
      ->take_all();
  app.add_option("--samples", a.samples, "Windows of text (of a .safetensors file: the first ones)")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--seq-len", a.seq_len,
                 fmt::format("Tokens per window (default: {}, or as long as a .safetensors file has them; at most the "
                             "model's positions)",
                             kUsualLength))
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  app.add_option("--seed", a.seed, "Seed of the draw")->check(at_least(0))->capture_default_str();
}

int64_t calibration_length(const CalibrationArgs& a, const ModelSpec& spec) {
  const std::optional<std::string> path = token_file(a);
  const int64_t stored = path ? token_file_shape(*path).tokens : kUsualLength;
  if (path && a.seq_len > stored)
    fail(ErrorKind::usage, fmt::format("{}: input_ids has windows of {} tokens, --seq-len asks for {}; give a smaller "
                                       "one or longer windows",
                                       *path, stored, a.seq_len));
  return std::min(a.seq_len > 0 ? a.seq_len : stored, spec.max_positions);
}

int64_t calibration_samples(const CalibrationArgs& a) {
  const std::optional<std::string> path = token_file(a);
  return path ? std::min(a.samples, token_file_shape(*path).windows) : a.samples;
}

void refuse_sampling(const CalibrationArgs& a, const Checkpoint& c, DType dtype, const MemoryLimits& limits,
                     bool on_gpu) {
  if (!samples_itself(a) || the_ranks().rank() != 0) return;
  const std::string why = refuse_to_sample(c, dtype, a.samples, calibration_length(a, c.spec), limits, on_gpu);
  if (!why.empty()) fail(ErrorKind::memory, why);
}

Windows draw_windows(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, Progress& progress,
                     std::string* note, const KeptSample& kept) {
  const Ranks& ranks = the_ranks();
  Windows w;
  if (ranks.rank() == 0) w = drawn(ex, a, c, dtype, progress, note, kept);
  w.count = value_of_root(ranks, w.count);
  w.length = value_of_root(ranks, w.length);
  w.source = text_of_root(ranks, w.source);
  w.ids.resize(static_cast<size_t>(w.count * w.length));
  bytes_of_root(ranks, {reinterpret_cast<char*>(w.ids.data()), w.ids.size() * sizeof(int32_t)});
  return w;
}

}  // namespace fewbit::cli
