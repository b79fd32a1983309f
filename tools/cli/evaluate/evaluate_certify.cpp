// `evaluate certify MODEL OUT`.
#include <fmt/format.h>

#include <filesystem>

#include "src/core/file_io.h"
#include "src/core/files/checksums.h"
#include "src/core/files/sha256.h"
#include "src/eval/certify.h"
#include "src/text/corpus.h"
#include "tools/cli/evaluate/evaluate_data.h"
#include "tools/cli/results.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

namespace fs = std::filesystem;

struct CertifyArgs {
  Common common;
  std::string base, model, html, markdown, dtype = "bf16", kv_cache = "bf16", head = "stored", tasks;
  double max_kl = 0, max_kl_domain = 0;
  bool card = false;
};

constexpr const char *kBegin = "<!-- certificate: begin -->\n", *kEnd = "<!-- certificate: end -->\n";

// The digests of the card and of the certificate, where OUT has a list of them; returns what to say of it.
std::string renew_checksums(const fs::path& out) {
  const fs::path list = out / kChecksumsFile;
  std::error_code ignored;
  if (!fs::exists(list, ignored)) return "";
  ReadChecksums sums = read_checksums(read_text(list));
  if (!sums.problems.empty())
    return fmt::format("{}: left as it is, for it is damaged ({}); `evaluate verify` says so\n", list.string(),
                       sums.problems.front());
  for (const char* name : {"README.md", "certificate.json"}) sums.files[name] = sha256_of_file(out / name);
  write_result(list, checksums_text(sums.files));
  return fmt::format("{} has the new card and the certificate; if it was signed, sign it again\n", list.string());
}

// The section of OUT's model card, in the place of an earlier one. Returns what to say of OUT's digests.
std::string write_card(const fs::path& out, const Certificate& c) {
  const fs::path card = out / "README.md";
  std::error_code ignored;
  std::string text = fs::exists(card, ignored) ? read_text(card) : "";
  const size_t begin = text.find(kBegin), end = text.find(kEnd);
  if (begin != std::string::npos && end != std::string::npos && end > begin)
    text.erase(begin, end - begin + std::string(kEnd).size());
  if (!text.empty() && text.back() != '\n') text += '\n';
  write_result(card, text + kBegin + to_markdown(c) + kEnd);
  write_result(out / "certificate.json", to_json(c));
  return renew_checksums(out);
}

void run_certify(const CertifyArgs& a) {
  const LoadOptions load{
      .dtype = compute_dtype(a.dtype), .kv_cache = kv_type_from(a.kv_cache), .head = head_type_from(a.head)};
  const Checkpoint base = Checkpoint::open(a.base), model = Checkpoint::open(a.model);
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  Certificate c = certify(ex, {.base = &base,
                               .model = &model,
                               .load = load,
                               .limits = {a.max_kl, a.max_kl_domain},
                               .batch_tokens = ex.on_cuda() ? 32768 : 8192,
                               .tasks = a.tasks.empty() ? builtin_data_dir() / "tasks/sample.jsonl" : fs::path(a.tasks),
                               .progress = [&](const std::string& what, double f) { progress.update(what, f); }});
  c.version = FEWBIT_VERSION;
  progress.update("done", 1);
  say(a.common, to_markdown(c));
  if (!a.markdown.empty()) write_result(a.markdown, to_markdown(c));
  if (!a.html.empty()) write_result(a.html, to_html(c));
  if (a.card) say(a.common, write_card(a.model, c));
  write_json(a.common, to_json(c));
  if (c.passed()) return;
  std::string lines = fmt::format("{}: beyond {} of its limits", a.model, c.failures.size());
  for (const std::string& failure : c.failures) lines += (c.failures.size() == 1 ? ": " : "\n  ") + failure;
  fail(ErrorKind::checkpoint, lines);
}

}  // namespace

void add_certify_command(CLI::App& app) {
  const auto a = std::make_shared<CertifyArgs>();
  CLI::App* command = app.add_subcommand(
      "certify", "One verdict on a checkpoint: KL and top-1 by kind of text with intervals, held against limits");
  command->add_option("MODEL", a->base, "The baseline, usually the bf16 checkpoint")->required();
  command->add_option("OUT", a->model, "The checkpoint to judge")->required();
  command
      ->add_option("--max-kl", a->max_kl,
                   "Nats a token: fails where the interval of the mean over all domains reaches beyond")
      ->check(above_zero("nats a token"));
  command->add_option("--max-kl-domain", a->max_kl_domain, "The same for every domain, and for every length of context")
      ->check(above_zero("nats a token"));
  command->add_option("--tasks", a->tasks,
                      "FILE of multiple-choice items (default: the sample that ships with fewbit)");
  command->add_option("--html", a->html, "FILE: one page")->check(writable_file());
  command->add_option("--markdown", a->markdown, "FILE: the section of a model card")->check(writable_file());
  command->add_flag("--card", a->card, "Put the section into OUT's README.md, and certificate.json beside it");
  command->add_option("--dtype", a->dtype, "Arithmetic: bf16 or float32")->capture_default_str();
  add_kv_cache(*command, a->kv_cache);
  add_head(*command, a->head);
  add_common(*command, a->common);
  command->callback([a] { run_certify(*a); });
}

}  // namespace fewbit::cli
