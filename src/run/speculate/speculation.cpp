#include "src/run/speculate/speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "src/core/error.h"
#include "src/run/kv_cache.h"

namespace fewbit {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double ratio(double a, double b) { return b > 0 ? a / b : kUnknown; }

int64_t sum(const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); }

// Seconds of all passes with a draft, each as short as the shortest of its rows or of more: one that was disturbed says
// nothing where a longer one was quicker.
double drafted_seconds(const SpeculationReport& r) {
  double seconds = 0, least = std::numeric_limits<double>::infinity();
  const auto& passes = r.passes.by_rows();
  for (auto it = passes.rbegin(); it != passes.rend() && it->first > 1; ++it) {
    least = std::min(least, it->second.least);
    seconds += static_cast<double>(it->second.count) * least;
  }
  return seconds;
}

double one_row(const SpeculationReport& r) {
  const auto it = r.passes.by_rows().find(1);
  return it == r.passes.by_rows().end() ? kUnknown : it->second.least;
}

}  // namespace

std::string_view name_of(DraftKind kind) {
  switch (kind) {
    case DraftKind::off:
      return "off";
    case DraftKind::ngram:
      return "ngram";
    case DraftKind::model:
      return "draft";
    case DraftKind::mtp:
      return "mtp";
  }
  bug("unknown kind of draft");
}

SpeculateOptions speculate_from(std::string_view text) {
  if (text == "off") return {};
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  for (const DraftKind kind : {DraftKind::ngram, DraftKind::model, DraftKind::mtp}) {
    if (name != name_of(kind)) continue;
    if (colon == text.npos)
      return {.kind = kind,
              .k = kind == DraftKind::ngram   ? kDraftTokens
                   : kind == DraftKind::model ? kModelDraftTokens
                                              : kMtpDraftTokens};
    int64_t k = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, k);
    if (error == std::errc() && rest == end && k >= 1 && k <= kMostDraftTokens) return {.kind = kind, .k = k};
  }
  fail(ErrorKind::usage, fmt::format("--speculate: expected off, or ngram, draft or mtp, with :K from 1 to {} behind "
                                     "it or without, found \"{}\"",
                                     kMostDraftTokens, text));
}

void Acceptance::add(int64_t draft, int64_t kept) {
  ++drafts;
  drafted += draft;
  tokens += kept;
  if (std::ssize(reached) < draft)
    for (std::vector<int64_t>* each : {&reached, &accepted, &ended}) each->resize(static_cast<size_t>(draft));
  ++ended[static_cast<size_t>(draft - 1)];
  for (int64_t i = 0; i < std::min(kept, draft); ++i) {
    ++reached[static_cast<size_t>(i)];
    if (i + 1 < kept) ++accepted[static_cast<size_t>(i)];
  }
}

int64_t Acceptance::accepted_in_all() const { return sum(accepted); }

double Acceptance::alpha() const {
  return ratio(static_cast<double>(accepted_in_all()), static_cast<double>(sum(reached)));
}

double Acceptance::alpha(size_t position) const {
  return ratio(static_cast<double>(accepted.at(position)), static_cast<double>(reached.at(position)));
}

double Acceptance::tokens_of_each() const { return ratio(static_cast<double>(tokens), static_cast<double>(drafts)); }

double Acceptance::predicted_tokens() const {
  const double a = alpha();
  double expected = 0;
  for (size_t i = 0; i < ended.size(); ++i) {
    const auto rows = static_cast<double>(i + 2);
    expected += static_cast<double>(ended[i]) * (a < 1 ? (1 - std::pow(a, rows)) / (1 - a) : rows);
  }
  return ratio(expected, static_cast<double>(drafts));
}

void SpeculationReport::add(int64_t draft, int64_t kept, double time) {
  tokens += kept;
  seconds += time;
  passes.add(draft + 1, time, draft > 0);
  if (draft > 0) drafts.add(draft, kept);
}

int64_t SpeculationReport::steps() const {
  int64_t n = 0;
  for (const auto& [rows, p] : passes.by_rows()) n += p.count;
  return n;
}

double SpeculationReport::tokens_per_step() const {
  return ratio(static_cast<double>(tokens), static_cast<double>(steps()));
}

double SpeculationReport::cost() const {
  return ratio(ratio(drafted_seconds(*this), static_cast<double>(drafts.drafts)), one_row(*this));
}

double SpeculationReport::speed_up() const {
  const double one = one_row(*this);
  const double plain = static_cast<double>(steps() - drafts.drafts) * one;
  return ratio(static_cast<double>(tokens) * one, plain + drafted_seconds(*this));
}

}  // namespace fewbit
