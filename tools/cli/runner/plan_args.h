#pragma once
// The parts of `runner plan`: the command (runner_plan.cpp), what it prints (plan_text.cpp), measured steps
// (plan_measured.cpp).
#include <string>
#include <vector>

#include "src/run/plan/serving_plan.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

struct PlanArgs {
  std::string model, recipe, kv_cache = "bf16", head = "stored", json, markdown, measured;
  std::vector<std::string> devices;
  int64_t concurrency = 1;
  int64_t context = 0, prompt = 0;  // 0: 8,192, or what the model has; as long as a pass, or as the context
  int tp = 1, pp = 1;
  double price = 0;
};

struct DevicePlan {
  ServingJob job;
  ServingPlan plan;
};

// A row that `runner bench --json` measured, and the plan's floor for it.
struct MeasuredStep {
  int64_t batch = 1, context = 0;
  double ms = 0;                     // the mean step
  double bytes = 0, plan_bytes = 0;  // that a step reads: as the bench counted it, as the plan does
  double floor_ms = 0;               // by the data sheet
  double read_floor_ms = 0;          // the plan's bytes at the rate that the bench measured
  double expected_ms = 0;            // 0 where the plan has none
};
struct Measured {
  std::string device;  // as the bench named it
  std::vector<MeasuredStep> steps;
};
// Error{usage} naming the key where FILE is not what `runner bench --json` writes.
Measured measured_steps(const std::string& file, const ServedModel&, const ServingJob&);

std::string plan_lines(const std::string& model, const PlanArgs&, const DevicePlan&);
std::string plan_table(const std::vector<DevicePlan>&, bool markdown);
std::string measured_table(const Measured&, bool markdown);
std::string plan_json(const std::string& model, const PlanArgs&, const std::vector<DevicePlan>&, const Measured*);

}  // namespace fewbit::cli
