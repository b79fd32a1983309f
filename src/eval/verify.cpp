#include "src/eval/verify.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "src/run/runner.h"

namespace fewbit {
namespace {

// Packed kernels and the dequantized path differ by the rounding of dequantized weights to bf16 only.
constexpr double kLogitsTolerance = 3e-2;
constexpr int64_t kProbeTokens = 32;

std::map<std::string, std::string> hashes_of_report(const std::filesystem::path& dir) {
  std::map<std::string, std::string> hashes;
  std::ifstream in(dir / "quant_report.json");
  if (!in)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: no quant_report.json; verify compares a checkpoint that `quantize` wrote",
                     dir.string()));
  const auto report = nlohmann::json::parse(in, nullptr, false);
  if (report.is_discarded() || !report.contains("linears"))
    fail(ErrorKind::checkpoint,
         fmt::format("{}/quant_report.json: not a report of `quantize`", dir.string()));
  for (const auto& l : report["linears"]) hashes[l.value("name", "")] = l.value("hash", "");
  return hashes;
}

Tensor probe_logits(Exec& ex, const Checkpoint& c, Weights weights) {
  Runner runner(ex, c, {.dtype = DType::bf16, .weights = weights});
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < std::min(kProbeTokens, c.spec.max_positions); ++i)
    ids.push_back(static_cast<int32_t>((7919 * (i + 1)) % c.spec.vocab));
  const Tensor x = runner.hidden(ids, 1);
  return ex.to_host(runner.logits(x));
}

void compare_logits(Exec& ex, const Checkpoint& c, VerifyResult& result) {
  const Tensor packed = probe_logits(ex, c, Weights::packed),
               reference = probe_logits(ex, c, Weights::reference);
  double diff = 0, norm = 0;
  for (int64_t i = 0; i < packed.numel(); ++i) {
    const double a = packed.as<float>()[i], b = reference.as<float>()[i];
    diff += (a - b) * (a - b);
    norm += b * b;
  }
  result.logits_error = norm > 0 ? std::sqrt(diff / norm) : 0;
  if (!std::isfinite(diff) || !std::isfinite(norm))
    result.problems.push_back({"", "logits are not finite"});
  else if (!(result.logits_error <= kLogitsTolerance))
    result.problems.push_back({"", fmt::format("packed kernels and dequantized weights disagree: relative "
                                               "error {:.3g} of the logits, at most {:.3g} expected",
                                               result.logits_error, kLogitsTolerance)});
}

}  // namespace

VerifyResult verify(Exec& ex, const std::filesystem::path& dir, const std::function<void(double)>& progress) {
  const std::map<std::string, std::string> expected = hashes_of_report(dir);
  const Checkpoint c = Checkpoint::open(dir);
  VerifyResult result;
  std::map<std::string, NamedLinear> shapes;
  for (const NamedLinear& l : linears_of(c.spec)) shapes.emplace(l.name, l);
  for (const auto& [name, format] : c.quantization.linears)
    if (!expected.count(name))
      result.problems.push_back({name, "is packed, but the report does not know it"});
  for (const auto& [name, hash] : expected) {
    if (progress) progress(static_cast<double>(result.linears) / static_cast<double>(expected.size()));
    ++result.linears;
    const auto shape = shapes.find(name);
    if (shape == shapes.end() || !c.packed(name)) {
      result.problems.push_back({name, "is in the report, but not packed in the checkpoint"});
      continue;
    }
    try {
      const QuantizedLinear q = c.unpack(name, shape->second.out, shape->second.in);
      if (const std::string what = check(q); !what.empty())
        result.problems.push_back({name, what});
      else if (const std::string found = content_hash(q); found != hash)
        result.problems.push_back({name, fmt::format("content hash {}, the report says {}", found, hash)});
    } catch (const Error& e) {
      result.problems.push_back({name, e.what()});
    }
  }
  if (result.problems.empty()) compare_logits(ex, c, result);
  return result;
}

}  // namespace fewbit
