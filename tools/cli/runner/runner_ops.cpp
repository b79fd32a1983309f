// `runner bench [MODEL] --ops [SECTIONS]`: the kernels one by one, as rows.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/core/strings.h"
#include "src/core/text/nearest.h"
#include "src/run/bench/ops_bench.h"
#include "tools/cli/runner/runner_commands.h"
#include "tools/cli/table.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const OpsSection& s : ops_sections()) names.emplace_back(s.name);
  return names;
}

std::vector<std::string> sections_from(const std::string& text) {
  if (text.empty() || text == "all") return {};
  const std::vector<std::string> known = section_names(), asked = split(text, ',');
  for (const std::string& name : asked)
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail(ErrorKind::usage,
           unknown_name("section of --ops", name, known) + " (a MODEL goes before --ops, or write --ops=all)");
  return asked;
}

std::vector<OpsModel> presets_from(const std::vector<std::string>& names) {
  const std::vector<OpsModel> all = ops_presets();
  std::vector<OpsModel> chosen;
  std::vector<std::string> known;
  for (const OpsModel& m : all) known.push_back(m.name);
  for (const std::string& name : names) {
    const auto at = std::find_if(all.begin(), all.end(), [&](const OpsModel& m) { return m.name == name; });
    if (at == all.end()) fail(ErrorKind::usage, unknown_name("shape of --ops-models", name, known));
    chosen.push_back(*at);
  }
  return chosen.empty() ? all : chosen;
}

// Refuses before anything is read: the CPU's ops have no figure worth a row.
Exec gpu(const Common& c) {
  Exec ex = make_exec(c);
  if (ex.on_cuda()) return ex;
  std::string why;
  if (Exec::cuda_available(&why))
    fail(ErrorKind::device, "bench --ops times the kernels of a GPU: give --device cuda, not cpu");
  fail(ErrorKind::device,
       fmt::format("bench --ops times the kernels of a GPU, and none answers here ({}); run it where one does", why));
}

// --- for people --------------------------------------------------------------------------------------------------

// A column with no value in any row of a section is not shown.
struct Column {
  std::string heading;
  std::function<std::string(const OpRow&)> cell;
};

std::vector<Column> columns_of(std::span<const OpRow> rows) {
  const auto number = [](double v, int digits, const char* unit = "") {
    return v > 0 ? fmt::format("{:.{}f}{}", v, digits, unit) : "";
  };
  const auto count = [](int64_t n) { return n > 0 ? fmt::format("{}", n) : ""; };
  const bool sequences = std::any_of(rows.begin(), rows.end(), [](const OpRow& r) { return r.context > 0; });
  std::string peer = "peer";
  for (const OpRow& r : rows)
    if (!r.peer.empty()) peer = r.peer;
  return {{"model", [](const OpRow& r) { return r.model; }},
          {"op", [](const OpRow& r) { return r.op; }},
          {"type", [](const OpRow& r) { return r.type; }},
          {"in", [=](const OpRow& r) { return count(r.in); }},
          {"out", [=](const OpRow& r) { return count(r.out); }},
          {sequences ? "sequences" : "rows", [=](const OpRow& r) { return count(r.rows); }},
          {"positions", [=](const OpRow& r) { return count(r.context); }},
          {"us", [=](const OpRow& r) { return r.error.empty() ? number(r.us, 1) : "failed"; }},
          {"GB/s", [=](const OpRow& r) { return number(r.gb_per_s, 0); }},
          {"of reads", [=](const OpRow& r) { return number(100 * r.read_share, 0, " %"); }},
          {"TFLOP/s", [=](const OpRow& r) { return number(r.tflop_per_s, 1); }},
          {"of products", [=](const OpRow& r) { return number(100 * r.product_share, 0, " %"); }},
          {peer + " us", [=](const OpRow& r) { return number(r.peer_us, 1); }},
          {"gain", [=](const OpRow& r) { return number(r.gain, 2); }}};
}

std::string table_of(std::span<const OpRow> rows, bool markdown) {
  std::vector<std::vector<std::string>> lines(rows.size() + 1);
  size_t left = 0;
  for (const Column& c : columns_of(rows)) {
    std::vector<std::string> cells = {c.heading};
    for (const OpRow& r : rows) cells.push_back(c.cell(r));
    if (std::all_of(cells.begin() + 1, cells.end(), [](const std::string& s) { return s.empty(); })) continue;
    for (size_t i = 0; i < cells.size(); ++i) lines[i].push_back(cells[i]);
    left += c.heading == "model" || c.heading == "op" || c.heading == "type";
  }
  return table(lines, markdown, left);
}

std::string failures_of(std::span<const OpRow> rows) {
  std::string s;
  for (const OpRow& r : rows)
    if (!r.error.empty())
      s += fmt::format("failed: {} {}{}{}{}: {}\n", r.model, r.op, r.type.empty() ? "" : ", " + r.type,
                       r.rows > 0 ? fmt::format(", {} rows", r.rows) : "",
                       r.context > 0 ? fmt::format(" of {} positions", r.context) : "", r.error);
  return s;
}

std::span<const OpRow> rows_of(const OpsReport& r, std::string_view section) {
  const auto is = [&](const OpRow& row) { return row.section == section; };
  const auto first = std::find_if(r.rows.begin(), r.rows.end(), is), last = std::find_if_not(first, r.rows.end(), is);
  return {first, last};
}

std::string ceilings_of(const OpsReport& r) {
  return fmt::format("{}: memory reads at {:.0f} GB/s, large bf16 products run at {:.0f} TFLOP/s; shares are of these",
                     r.device, r.read_gb_per_s, r.product_tflop_per_s);
}
constexpr const char* kPeers =
    "bf16 us: the same product by bf16 weights through cuBLAS, the two timed in turn\n"
    "gain: that time, or the one op by op, over us\n";

std::string section_of(const OpsReport& r, std::string_view name) {
  const auto rows = rows_of(r, name);
  if (rows.empty()) return "";
  const auto is = [&](const OpsSection& s) { return s.name == name; };
  const auto section = std::find_if(ops_sections().begin(), ops_sections().end(), is);
  return fmt::format("\n{}: {}\n{}{}", name, section->what, table_of(rows, false), failures_of(rows));
}

std::string markdown_of(const OpsReport& r) {
  std::string s = ceilings_of(r) + ".\n\n" + kPeers;
  for (const OpsSection& section : ops_sections())
    if (const auto rows = rows_of(r, section.name); !rows.empty())
      s += fmt::format("\n### {}: {}\n\n{}", section.name, section.what, table_of(rows, true));
  if (const std::string failures = failures_of(r.rows); !failures.empty()) s += "\n" + failures;
  for (const std::string& n : r.notes) s += "\nNote: " + n + "\n";
  return s;
}

// --- for programs ------------------------------------------------------------------------------------------------

// The figures of a row under their JSON keys, in their order there; null where one does not apply.
Json json_of(const OpRow& r) {
  const auto number = [](double v) { return v > 0 ? Json(v) : Json(); };
  const auto count = [](int64_t n) { return n > 0 ? Json(n) : Json(); };
  const auto text = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  return {{"section", r.section},
          {"model", r.model},
          {"op", r.op},
          {"type", text(r.type)},
          {"in", count(r.in)},
          {"out", count(r.out)},
          {"rows", count(r.rows)},
          {"context", count(r.context)},
          {"us", number(r.us)},
          {"bytes", number(r.bytes)},
          {"flop", number(r.flop)},
          {"gb_per_s", number(r.gb_per_s)},
          {"read_share", number(r.read_share)},
          {"tflop_per_s", number(r.tflop_per_s)},
          {"product_share", number(r.product_share)},
          {"peer", text(r.peer)},
          {"peer_us", number(r.peer_us)},
          {"gain", number(r.gain)},
          {"error", text(r.error)}};
}

Json json_of(const BenchArgs& a, const OpsReport& r) {
  Json j = {
      {"model", a.model.empty() ? Json() : Json(a.model)}, {"device", r.device},    {"read_gb_per_s", r.read_gb_per_s},
      {"product_tflop_per_s", r.product_tflop_per_s},      {"rows", Json::array()}, {"notes", r.notes}};
  for (const OpRow& row : r.rows) j["rows"].push_back(json_of(row));
  return j;
}

// The names are the JSON keys; what is null there is empty here.
std::string csv_of(const OpsReport& r) {
  std::vector<std::string> names = {"device", "ceiling_read_gb_per_s", "ceiling_product_tflop_per_s"};
  const Json keys = json_of(OpRow{});
  for (const auto& [key, value] : keys.items()) names.push_back(key);
  std::string s = join(names, ",") + "\n";
  for (const OpRow& row : r.rows) {
    s += fmt::format("{},{},{}", quoted(r.device), r.read_gb_per_s, r.product_tflop_per_s);
    const Json figures = json_of(row);
    for (const auto& [key, value] : figures.items())
      s += fmt::format(",{}", value.is_null()     ? ""
                              : value.is_string() ? quoted(value.get<std::string>())
                                                  : value.dump());
    s += "\n";
  }
  return s;
}

}  // namespace

CLI::Option* add_ops(CLI::App& app, BenchArgs& a, CLI::Option* model) {
  std::string sections, shapes;
  for (const OpsSection& s : ops_sections())
    sections += fmt::format("{}{} ({})", sections.empty() ? "" : "; ", s.name, s.what);
  for (const OpsModel& m : ops_presets()) shapes += (shapes.empty() ? "" : ",") + m.name;
  CLI::Option* ops =
      app.add_option(
             "--ops", a.ops,
             "Times the GPU's kernels one by one on the shapes of MODEL, or of usual sizes, against the measured read "
             "rate, the rate of products and bf16 weights by cuBLAS. All sections, or a list (block,linear): " +
                 sections)
          ->expected(0, 1)
          ->type_name("[SECTIONS]");
  app.add_option("--ops-models", a.ops_models, "Sizes for --ops without MODEL, a list (default: " + shapes + ")")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs(ops)
      ->excludes(model);
  CLI::Option* explain =
      app.add_flag(
             "--explain", a.explain,
             "With --ops: prints which kernel each shape takes for how many rows, and how it works, instead of timing "
             "them; needs no GPU")
          ->needs(ops);
  app.add_option("--sm", a.sm, "With --explain: the compute capability (80, 86, 89, 90, 100, 120)")
      ->needs(explain)
      ->capture_default_str();
  return ops;
}

void run_ops(const BenchArgs& a) {
  OpsOptions o{.models = presets_from(a.ops_models), .sections = sections_from(a.ops)};
  if (a.explain && !(a.ops.empty() || a.ops == "all"))
    fail(ErrorKind::usage, fmt::format("--explain speaks of all ops: leave out \"{}\" after --ops", a.ops));
  if (a.explain && !a.csv.empty()) fail(ErrorKind::usage, "--explain writes --json and --markdown, no --csv");
  std::optional<Exec> device;
  if (!a.explain) device.emplace(gpu(a.common));
  if (!a.model.empty()) {
    const Checkpoint c = Checkpoint::open(a.model);
    o.models = {ops_model(c.spec, fs::canonical(a.model).filename().string())};
  }
  if (a.explain) return explain_kernels(a, o.models);
  Exec& ex = *device;
  Progress progress(a.common);
  // At once: a later section may take the process with it.
  const auto show = [&](const OpsReport& r, std::string_view section) {
    progress.clear();
    say(a.common, section.empty() ? ceilings_of(r) + "\n" + kPeers : section_of(r, section));
    std::fflush(a.common.json_to_stdout() ? stderr : stdout);
  };
  const OpsReport r = time_ops(
      ex, o, [&](const std::string& p, double f) { progress.update(p, f); }, show);
  progress.clear();
  for (const std::string& note : r.notes) say(a.common, "note: " + note + "\n");
  write_text(a.common, a.markdown, markdown_of(r));
  write_text(a.common, a.csv, csv_of(r));
  write_json(a.common, json_of(a, r).dump(1) + "\n");
  const auto failed = std::count_if(r.rows.begin(), r.rows.end(), [](const OpRow& row) { return !row.error.empty(); });
  if (failed > 0) fail(ErrorKind::device, fmt::format("{} of {} rows failed; each says why", failed, r.rows.size()));
}

}  // namespace fewbit::cli
