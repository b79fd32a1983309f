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

}  // namespace

std::string text_of(const SpeculationReport& r) {
  std::string text;
  if (r.drafted_steps() == 0) {
    text = fmt::format("speculation: no draft in {} passes\n", r.steps());
  } else {
    text = fmt::format("speculation: {} of {} drafted tokens accepted, alpha {:.3f} (by position:", r.accepted_in_all(),
                       r.drafted, r.alpha());
    for (size_t i = 0; i < r.reached.size() && r.reached[i] > 0; ++i) text += fmt::format(" {:.2f}", r.alpha(i));
    text += fmt::format(
        ")\n{} tokens in {} passes: {:.2f} each; {:.2f} of the {} with a draft, predicted by alpha {:.2f}\n", r.tokens,
        r.steps(), r.tokens_per_step(), r.tokens_per_drafted_step(), r.drafted_steps(), r.predicted_tokens());
    if (std::isfinite(r.cost()))
      text += fmt::format(
          "a pass with a draft takes {:.2f} times one without: {:.2f} times the speed; making drafts took {:.0f} % of "
          "the time\n",
          r.cost(), r.speed_up(), 100 * r.draft_seconds / r.seconds);
  }
  // A layer that was trained for it has most of its first tokens accepted.
  if (r.kind == DraftKind::mtp && !r.reached.empty() && r.reached[0] >= kJudgedDrafts && r.alpha(0) < kPoorAlpha)
    text += fmt::format(
        "note: only {:.0f} % of the MTP layer's first tokens are accepted: it is not the one that was trained with "
        "these "
        "weights, or what quantized the checkpoint broke it\n",
        100 * r.alpha(0));
  if (r.stopped_after > 0)
    text += fmt::format("drafts ended after {} passes: they took longer than what they saved\n", r.stopped_after);
  return text;
}

std::string json_of(const SpeculationReport& r) {
  Json by_position = Json::array(), passes = Json::array();
  for (size_t i = 0; i < r.reached.size(); ++i)
    by_position.push_back({{"reached", r.reached[i]}, {"accepted", r.accepted[i]}, {"alpha", number(r.alpha(i))}});
  for (const auto& [rows, p] : r.passes)
    passes.push_back({{"rows", rows}, {"count", p.count}, {"least_ms", p.least * 1e3}});
  const Json j = {{"draft", name_of(r.kind)},
                  {"k", r.k},
                  {"steps", r.steps()},
                  {"drafted_steps", r.drafted_steps()},
                  {"drafted", r.drafted},
                  {"accepted", r.accepted_in_all()},
                  {"alpha", number(r.alpha())},
                  {"by_position", by_position},
                  {"tokens_per_step", number(r.tokens_per_step())},
                  {"tokens_per_drafted_step", number(r.tokens_per_drafted_step())},
                  {"predicted_tokens_per_drafted_step", number(r.predicted_tokens())},
                  {"cost", number(r.cost())},
                  {"speed_up", number(r.speed_up())},
                  {"stopped_after", r.stopped_after > 0 ? Json(r.stopped_after) : Json(nullptr)},
                  {"seconds", r.seconds},
                  {"draft_seconds", r.draft_seconds},
                  {"passes", passes}};
  return j.dump();
}

}  // namespace fewbit::cli
