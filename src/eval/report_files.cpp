#include "src/eval/report_files.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/strings.h"
#include "src/eval/origin.h"
#include "src/text/files/text_file.h"

namespace fewbit {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

Json read_json(const fs::path& path) {
  Json j = parse_ordered_json(json_text(path, kTableJson), path.string(), kTableJson);
  if (!j.is_object()) fail(ErrorKind::checkpoint, path.string() + ": is not a JSON object");
  return j;
}

// Of digits; 0 where they are no number of a layer.
int64_t layer_number(const std::string& digits) {
  int64_t n = 0;
  return std::from_chars(digits.data(), digits.data() + digits.size(), n).ec == std::errc() ? n : 0;
}

// "model.layers.7.mlp.experts.3.up_proj" -> layer 7, "up_proj"
ReportLinear linear_of(const std::string& name, double error) {
  ReportLinear l{0, name.substr(name.rfind('.') + 1), error};
  const std::vector<std::string> parts = split(name, '.');
  for (const std::string& p : parts)
    if (!p.empty() && p.find_first_not_of("0123456789") == std::string::npos) {
      l.layer = layer_number(p);
      break;
    }
  return l;
}

void take_quant_report(const Json& j, ReportModel& m) {
  m.recipe = j.value("recipe", "");
  m.bits = j.value("bits_per_weight", m.bits);
  m.made_from = origin_of_report(j.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (m.recipe.empty()) return;
  m.command = fmt::format("quantize '{}' {} {}", m.recipe, j.value("model", ""), j.value("out", ""));
  if (const std::string calibration = j.value("calibration", ""); !calibration.empty()) {
    for (const std::string& source : split(calibration, '+')) m.command += " --calib " + path_described(source);
    m.command += fmt::format(" --samples {} --seq-len {} --seed {}", j.value("samples", 0), j.value("seq_len", 0),
                             j.value("seed", 0));
  }
  for (const Json& l : j.value("linears", Json::array()))
    m.linears.push_back(linear_of(l.value("name", ""), l.value("rel_error", 0.0)));
}

void add_passes(ReportLatency& l, const Json& row) {
  for (const char* kind : {"prefill", "decode"}) {
    const Json& p = row.at("roofline").at(kind);
    l.passes.push_back({.decode = kind == std::string("decode"),
                        .batch = row.at("batch"),
                        .prompt_tokens = row.at("prompt_tokens"),
                        .flop = p.at("flop"),
                        .bytes = p.at("bytes"),
                        .tflop_per_s = p.at("tflop_per_s")});
  }
}

ReportLatency latency_of(const Json& bench) {
  const Json& ms = bench.at("ms_per_token");
  ReportLatency l{.ms_per_token = ms.at("mean"),
                  .p99 = ms.at("p99"),
                  .tokens_per_s = bench.at("tokens_per_s"),
                  .prefill_tokens_per_s = bench.at("prefill_tokens_per_s"),
                  .ttft_ms = bench.at("ttft_ms"),
                  .device = bench.at("device")};
  if (!bench.contains("roofline")) return l;  // of an earlier version
  l.read_gb_per_s = bench.at("read_gb_per_s"), l.product_tflop_per_s = bench.at("product_tflop_per_s");
  if (!bench.contains("rows"))
    add_passes(l, bench);
  else
    for (const Json& row : bench.at("rows")) add_passes(l, row);
  return l;
}

// A rate or a time, which is null where nothing was measured.
double measured(const Json& j, double otherwise) { return j.is_null() ? otherwise : j.get<double>(); }

std::vector<ReportLoad> loads_of(const Json& bench, const fs::path& file) {
  const double rate = measured(bench.at("rate"), 0);
  const std::string arrivals = bench.at("arrivals").is_string() ? "arrivals of " + bench["arrivals"].get<std::string>()
                               : rate > 0                       ? "Poisson arrivals"
                                                                : "a closed loop";
  std::vector<ReportLoad> loads;
  for (const Json& row : bench.at("rows")) {
    const Json &ttft = row.at("ttft_ms"), &itl = row.at("itl_ms");
    loads.push_back({.device = bench.at("device"),
                     .prompt_tokens = row.at("prompt_tokens"),
                     .tokens = row.at("tokens"),
                     .arrivals = arrivals,
                     .concurrency = row.at("concurrency"),
                     .rate = rate,
                     .ttft_p50 = measured(ttft.at("p50"), NAN),
                     .ttft_p99 = measured(ttft.at("p99"), NAN),
                     .itl_p50 = measured(itl.at("p50"), NAN),
                     .itl_p99 = measured(itl.at("p99"), NAN),
                     .tokens_per_s = row.at("tokens_per_s")});
    if (loads.back().concurrency < 1)
      fail(ErrorKind::checkpoint, fmt::format("{}: rows: expected a concurrency of 1 or more, found {}", file.string(),
                                              loads.back().concurrency));
  }
  if (loads.empty()) fail(ErrorKind::checkpoint, file.string() + ": rows: expected one or more, found none");
  return loads;
}

}  // namespace

void read_quant_report(const fs::path& checkpoint, ReportModel& m) {
  std::error_code ignored;
  const fs::path path = checkpoint / "quant_report.json";
  if (!fs::exists(path, ignored)) return;
  const Json j = read_json(path);
  take_apart(path.string(), [&] { take_quant_report(j, m); });
}

ReportBench read_bench(const fs::path& file) {
  const Json bench = read_json(file);
  const bool under_load = bench.contains("loop") && bench.contains("rows");
  if (!under_load && !bench.contains("ms_per_token"))
    fail(ErrorKind::checkpoint,
         file.string() +
             ": expected the JSON of `runner bench` or `runner bench --concurrency`, found neither ms_per_token nor "
             "loop and rows; write one with --json (those of --ops and --compare are not taken)");
  ReportBench found;
  take_apart(file.string(), [&] {
    found.model = bench.value("model", "");
    if (under_load)
      found.loads = loads_of(bench, file);
    else
      found.latency = latency_of(bench);
  });
  return found;
}

}  // namespace fewbit
