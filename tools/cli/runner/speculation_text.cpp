#include "tools/cli/runner/speculation_text.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kJudgedDrafts = 8;  // drafts, before which the MTP layer is not judged
constexpr double kPoorAlpha = .2;

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

Json figures_of(const Acceptance& a) {
  Json by_position = Json::array();
  for (size_t i = 0; i < a.reached.size(); ++i)
    by_position.push_back({{"reached", a.reached[i]}, {"accepted", a.accepted[i]}, {"alpha", number(a.alpha(i))}});
  return {{"drafted_steps", a.drafts},
          {"drafted", a.drafted},
          {"accepted", a.accepted_in_all()},
          {"alpha", number(a.alpha())},
          {"by_position", by_position},
          {"tokens_per_drafted_step", number(a.tokens_of_each())},
          {"predicted_tokens_per_drafted_step", number(a.predicted_tokens())}};
}

}  // namespace

std::string text_of(const Acceptance& a) {
  std::string text = fmt::format("{} of {} drafted tokens accepted, alpha {:.3f} (by position:", a.accepted_in_all(),
                                 a.drafted, a.alpha());
  for (size_t i = 0; i < a.reached.size() && a.reached[i] > 0; ++i) text += fmt::format(" {:.2f}", a.alpha(i));
  return text + ")";
}

std::string text_of(const SpeculationReport& r) {
  std::string text;
  if (r.drafts.drafts == 0) {
    text = fmt::format("speculation: no draft in {} passes\n", r.steps());
  } else {
    text = fmt::format(
        "speculation: {}\n{} tokens in {} passes: {:.2f} each; {:.2f} of the {} with a draft, predicted by alpha "
        "{:.2f}\n",
        text_of(r.drafts), r.tokens, r.steps(), r.tokens_per_step(), r.drafts.tokens_of_each(), r.drafts.drafts,
        r.drafts.predicted_tokens());
    if (std::isfinite(r.cost()))
      text += fmt::format(
          "a pass with a draft takes {:.2f} times one without: {:.2f} times the speed; making drafts took {:.0f} % of "
          "the time\n",
          r.cost(), r.speed_up(), 100 * r.draft_seconds / r.seconds);
  }
  // A layer that was trained for it has most of its first tokens accepted.
  if (r.kind == DraftKind::mtp && !r.drafts.reached.empty() && r.drafts.reached[0] >= kJudgedDrafts &&
      r.drafts.alpha(0) < kPoorAlpha)
    text += fmt::format(
        "note: only {:.0f} % of the MTP layer's first tokens are accepted: it is not the one that was trained with "
        "these "
        "weights, or what quantized the checkpoint broke it\n",
        100 * r.drafts.alpha(0));
  if (r.held_back > 0)
    text +=
        fmt::format("{} passes had a shorter draft or none: drafts took longer than what they saved\n", r.held_back);
  return text;
}

std::string json_of(const Acceptance& a) { return figures_of(a).dump(); }

std::string json_of(const SpeculationReport& r) {
  Json passes = Json::array();
  for (const auto& [rows, p] : r.passes.by_rows())
    passes.push_back({{"rows", rows}, {"count", p.count}, {"least_ms", p.least * 1e3}});
  Json j = {
      {"draft", name_of(r.kind)}, {"k", r.k}, {"steps", r.steps()}, {"tokens_per_step", number(r.tokens_per_step())}};
  j.update(figures_of(r.drafts));
  j.update({{"cost", number(r.cost())},
            {"speed_up", number(r.speed_up())},
            {"held_back", r.held_back},
            {"seconds", r.seconds},
            {"draft_seconds", r.draft_seconds},
            {"passes", passes}});
  return j.dump();
}

}  // namespace fewbit::cli
