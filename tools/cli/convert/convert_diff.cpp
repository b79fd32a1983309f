// `convert diff A B`.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/core/parallel.h"
#include "src/eval/checkpoint_diff.h"
#include "tools/cli/convert/convert_commands.h"
#include "tools/cli/options.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

struct DiffArgs {
  Common common;
  std::string a, b;
  int show = 20;
};

// JSON has no infinity.
Json number(double v) { return std::isfinite(v) ? Json(v) : Json("infinity"); }

Json json_of(const TensorDiff& d) {
  Json j = {{"name", d.name}, {"state", name_of(d.state)}, {"a", d.a}, {"b", d.b}};
  if (d.state > Sameness::different) return j;
  j["max_abs"] = number(d.max_abs);
  j["relative"] = number(d.relative);
  j["values"] = d.values;
  if (d.codes) j["codes"] = *d.codes;
  return j;
}

std::string line_of(const TensorDiff& d, size_t width) {
  const std::string stored =
      d.a == d.b ? d.a : fmt::format("{} | {}", d.a.empty() ? "-" : d.a, d.b.empty() ? "-" : d.b);
  const bool figures = d.state == Sameness::different;
  return fmt::format("{:<{}}  {:<11}  {:>10}  {:>10}  {:>10}  {}\n", d.name, width, name_of(d.state),
                     figures ? fmt::format("{:.3e}", d.relative) : "-",
                     figures ? fmt::format("{:.3e}", d.max_abs) : "-", d.codes ? std::to_string(*d.codes) : "-",
                     stored);
}

std::string table_of(const CheckpointDiff& diff, int show) {
  size_t width = 6, left = 0;
  std::vector<const TensorDiff*> shown;
  for (const TensorDiff& d : diff.tensors) {
    if (d.state <= Sameness::same_values) continue;
    if (static_cast<int>(shown.size()) < show || show == 0)
      shown.push_back(&d), width = std::max(width, d.name.size());
    else
      ++left;
  }
  if (shown.empty()) return "";
  std::string s = fmt::format("{:<{}}  {:<11}  {:>10}  {:>10}  {:>10}  {}\n", "tensor", width, "", "relative",
                              "max |B-A|", "codes", "A | B");
  for (const TensorDiff* d : shown) s += line_of(*d, width);
  if (left > 0) s += fmt::format("… and {} more (--show 0 prints all)\n", left);
  return s;
}

void run_diff(const DiffArgs& a) {
  use_threads(a.common);
  const DiffSide left = DiffSide::open(a.a), right = DiffSide::open(a.b);
  Progress progress(a.common);
  const CheckpointDiff diff = diff_checkpoints(left, right, [&](double f) { progress.update("comparing", f); });
  progress.update("done", 1);
  Json j = {{"a", a.a}, {"b", a.b}, {"same", diff.same()}};
  std::string counts;
  for (const Sameness s : {Sameness::identical, Sameness::same_values, Sameness::different, Sameness::reshaped,
                           Sameness::only_a, Sameness::only_b}) {
    const int64_t n = diff.count(s);
    j["counts"][name_of(s)] = n;
    if (n > 0) counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", n, name_of(s));
  }
  j["tensors"] = Json::array();
  for (const TensorDiff& d : diff.tensors) j["tensors"].push_back(json_of(d));
  say(a.common, table_of(diff, a.show) + fmt::format("{} tensors: {}\n", diff.tensors.size(), counts));
  write_json(a.common, j.dump(1) + "\n");
  if (!diff.same())
    fail(ErrorKind::checkpoint, fmt::format("{} and {} differ in {} tensors", a.a, a.b,
                                            static_cast<int64_t>(diff.tensors.size()) -
                                                diff.count(Sameness::identical) - diff.count(Sameness::same_values)));
}

}  // namespace

void add_convert_diff_command(CLI::App& app) {
  const auto d = std::make_shared<DiffArgs>();
  CLI::App* diff = app.add_subcommand(
      "diff", "Compare two checkpoints tensor by tensor; exits with 0 where every value is the same, else 1");
  diff->add_option("A", d->a, "Checkpoint folder, .gguf file or weight file")->required();
  diff->add_option("B", d->b, "What it is compared with")->required();
  diff->add_option("--show", d->show, "Rows of the table, the worst first (0 = all)")
      ->check(at_least(0))
      ->capture_default_str();
  add_common(*diff, d->common);
  diff->callback([d] { run_diff(*d); });
}

}  // namespace fewbit::cli
