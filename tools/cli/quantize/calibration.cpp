#include "tools/cli/quantize/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "src/core/file_io.h"
#include "src/core/hash.h"
#include "src/core/strings.h"
#include "src/model/sources/sources.h"
#include "src/quant/loop/self_calibration.h"
#include "src/ranks/exchange.h"
#include "src/text/calibration/sources.h"
#include "src/text/files/text_file.h"
#include "src/text/files/token_file.h"
#include "tools/cli/chat.h"
#include "tools/cli/ranks.h"
#include "tools/cli/usage.h"

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
  if (w.count < a.samples) *note = fmt::format("warning: {} holds {} windows instead of {}", path, w.count, a.samples);
  return w;
}

constexpr const char* kSelf = "self";
// Sampling that nobody asked for may take this long.
constexpr double kQuickSampling = 60;

std::vector<CalibSource> sources_of(const CalibrationArgs& a) {
  std::vector<CalibSource> sources;
  sources.reserve(a.calib.size());
  for (const std::string& text : a.calib) sources.push_back(calib_source(text));
  if (sources.empty()) sources.push_back({"builtin"});
  return sources;
}

// Up to kWholeText bytes of text in all, in the order given, are read whole; files that follow stay on disk. A source
// of several files shares its weight among them.
std::vector<CalibPart> texts_of(const CalibrationArgs& a, const Checkpoint& c) {
  std::vector<CalibPart> texts;
  int64_t room = kWholeText;
  std::optional<ChatTemplate> chat;
  const CalibReading how{a.field, [&]() -> const ChatTemplate& {
                           if (!chat) chat = open_chat(c.dir, "");
                           return *chat;
                         }};
  for (const CalibSource& source : sources_of(a)) {
    if (source.name == kSelf) continue;
    const size_t first = texts.size();
    if (source.name == "builtin") {
      CalibText& all = texts.emplace_back(CalibPart{.text = {"builtin", ""}}).text;
      for (const CalibText& t : builtin_calibration()) all.text += t.text + "\n";
    } else {
      for (const std::filesystem::path& file : calib_files(source.name)) {
        texts.push_back(calib_text(file, room, how));
        for (const std::string& d : texts.back().documents) room -= static_cast<int64_t>(d.size());
        room = std::max<int64_t>(0, room - static_cast<int64_t>(texts.back().text.text.size()));
      }
    }
    for (size_t i = first; i < texts.size(); ++i)
      texts[i].weight = source.weight / static_cast<double>(texts.size() - first);
  }
  return texts;
}

// The weight of `self` among all sources: 0 where it is none.
double own_share(const CalibrationArgs& a) {
  double own = 0, all = 0;
  for (const CalibSource& s : sources_of(a)) {
    all += s.weight;
    if (s.name == kSelf) own += s.weight;
  }
  return own / all;
}

// `count` windows that the model writes, or wrote before for the same model, seed and length.
Windows sampled(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, int64_t count, Progress& progress,
                const KeptSample& kept) {
  const int64_t length = calibration_length(a, c.spec);
  const std::string of = fmt::format("{} windows of {} tokens, seed {}, {} on {}, model {}", count, length, a.seed,
                                     name_of(dtype), ex.on_cuda() ? "cuda" : "cpu", kept.model);
  std::vector<std::filesystem::path> places;
  if (!kept.file.empty()) places.push_back(kept.file);
  std::error_code no_cache;  // a cache that cannot be is none
  if (const auto cache = user_cache_folder() / "sampled"; !kept.model.empty() && !user_cache_folder().empty()) {
    std::filesystem::create_directories(cache, no_cache);
    if (!no_cache) places.push_back(cache / content_hash(of.data(), of.size()));
  }
  for (const auto& place : places) {
    auto before = kept_sample(place, of);
    if (!before) continue;
    if (place != places.front()) keep_sample(places.front(), of, *before);
    return *std::move(before);
  }
  Windows w = sample_calibration(ex, c, dtype, count, length, a.seed,
                                 [&](double f) { progress.update("sampling the calibration text", f); });
  for (const auto& place : places) keep_sample(place, of, w);
  return w;
}

// What the texts lack and nobody said where to take it from: sampled if that is quick; else the note says how.
int64_t quick_enough(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, int64_t missing,
                     const KeptSample& kept, std::string* note) {
  const int64_t length = calibration_length(a, c.spec);
  const std::filesystem::path declined = kept.file.string() + ".none";
  const std::string command = fmt::format("--calib builtin --calib self --samples {}", a.samples);
  std::error_code ec;
  if (kept.file.empty() || std::filesystem::exists(kept.file, ec)) return kept.file.empty() ? 0 : missing;
  std::string why = "sampling was not tried again";
  if (!std::filesystem::exists(declined, ec)) {  // a resumed run decides as it did
    const std::string no_room =
        kept.limits ? refuse_to_sample(c, dtype, missing, length, *kept.limits, ex.on_cuda()) : "";
    const double seconds = no_room.empty() ? price_of_sampling(ex, c, dtype, missing, length, kQuickSampling) : 0;
    if (no_room.empty() && seconds < kQuickSampling) return missing;
    why = no_room.empty() ? fmt::format("sampling the rest from the model would take about {}", human_seconds(seconds))
                          : "the model does not fit whole, as sampling from it needs";
    File::append(declined).append_whole(why + "\n");
  }
  *note += fmt::format("; {}: {} does so, --calib FILE adds text", why, command);
  return 0;
}

Windows drawn_from_texts(const CalibrationArgs& a, const Checkpoint& c, std::string* note) {
  const int64_t own = std::llround(own_share(a) * static_cast<double>(a.samples));
  return draw_parts(Tokenizer::open(c.dir), texts_of(a, c), std::max<int64_t>(1, a.samples - own),
                    calibration_length(a, c.spec), a.seed, note);
}

Windows drawn(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, Progress& progress,
              std::string* note, const KeptSample& kept, std::future<DrawnText> text) {
  const int64_t length = calibration_length(a, c.spec);
  if (const auto path = token_file(a)) return windows_of_file(*path, a, c.spec, note);
  const double own = own_share(a);
  if (own == 1) return sampled(ex, a, c, dtype, a.samples, progress, kept);
  DrawnText from_texts;
  if (text.valid())
    from_texts = text.get();
  else
    from_texts.windows = drawn_from_texts(a, c, &from_texts.note);
  Windows w = std::move(from_texts.windows);
  *note += from_texts.note;
  int64_t missing = a.samples - w.count;
  if (missing > 0 && own == 0) missing = a.calib.empty() ? quick_enough(ex, a, c, dtype, missing, kept, note) : 0;
  if (missing == 0) return w;
  const Windows more = sampled(ex, a, c, dtype, missing, progress, kept);
  const bool several = w.source.ends_with(" tokens)");
  w.source = fmt::format("{}+{}", several ? w.source : with_tokens(w.source, w.count * length),
                         with_tokens(kSelf, more.count * length));
  w.ids.insert(w.ids.end(), more.ids.begin(), more.ids.end());
  w.count += more.count;
  note->clear();  // nothing is missing now, and the source says what came from where
  return w;
}

}  // namespace

void add_calibration_arguments(CLI::App& app, CalibrationArgs& a) {
  app.add_option(
         "--calib", a.calib,
         "builtin, self (sampled from the model), or texts: a FILE (.txt, .md, .jsonl, also .gz or .zst), a "
         "folder or a pattern; may be repeated, each with a weight (chats.jsonl:0.7); or a .safetensors FILE "
         "whose input_ids [n, t] are n windows (left out: builtin, and self for what that lacks if it is quick)")
      ->take_all();
  app.add_option("--calib-field", a.field,
                 "KEY of a .jsonl file's records (left out: text, messages, or prompt with completion)");
  app.add_option("--samples", a.samples, "Windows of text (of a .safetensors file: the first ones)")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--seq-len", a.seq_len,
                 fmt::format("Tokens per window (default: {}, or as long as a .safetensors file has them; at most the "
                             "model's positions)",
                             kUsualLength))
      ->check(in_range(2, int64_t{1} << 24));
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
  if (own_share(a) == 0 || the_ranks().rank() != 0) return;
  const std::string why = refuse_to_sample(c, dtype, a.samples, calibration_length(a, c.spec), limits, on_gpu);
  if (!why.empty()) fail(ErrorKind::memory, why);
}

std::future<DrawnText> draw_text_beside(const CalibrationArgs& a, const Checkpoint& c) {
  if (the_ranks().rank() != 0 || token_file(a) || own_share(a) == 1) return {};
  return std::async(std::launch::async, [&a, &c] {
    DrawnText d;
    d.windows = drawn_from_texts(a, c, &d.note);
    return d;
  });
}

Windows draw_windows(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, Progress& progress,
                     std::string* note, const KeptSample& kept, std::future<DrawnText> text) {
  const Ranks& ranks = the_ranks();
  Windows w;
  if (ranks.rank() == 0) w = drawn(ex, a, c, dtype, progress, note, kept, std::move(text));
  w.count = value_of_root(ranks, w.count);
  w.length = value_of_root(ranks, w.length);
  w.source = text_of_root(ranks, w.source);
  w.ids.resize(static_cast<size_t>(w.count * w.length));
  bytes_of_root(ranks, {reinterpret_cast<char*>(w.ids.data()), w.ids.size() * sizeof(int32_t)});
  return w;
}

}  // namespace fewbit::cli
