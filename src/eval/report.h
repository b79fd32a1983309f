#pragma once
// Report: several checkpoints beside their baseline, as one self-contained HTML page and as Markdown.
#include <optional>
#include <string>
#include <vector>

namespace fewbit {

struct ReportLinear {
  int64_t layer = 0;
  std::string part;      // "q_proj"
  double rel_error = 0;  // ||(W - Q) X|| / ||W X||, as quant_report.json says
};

// A prompt or a decode step: its operations, the weights and cache that it must read, and how fast it went.
struct ReportPass {
  bool decode = false;
  int64_t batch = 1, prompt_tokens = 0;
  double flop = 0, bytes = 0, tflop_per_s = 0;
  double flop_per_byte() const { return flop / bytes; }
  double gb_per_s() const { return 1e3 * tflop_per_s / flop_per_byte(); }
};

struct ReportLatency {
  double ms_per_token = 0, p99 = 0, tokens_per_s = 0, prefill_tokens_per_s = 0, ttft_ms = 0;
  std::string device;
  // Measured in the same run; 0 where the bench did not.
  double read_gb_per_s = 0, product_tflop_per_s = 0;
  std::vector<ReportPass> passes{};
};

// A row of `runner bench --concurrency`. Times in ms, NaN where there were none (between the tokens of requests for
// one).
struct ReportLoad {
  std::string device, prompt_tokens, tokens;  // lengths as they were asked for: "uniform:64-512"
  std::string arrivals;                       // "a closed loop", "Poisson arrivals", "arrivals of FILE"
  int64_t concurrency = 1;
  double rate = 0;  // requests a second; 0 where none was asked for
  double ttft_p50 = 0, ttft_p99 = 0, itl_p50 = 0, itl_p99 = 0, tokens_per_s = 0;
};

struct ReportModel {
  std::string name;         // of its folder
  std::string recipe;       // "" for a dense one
  std::string command;      // that made it, "" if not known
  std::string made_from{};  // how, and from what its model was made in turn (origin.h); "" if not known
  std::string hash;         // fingerprint of the files
  int64_t bytes = 0;        // of all files with tensors
  double bits = 16;         // per weight of the linears, scales included
  double perplexity = 0, stderr_ = 0;
  double ln_ratio = 0, ln_ratio_stderr = 0;  // against the baseline, paired
  double kl_mean = 0, kl_stderr = 0, kl_p50 = 0, kl_p90 = 0, kl_p99 = 0, kl_max = 0;
  double top1 = 1, top1_stderr = 0, top5 = 1;
  std::vector<ReportLinear> linears;
  std::optional<ReportLatency> latency;
  std::vector<ReportLoad> loads{};
};

struct Report {
  std::string title, command, version;
  std::string data, data_hash, protocol, dtype, device;
  int64_t context = 0, windows = 0, tokens = 0;
  ReportModel base;
  std::vector<ReportModel> models;
};

// One file: inline style and SVG, nothing from the network, light and dark, from a phone's width up.
std::string to_html(const Report&);
// One picture of all checkpoints: ratio and KL with their errors. Plain SVG with its own colours, which any converter
// takes.
std::string to_svg(const Report&);
// For a model card.
std::string to_markdown(const Report&);

// The perplexity ratio to the baseline as "+1.23 % ± 0.04"; "–" for the baseline.
std::string shown_ratio(const ReportModel&);

}  // namespace fewbit
