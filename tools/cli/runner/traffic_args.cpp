#include "tools/cli/runner/traffic_args.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/guarded_json.h"
#include "src/core/strings.h"
#include "src/core/text/shown.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

constexpr std::string_view kUniform = "uniform:";
constexpr int64_t kMostTokens = 1 << 20;

template <class T>
std::optional<T> number(std::string_view text) {
  T n{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && rest == text.data() + text.size() ? std::optional(n) : std::nullopt;
}

std::optional<Lengths> read_lengths(const std::string& text) {
  const bool range = starts_with(text, kUniform);
  const std::vector<std::string> ends = range ? split(text.substr(kUniform.size()), '-') : std::vector{text, text};
  if (ends.size() != 2) return std::nullopt;
  const auto least = number<int64_t>(ends[0]), most = number<int64_t>(ends[1]);
  if (!least || !most || *least < 1 || *most < *least || *most > kMostTokens) return std::nullopt;
  return Lengths{*least, *most};
}

std::optional<double> read_ms(std::string_view text) {
  const bool ms = text.ends_with("ms"), s = !ms && text.ends_with('s');
  if (!ms && !s) return std::nullopt;
  const auto n = number<double>(text.substr(0, text.size() - (ms ? 2 : 1)));
  if (!n || !(*n > 0) || std::isinf(*n)) return std::nullopt;
  return ms ? *n : 1e3 * *n;
}

TrafficRequest request_from(const std::string& line, const std::string& where) {
  const nlohmann::json j = parse_json(line, where, kRecordJson);
  constexpr const char* kExpected = "expected {\"arrival\": seconds, \"prompt_tokens\": N, \"tokens\": N}";
  if (!j.is_object()) fail(ErrorKind::checkpoint, fmt::format("{}: {}", where, kExpected));
  for (const auto& [key, value] : j.items())
    if (key != "arrival" && key != "prompt_tokens" && key != "tokens")
      fail(ErrorKind::checkpoint, fmt::format("{}: unknown key \"{}\"; {}", where, shown(key), kExpected));
  const auto count = [&](const char* key) {
    const auto found = j.find(key);
    if (found == j.end() || !found->is_number_integer() || *found < 1 || *found > kMostTokens)
      fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected a whole number from 1 to {}, found {}", where, key,
                                              kMostTokens, found == j.end() ? "none" : shown(found->dump())));
    return found->get<int64_t>();
  };
  const auto at = j.find("arrival");
  if (at == j.end() || !at->is_number() || at->get<double>() < 0 || at->get<double>() > 1e6)
    fail(ErrorKind::checkpoint, fmt::format("{}: arrival: expected seconds after the start, found {}", where,
                                            at == j.end() ? "none" : shown(at->dump())));
  return {.arrival_s = at->get<double>(), .prompt_tokens = count("prompt_tokens"), .tokens = count("tokens")};
}

}  // namespace

std::vector<CLI::Option*> add_scheduling(CLI::App& app, SchedulingArgs& a, const std::string& otherwise) {
  return {app.add_option("--cache-positions", a.positions,
                         fmt::format("Positions of all sequences (left out: {})", otherwise))
              ->check(at_least(1)),
          app.add_option("--budget", a.budget, "Rows of a pass, of steps and of prompts")
              ->check(in_range(1, 65536))
              ->capture_default_str(),
          app.add_flag("--no-prefix-cache", a.no_prefix_cache, "Share no pages between requests"),
          app.add_flag("--batch-invariant", a.batch_invariant,
                       "GPU: a request's tokens depend on nothing beside it, as they always do on the CPU; a bench "
                       "says what it costs")};
}

CLI::Validator lengths() {
  return {[](const std::string& text) {
            if (read_lengths(text)) return std::string();
            return fmt::format("expected a whole number of at least 1, found {} (a range is uniform:64-512)", text);
          },
          ""};
}

Lengths lengths_from(const std::string& text) {
  const auto l = read_lengths(text);
  FEWBIT_ASSERT(l.has_value());
  return *l;
}

int64_t one_length(const std::string& text, const char* flag) {
  const Lengths l = lengths_from(text);
  if (l.least != l.most)
    fail(ErrorKind::usage, fmt::format("{} {}: a range is for --concurrency; expected a number", flag, text));
  return l.least;
}

std::string text_of(const Lengths& l) {
  return l.least == l.most ? fmt::format("{}", l.least) : fmt::format("{}{}-{}", kUniform, l.least, l.most);
}

Slo slo_from(const std::string& text) {
  Slo slo;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    double* limit = name == "ttft" ? &slo.ttft_ms : name == "itl" ? &slo.itl_ms : name == "e2e" ? &slo.e2e_ms : nullptr;
    const auto ms = equals == std::string::npos ? std::nullopt : read_ms(std::string_view(part).substr(equals + 1));
    if (!limit || !ms || *limit < Slo::kNone)
      fail(ErrorKind::usage, fmt::format("--slo {}: expected limits as in ttft=200ms,itl=20ms,e2e=3s, each once; found "
                                         "\"{}\"",
                                         text, part));
    *limit = *ms;
  }
  return slo;
}

std::vector<TrafficRequest> read_arrivals(const std::string& file) {
  std::vector<TrafficRequest> requests;
  int64_t line = 0;
  for (const std::string& text : split(json_text(file, kTableJson), '\n')) {
    ++line;
    if (words(text).empty()) continue;
    const std::string where = fmt::format("{}:{}", file, line);
    requests.push_back(request_from(text, where));
    if (requests.size() > 1 && requests.back().arrival_s < requests.end()[-2].arrival_s)
      fail(ErrorKind::checkpoint, fmt::format("{}: arrival {} is before the line above; sort the lines by arrival",
                                              where, requests.back().arrival_s));
  }
  if (requests.empty()) fail(ErrorKind::checkpoint, file + ": no requests");
  return requests;
}

}  // namespace fewbit::cli
