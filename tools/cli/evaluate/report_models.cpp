#include "tools/cli/evaluate/report_models.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/core/hash.h"
#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "src/eval/report_files.h"
#include "src/text/files/text_file.h"
#include "tools/cli/results.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// The command as it was typed, the program without its folder.
std::string command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string out;
  for (std::string word; std::getline(in, word, '\0');) {
    if (out.empty()) word = fs::path(word).filename().string();
    const bool quoted = word.empty() || word.find_first_of(" *'\"$") != std::string::npos;
    out += (out.empty() ? "" : " ") + (quoted ? "'" + word + "'" : word);
  }
  return out;
}

std::string name_of_folder(const fs::path& dir) {
  const fs::path clean = fs::absolute(dir).lexically_normal();
  return (clean.has_filename() ? clean : clean.parent_path()).filename().string();
}

int64_t tensor_bytes(const Checkpoint& c) {
  const CheckpointIndex index = container_for(c.dir).open(c.dir);
  int64_t bytes = 0;
  for (const auto& [name, info] : index.tensors) bytes += info.bytes;
  return bytes;
}

void write_text(const std::string& path, const std::string& text) {
  if (!path.empty()) write_result(path, text);
}

Json json_of(const ReportModel& m) {
  Json j = {{"model", m.name},
            {"recipe", m.recipe},
            {"command", m.command},
            {"made_from", m.made_from},
            {"hash", m.hash},
            {"bytes", m.bytes},
            {"bits_per_weight", m.bits},
            {"perplexity", m.perplexity},
            {"stderr", m.stderr_},
            {"ln_ratio", m.ln_ratio},
            {"ln_ratio_stderr", m.ln_ratio_stderr},
            {"kl",
             {{"mean", m.kl_mean},
              {"stderr", m.kl_stderr},
              {"p50", m.kl_p50},
              {"p90", m.kl_p90},
              {"p99", m.kl_p99},
              {"max", m.kl_max}}},
            {"top1", m.top1},
            {"top1_stderr", m.top1_stderr},
            {"top5", m.top5}};
  if (m.latency) j["ms_per_token"] = m.latency->ms_per_token;
  return j;
}

std::string table_of(const Report& r) {
  std::string s = fmt::format("{:<28} {:>7} {:>11} {:>20} {:>19} {:>10} {:>8}\n", "checkpoint", "bits", "size",
                              "perplexity", "against baseline", "KL", "top-1");
  const auto row = [&](const ReportModel& m, const std::string& ratio) {
    s += fmt::format("{:<28} {:>7.3f} {:>11} {:>20} {:>19} {:>10.6f} {:>6.2f} %\n", m.name, m.bits,
                     human_bytes(m.bytes), with_error(m.perplexity, m.stderr_, 4), ratio, m.kl_mean, 100 * m.top1);
  };
  row(r.base, "baseline");
  for (const ReportModel& m : r.models) row(m, shown_ratio(m));
  return s;
}

}  // namespace

void add_report_arguments(CLI::App& app, ReportFiles& f) {
  app.add_option("--html", f.html, "FILE: one self-contained page")->check(writable_file());
  app.add_option("--markdown", f.markdown, "FILE: for a model card")->check(writable_file());
  app.add_option("--svg", f.svg,
                 "FILE: one picture, ratio to the baseline and KL of every checkpoint with their errors")
      ->check(writable_file());
  app.add_option("--title", f.title, "Title of all three");
  app.add_option("--bench", f.benches,
                 "FILE of `runner bench --json`: latency and roofline of the checkpoint it names; of `runner bench "
                 "--concurrency 1,8,32 --json`: its latency and throughput against load; may be repeated");
}

ReportModel report_model(const Checkpoint& c, const DivergenceResult& r) {
  ReportModel m;
  m.name = name_of_folder(c.dir);
  m.hash = fingerprint(c);
  m.bytes = tensor_bytes(c);
  read_quant_report(c.dir, m);
  m.perplexity = r.perplexity, m.stderr_ = r.stderr_;
  m.ln_ratio = r.ln_ratio, m.ln_ratio_stderr = r.ln_ratio_stderr;
  m.kl_mean = r.kl.mean, m.kl_stderr = r.kl.stderr_, m.kl_p50 = r.kl.p50, m.kl_p90 = r.kl.p90, m.kl_p99 = r.kl.p99,
  m.kl_max = r.kl.max;
  m.top1 = r.top1, m.top1_stderr = r.top1_stderr, m.top5 = r.top5;
  return m;
}

Report begin_report(const CompareArgs& a, const ReportFiles& files, const Baseline& base, const Exec& ex,
                    const DivergenceResult& any) {
  const ScoredWindows& w = base.windows();
  Report r;
  r.base = report_model(base.checkpoint(), {});
  r.base.perplexity = any.base_perplexity;
  r.base.stderr_ = any.base_stderr;
  r.base.top1 = r.base.top5 = 1;
  r.title = files.title.empty() ? r.base.name + ", quantized" : files.title;
  r.command = command_line();
  r.version = FEWBIT_VERSION;
  r.data = w.windows.source;
  r.data_hash = content_hash(w.windows.ids.data(), w.windows.ids.size() * sizeof(int32_t));
  r.protocol = name_of(w.protocol);
  r.dtype = a.dtype;
  r.device = ex.device_name();
  r.context = w.windows.length, r.windows = w.windows.count, r.tokens = w.scored();
  return r;
}

void check_benches(const ReportFiles& files) {
  for (const std::string& file : files.benches) read_bench(file);
}

void add_latencies(Report& r, const ReportFiles& files, const std::vector<std::string>& paths) {
  for (const std::string& file : files.benches) {
    const ReportBench bench = read_bench(file);
    const std::string& model = bench.model;
    ReportModel* found = name_of_folder(model) == r.base.name ? &r.base : nullptr;
    for (size_t i = 0; i < paths.size(); ++i)
      if (name_of_folder(model) == name_of_folder(paths[i])) found = &r.models[i];
    if (!found) fail(ErrorKind::usage, fmt::format("{}: measures {}, which is not in this report", file, model));
    if (bench.latency) found->latency = bench.latency;
    found->loads.insert(found->loads.end(), bench.loads.begin(), bench.loads.end());
  }
}

void write_report(const CompareArgs& a, const ReportFiles& files, const Report& r) {
  write_text(files.html, to_html(r));
  write_text(files.markdown, to_markdown(r));
  write_text(files.svg, to_svg(r));
  Json j = {{"data", r.data},       {"data_hash", r.data_hash}, {"protocol", r.protocol}, {"context", r.context},
            {"windows", r.windows}, {"tokens", r.tokens},       {"dtype", r.dtype},       {"device", r.device},
            {"command", r.command}, {"base", json_of(r.base)}};
  j["models"] = Json::array();
  for (const ReportModel& m : r.models) j["models"].push_back(json_of(m));
  say(a.common, table_of(r));
  for (const std::string& file : {files.html, files.markdown, files.svg})
    if (!file.empty()) say(a.common, file + " written\n");
  write_json(a.common, j.dump(1) + "\n");
}

}  // namespace fewbit::cli
