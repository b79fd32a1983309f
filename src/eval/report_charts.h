#pragma once
// Charts of the report as SVG elements. Colours are classes of the page's style sheet, so that they follow
// its theme.
#include "src/eval/report.h"
#include "src/eval/svg.h"

namespace fewbit {

// Perplexity of every model with the error of its paired ratio to the baseline, whose own perplexity is a
// line.
std::string perplexity_chart(const Report&);
// KL per token on a logarithmic axis: the mean as a dot, the median to the 99th percentile as a line.
std::string divergence_chart(const Report&);
// Bits per weight against mean KL.
std::string bits_chart(const Report&);
// Relative output error of every linear: a row per layer, a column per kind; one colour scale for all models.
std::string heat_map(const ReportModel&, double largest);
double largest_error(const Report&);
// What a report says of one device: the passes that were timed on it, and what its memory and its products reach (the
// largest rates of these runs).
struct Roofline {
  struct Pass {
    const ReportModel* model;
    int colour;  // of its checkpoint: "c0" … "c5"
    ReportPass pass;
  };
  std::string device;
  double read_gb_per_s = 0, product_tflop_per_s = 0;
  std::vector<Pass> passes{};
  // TFLOP/s of the roof.
  double roof(double flop_per_byte) const;
};
std::vector<Roofline> rooflines(const Report&);
// f(model, colour) of the baseline, then of every model: which of the page's colours, "c0" … "c5", stands for it.
template <class F>
void each_coloured(const Report& r, F&& f) {
  constexpr int kColours = 6;
  int colour = 0;
  f(r.base, colour);
  for (const ReportModel& m : r.models) f(m, ++colour % kColours);
}
// Operations per byte against TFLOP/s, under the roof: a circle per step, a diamond per prompt.
std::string roofline_chart(const Roofline&);

// What was measured under load on one device, with the same lengths and manner of arrival: a curve for each checkpoint,
// and for each level of what is not on the bottom axis.
struct Traffic {
  struct Curve {
    const ReportModel* model;
    int colour;                        // of its checkpoint: "c0" … "c5"
    double level;                      // concurrency where the axis has rates, else the rate
    std::vector<ReportLoad> points{};  // by load
  };
  std::string device, prompt_tokens, tokens, arrivals;
  bool by_rate = false;  // the bottom axis has requests a second, else how many run at once
  std::vector<Curve> curves{};
  double load(const ReportLoad&) const;  // on the bottom axis
};
std::vector<Traffic> traffics(const Report&);
// The same as a table: its head, and a row for each point of each curve.
std::vector<std::string> load_head();
std::vector<std::vector<std::string>> load_rows(const Traffic&);
enum class LoadFigure : uint8_t { ttft, itl, throughput };
// Latencies as p50 and, dashed, p99 on a logarithmic axis, throughput from 0; "" where nothing was measured.
std::string load_chart(const Traffic&, LoadFigure);

}  // namespace fewbit
