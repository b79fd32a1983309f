#include "tools/cli/calibration.h"

#include <algorithm>

#include "src/quant/loop/self_calibration.h"

namespace fewbit::cli {

void add_calibration_arguments(CLI::App& app, CalibrationArgs& a) {
  app.add_option("--calib", a.calib, "builtin, self (sampled from the model) or a text FILE; may be repeated")
      ->take_all();
  app.add_option("--samples", a.samples, "Windows of text")->check(at_least(1))->capture_default_str();
  app.add_option("--seq-len", a.seq_len, "Tokens per window")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--seed", a.seed, "Seed of the draw")->capture_default_str();
}

int64_t calibration_length(const CalibrationArgs& a, const ModelSpec& spec) {
  return std::min(a.seq_len, spec.max_positions);
}

Windows draw_windows(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, Progress& progress,
                     std::string* note) {
  const int64_t length = calibration_length(a, c.spec);
  if (std::find(a.calib.begin(), a.calib.end(), "self") != a.calib.end()) {
    if (a.calib.size() > 1) fail(ErrorKind::usage, "--calib self cannot be mixed with other sources");
    return sample_calibration(ex, c, dtype, a.samples, length, a.seed,
                              [&](double f) { progress.update("sampling the calibration text", f); });
  }
  std::vector<CalibText> texts;
  for (const std::string& source : a.calib) {
    if (source != "builtin") {
      texts.push_back({source, read_text(source)});
      continue;
    }
    CalibText all{"builtin", ""};
    for (const CalibText& t : builtin_calibration()) all.text += t.text + "\n";
    texts.push_back(std::move(all));
  }
  return draw_calibration(Tokenizer::open(c.dir), texts, a.samples, length, a.seed, note);
}

}  // namespace fewbit::cli
