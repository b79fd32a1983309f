#include "src/eval/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/hash.h"
#include "src/eval/verify_files.h"
#include "src/model/checkpoint_parts.h"
#include "src/run/moe.h"
#include "src/run/streamed.h"

namespace fewbit {
namespace {

// Packed kernels and the dequantized path differ by the rounding of dequantized weights to bf16 only.
constexpr double kLogitsTolerance = 3e-2;
// Where inputs are rounded to 8 bits a last bit of a sum (FP8 tensor cores) decides about a whole step further on.
constexpr double kRoundedInputsTolerance = 8e-2;
// Where a model enlarges the rounding of its states (sharp attention, the norms of delta nets), packed kernels may be
// so many times as far from float32 as the dequantized path in bf16 is.
constexpr double kOverRounding = 1.5;
constexpr int64_t kProbeTokens = 32;

// Of a report that verify_files() has read.
std::map<std::string, std::string> hashes_of_report(const std::filesystem::path& dir) {
  std::map<std::string, std::string> hashes;
  const auto report = parse_json(json_text(dir / "quant_report.json", kTableJson), dir.string(), kTableJson);
  for (const auto& l : report["linears"]) hashes[l.value("name", "")] = l.value("hash", "");
  return hashes;
}

// Block by block: the reference of a large model, dequantized, is larger than what it was made on.
Tensor probe_logits(Exec& ex, const Checkpoint& c, Weights weights, DType dtype = DType::bf16) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < std::min(kProbeTokens, c.spec.max_positions); ++i)
    ids.push_back(static_cast<int32_t>((7919 * (i + 1)) % c.spec.vocab));
  // Short sequences for a mixture of experts, so that a token which takes another expert has few followers.
  const bool apart = has_moe(c.spec) && ids.size() % 4 == 0;
  const int64_t seqs = apart ? static_cast<int64_t>(ids.size()) / 4 : 1;
  Tensor logits;
  run_streamed(ex, c, {.dtype = dtype, .weights = weights}, {.ids = ids, .seqs = seqs, .batch_seqs = seqs},
               [&](int64_t, int64_t, ConstTensorView x, const Ends& ends) {
                 logits = ex.to_host(logits_of(ex, c.spec, ends, x));
               });
  return logits;
}

// Relative error of every row, ascending; infinity where a row has values that are not finite.
std::vector<double> row_errors(ConstTensorView found, ConstTensorView expected) {
  std::vector<double> errors;
  const int64_t cols = found.cols();
  for (int64_t t = 0; t < found.rows(); ++t) {
    double diff = 0, norm = 0;
    for (int64_t i = t * cols; i < (t + 1) * cols; ++i) {
      const double a = found.as<float>()[i], b = expected.as<float>()[i];
      diff += (a - b) * (a - b);
      norm += b * b;
    }
    const bool finite = std::isfinite(diff) && std::isfinite(norm);
    errors.push_back(!finite ? std::numeric_limits<double>::infinity() : norm > 0 ? std::sqrt(diff / norm) : 0);
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

// Over all logits at once. That of the median token in a mixture of experts, because a near tie of two experts falls
// either way and then the token's logits are others, and behind a delta net, which enlarges the rounding of some
// tokens. Above the tolerance the float32 pass of the dequantized weights decides.
void compare_logits(Exec& ex, const Checkpoint& c, VerifyResult& result) {
  const Tensor packed = probe_logits(ex, c, Weights::packed), reference = probe_logits(ex, c, Weights::reference);
  const bool by_token = has_moe(c.spec) || has_state(c.spec);
  const auto errors_of = [by_token](const Tensor& found, const Tensor& expected) {
    const Shape all{1, found.numel()};
    return by_token ? row_errors(found, expected)
                    : row_errors(found.view().reshaped(all), expected.view().reshaped(all));
  };
  const auto middle = [](const std::vector<double>& errors) { return errors[errors.size() / 2]; };
  const std::vector<double> errors = errors_of(packed, reference);
  result.logits_error = middle(errors);
  const bool rounds = std::any_of(c.quantization.linears.begin(), c.quantization.linears.end(),
                                  [](const auto& l) { return l.second.spec.activations != ActQuant::none; });
  const double tolerance = rounds ? kRoundedInputsTolerance : kLogitsTolerance;
  if (!std::isfinite(errors.back())) return result.problems.push_back({.what = "logits are not finite"});
  if (result.logits_error <= tolerance) return;
  const Tensor exact = probe_logits(ex, c, Weights::reference, DType::f32);
  const double rounding = middle(errors_of(reference, exact)), own = middle(errors_of(packed, exact));
  if (own <= kOverRounding * rounding) return;
  result.problems.push_back(
      {.what = fmt::format("packed kernels and dequantized weights disagree: relative error {:.3g} of "
                           "the logits, at most {:.3g} expected; to float32 it is {:.3g}, that of the "
                           "dequantized weights {:.3g}",
                           result.logits_error, tolerance, own, rounding)});
}

// A .gguf of the language model inside of a larger one is read as that model alone, whose blocks have other names than
// the report's.
std::map<std::string, std::string> with_names_of(const Checkpoint& c, std::map<std::string, std::string> hashes) {
  if (c.format != "gguf") return hashes;
  const std::string layers = "layers.";
  std::map<std::string, std::string> renamed;
  for (auto& [name, hash] : hashes) {
    const size_t at = name.find(layers);
    renamed[at == std::string::npos ? name : c.spec.block_prefix + name.substr(at + layers.size())] = std::move(hash);
  }
  return renamed;
}

// Every linear's codes and scales against the hash of the report.
void compare_linears(const Checkpoint& c, const std::map<std::string, std::string>& expected, VerifyResult& result,
                     const VerifyProgress& progress) {
  std::map<std::string, NamedLinear> shapes;
  for (const NamedLinear& l : c.linears()) shapes.emplace(l.name, l);
  const auto problem = [&](const std::string& name, std::string what) {
    result.problems.push_back({.linear = name, .what = std::move(what)});
  };
  const auto compare = [&](const std::string& name, const std::string& found, const std::string& hash) {
    if (found != hash) problem(name, fmt::format("content hash {}, the report says {}", found, hash));
  };
  for (const auto& [name, format] : c.quantization.linears)
    if (const auto l = shapes.find(name); !expected.count(name) && (l == shapes.end() || l->second.layer >= 0))
      problem(name, "is packed, but the report does not know it");
  for (const auto& [name, hash] : expected) {
    if (progress) progress("unpacking", static_cast<double>(result.linears) / static_cast<double>(expected.size()));
    ++result.linears;
    const auto shape = shapes.find(name);
    if (const TensorInfo* blocks = c.store.find(name + ".weight"); blocks && !blocks->stored.empty()) {
      const ConstTensorView values = c.store.get(name + ".weight");
      compare(name, content_hash(values.data, static_cast<size_t>(values.bytes())), hash);
      c.store.release(name + ".weight");
      continue;
    }
    if (shape == shapes.end() || !c.packed(name)) {
      problem(name, "is in the report, but not packed in the checkpoint");
      continue;
    }
    try {
      const QuantizedLinear q = c.unpack(name, shape->second.out, shape->second.in);
      if (const std::string what = check(q); !what.empty())
        problem(name, what);
      else
        compare(name, content_hash(q), hash);
    } catch (const Error& e) {
      problem(name, e.what());
    }
    release_linear(c, name);
  }
}

}  // namespace

std::string VerifyProblem::where() const { return !linear.empty() ? linear : !tensor.empty() ? tensor : file; }

VerifyResult verify(Exec& ex, const std::filesystem::path& dir, const VerifyProgress& progress) {
  VerifyResult result;
  verify_files(dir, result, progress);
  if (!result.problems.empty()) return result;  // named already, and not to be run
  const Checkpoint c = Checkpoint::open(dir);
  compare_linears(c, with_names_of(c, hashes_of_report(dir)), result, progress);
  if (progress) progress("running", 0);
  if (result.problems.empty() && result.linears > 0) compare_logits(ex, c, result);
  return result;
}

}  // namespace fewbit
