// `evaluate verify OUT`.
#include "src/eval/verify.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/cli/evaluate/evaluate_data.h"

namespace fewbit::cli {
namespace {

struct VerifyArgs {
  Common common;
  std::string out;
};

std::string line_of(const char* kind, const VerifyProblem& p) {
  const std::string where = p.where();
  const bool inside = !p.file.empty() && where != p.file;
  return fmt::format("{}: {}{}{}{}\n", kind, inside ? p.file + ": " : "", where, where.empty() ? "" : ": ", p.what);
}

std::string json_of(const VerifyResult& r) {
  using Json = nlohmann::ordered_json;
  const auto list = [](const std::vector<VerifyProblem>& all) {
    Json j = Json::array();
    for (const VerifyProblem& p : all)
      j.push_back({{"file", p.file}, {"tensor", p.tensor}, {"linear", p.linear}, {"what", p.what}});
    return j;
  };
  const Json j = {{"ok", r.ok()},
                  {"files", r.files},
                  {"tensors", r.tensors},
                  {"linears", r.linears},
                  {"logits_error", r.logits_error},
                  {"made_by", r.origin},
                  {"problems", list(r.problems)},
                  {"warnings", list(r.warnings)},
                  {"unchecked", r.unchecked}};
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void run_verify(const VerifyArgs& a) {
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  const VerifyResult r = verify(ex, a.out, [&](const std::string& phase, double f) { progress.update(phase, f); });
  progress.clear();
  for (const VerifyProblem& p : r.problems) say(a.common, line_of("problem", p));
  for (const VerifyProblem& p : r.warnings) say(a.common, line_of("warning", p));
  for (const std::string& what : r.unchecked) say(a.common, "not checked: " + what + "\n");
  write_json(a.common, json_of(r));
  if (!r.ok()) fail(ErrorKind::checkpoint, fmt::format("{}: {} problems", a.out, r.problems.size()));
  if (!r.origin.empty()) say(a.common, "made by " + r.origin + "\n");
  say(a.common, fmt::format("ok: {} files and {} tensors have their digests, {} linears unpack to the hashes of the "
                            "report; packed against dequantized logits: {:.2e}\n"
                            "This finds accidents. Against tampering, sign SHA256SUMS.\n",
                            r.files, r.tensors, r.linears, r.logits_error));
}

}  // namespace

void add_verify_command(CLI::App& app) {
  const auto v = std::make_shared<VerifyArgs>();
  CLI::App* verify =
      app.add_subcommand("verify", "Compare a written checkpoint with its digests and its report, unpack it, run it");
  verify->footer(
      "Every file is compared with SHA256SUMS, every tensor and companion with the digests of quant_report.json, the\n"
      "config with what the report says of it, and every linear's codes with its hash. A README that was edited and\n"
      "files that were added are warnings. This finds accidents; against tampering, sign SHA256SUMS.\n");
  verify->add_option("OUT", v->out, "A checkpoint written by `quantize` or `convert to`")->required();
  add_common(*verify, v->common);
  verify->callback([v] { run_verify(*v); });
}

}  // namespace fewbit::cli
