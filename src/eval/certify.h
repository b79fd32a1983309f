#pragma once
// A certificate: how far a checkpoint is from its baseline on every kind of text, with intervals, held against limits.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/eval/divergence.h"
#include "src/eval/tasks.h"
#include "src/run/runner.h"
#include "src/text/tokenizer.h"

namespace fewbit {

// The kinds of text that ship with the program, in the order of a certificate.
struct CertifyText {
  std::string domain, text;
};
std::vector<CertifyText> certify_texts();

struct CertifyLimits {
  double mean = 0, domain = 0;  // nats a token; 0 = none
};

// A mean with the ends of its interval: 1.96 standard errors to either side, the mean alone of one window.
struct Interval {
  double value = 0, low = 0, high = 0;
};
Interval interval_of(double mean, double error);

struct WorstPlace {
  std::string before, token, base_top, top;  // texts
  double kl = 0, base_p = 0, p = 0;
};

struct CertifiedDomain {
  std::string name;
  int64_t context = 0, windows = 0, tokens = 0;
  Interval kl, top1;
  double kl_stderr = 0;  // kNoError of one window
  std::vector<WorstPlace> worst{};
};

struct Certificate {
  std::string base, model, device, dtype, version;
  CertifyLimits limits;
  Interval kl, top1;                     // over the tokens of all domains
  std::vector<CertifiedDomain> domains;  // each kind of text
  std::vector<CertifiedDomain> steps;    // longer and longer windows, of which the last quarter is scored
  std::vector<CertifiedDomain> caches;   // the model with a quantized cache of keys and values, on prose
  std::vector<std::string> refused{};    // caches that this model cannot have, with the reason
  int64_t items = 0;                     // of the task
  Flips flips;
  std::vector<std::string> failures{};  // one line each: which limit, in which domain, where
  bool passed() const { return failures.empty(); }
};

struct CertifyJob {
  const Checkpoint *base = nullptr, *model = nullptr;
  LoadOptions load{};
  CertifyLimits limits{};
  int64_t batch_tokens = 8192;
  std::filesystem::path tasks{};
  std::function<void(const std::string& what, double share)> progress{};
};
// Both models are on the device together. Error{usage} where their vocabularies differ.
Certificate certify(Exec&, const CertifyJob&);

std::string to_json(const Certificate&);
std::string to_markdown(const Certificate&);  // a section of a model card
std::string to_html(const Certificate&);      // one page, nothing from the network

}  // namespace fewbit
