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

void run_verify(const VerifyArgs& a) {
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  const VerifyResult r = verify(ex, a.out, [&](double f) { progress.update("unpacking", f); });
  nlohmann::ordered_json j = {{"ok", r.ok()}, {"linears", r.linears}, {"logits_error", r.logits_error}};
  j["problems"] = nlohmann::ordered_json::array();
  for (const VerifyProblem& p : r.problems) {
    say(a.common, fmt::format("problem: {}{}\n", p.linear.empty() ? "" : p.linear + ": ", p.what));
    j["problems"].push_back({{"linear", p.linear}, {"what", p.what}});
  }
  write_json(a.common, j.dump(1) + "\n");
  if (!r.ok()) fail(ErrorKind::checkpoint, fmt::format("{}: {} problems", a.out, r.problems.size()));
  say(a.common,
      fmt::format("ok: {} linears unpack to the hashes of the report; packed against dequantized logits: {:.2e}\n",
                  r.linears, r.logits_error));
}

}  // namespace

void add_verify_command(CLI::App& app) {
  const auto v = std::make_shared<VerifyArgs>();
  CLI::App* verify =
      app.add_subcommand("verify", "Reopen a written checkpoint, unpack it, compare with its report, run it");
  verify->add_option("OUT", v->out, "A checkpoint written by `quantize`")->required();
  add_common(*verify, v->common);
  verify->callback([v] { run_verify(*v); });
}

}  // namespace fewbit::cli
