#include "src/quant/plan/refusals.h"

#include <fmt/format.h>

#include <algorithm>

namespace fewbit {

std::vector<std::string> grouped_refusals(const std::vector<Refusal>& refusals) {
  struct Group {
    const Refusal *first, *last;
    size_t count = 1;
  };
  std::vector<Group> groups;
  for (const Refusal& r : refusals) {
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.first->reason == r.reason; });
    if (same == groups.end()) {
      groups.push_back({&r, &r});
    } else {
      same->last = &r;
      ++same->count;
    }
  }
  std::vector<std::string> lines;
  for (const Group& g : groups)
    lines.push_back(g.count == 1 ? fmt::format("{}: {}", g.first->name, g.first->reason)
                                 : fmt::format("{} and {} more, to {}: {}", g.first->name, g.count - 1, g.last->name,
                                               g.first->reason));
  return lines;
}

}  // namespace fewbit
