// `runner bench --trace FILE`: the passes as complete events in the format that Chrome's tracing page and Perfetto read
// (Trace Event Format: ph "X", ts and dur in microseconds). Layers and passes are events around their ops.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/cli/runner/runner_commands.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

Json event(const std::string& name, const std::string& category, double begin, double us, Json args) {
  return {{"name", name}, {"cat", category}, {"ph", "X"}, {"ts", begin},
          {"dur", us},    {"pid", 1},        {"tid", 1},  {"args", std::move(args)}};
}

void add_pass(Json& events, const TracedPass& pass, double start) {
  const auto end_of = [&](const TracedOp& op) { return op.begin_us + op.us; };
  events.push_back(event(pass.name, "pass", start, end_of(pass.ops.back()), {{"rows", pass.rows}}));
  for (size_t i = 0; i < pass.ops.size();) {  // runs of one layer
    size_t last = i;
    while (last + 1 < pass.ops.size() && pass.ops[last + 1].layer == pass.ops[i].layer) ++last;
    if (const TracedOp& first = pass.ops[i]; first.layer >= 0)
      events.push_back(event("layer " + std::to_string(first.layer), "layer", start + first.begin_us,
                             end_of(pass.ops[last]) - first.begin_us, Json::object()));
    for (; i <= last; ++i) {
      const TracedOp& op = pass.ops[i];
      Json args = {{"pass", pass.name}};
      if (op.layer >= 0) args["layer"] = op.layer;
      for (const auto& [name, shape] : op.shapes) args[name] = shape;
      events.push_back(event(op.name, op.category, start + op.begin_us, op.us, std::move(args)));
    }
  }
}

}  // namespace

std::string trace_json(const std::string& model, const std::string& device, const std::vector<TracedPass>& passes) {
  Json events = Json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", model + " on " + device}}}});
  double start = 0;
  for (const TracedPass& pass : passes) {
    add_pass(events, pass, start);
    start += pass.ops.back().begin_us + pass.ops.back().us;
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(1) + "\n";
}

}  // namespace fewbit::cli
