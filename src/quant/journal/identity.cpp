#include "src/quant/journal/identity.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "kernels/cpu/arithmetic.h"
#include "src/core/digest.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

using Json = nlohmann::ordered_json;

// How many linears get what: for people. The digest beside it says which.
std::string recipes_in_words(const QuantPlan& plan) {
  std::map<std::string, int> count;
  for (const PlannedLinear& p : plan.linears) ++count[p.recipe_str()];
  std::string s;
  for (const auto& [recipe, n] : count) s += fmt::format("{}{} x {}", s.empty() ? "" : ", ", n, recipe);
  return s;
}

std::string recipes_digest(const QuantPlan& plan) {
  std::string all;
  for (const PlannedLinear& p : plan.linears)
    all += fmt::format("{}: {}\n", p.linear.name, p.keep ? "keep" : fmt::format("{} {}", p.recipe_str(), p.layout()));
  return digest_of(all);
}

constexpr const char* kBlas = "BLAS kernels";

// How to have the BLAS choose as it did then; "" where that is not what differs.
std::string set_alike(const Json& then, const Json& now) {
  constexpr std::string_view kBefore = "OpenBLAS ";
  if (!then.contains(kBlas) || !now.contains(kBlas) || then[kBlas] == now[kBlas] || !then[kBlas].is_string()) return "";
  const auto name = then[kBlas].get<std::string>();
  return starts_with(name, kBefore) ? fmt::format("; OPENBLAS_CORETYPE={} in front of the command gives those of then",
                                                  name.substr(kBefore.size()))
                                    : "";
}

std::string value_in_words(const Json& object, const std::string& key) {
  if (!object.contains(key)) return "without";
  const Json& v = object[key];
  return v.is_string() ? v.get<std::string>() : v.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string identity_of(const Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& w,
                        const QuantJob& job) {
  Json j = {{"version", FEWBIT_VERSION},
            {"recipes", recipes_in_words(plan)},
            {"recipe of each linear", recipes_digest(plan)},
            {"format", plan.format->name},
            {"fp8 cache", plan.fp8_kv_cache},
            {"config of the model", digest_of(c.config.text())},
            {"calibration windows", w.count},
            {"seq_len", w.length},
            {"calibration", digest_of({reinterpret_cast<const char*>(w.ids.data()), w.ids.size() * sizeof(int32_t)})},
            {"dtype", name_of(job.dtype)},
            // Last bits depend on the kind of GPU, and on the kernels that the BLAS takes for the processor.
            {"device", ex.on_cuda() ? ex.device_name() : "cpu"},
            {kBlas, ex.on_cuda() ? "none" : cpu_arithmetic()},
            {"bf16 products", ex.on_cuda() ? "none" : cpu_bf16_products()},
            {"seed", job.seed},
            {"allow-rtn", job.allow_rtn}};
  if (!ex.on_cuda() && job.dtype == DType::bf16) j["bf16 sums and attention"] = cpu_bf16_products();
  if (plan.minutes > 0) j["minutes"] = plan.minutes;
  if (!job.dropped.empty()) j["dropped tensors"] = job.dropped;
  for (const SourceFile& file : job.sources) j[file.name] = fmt::format("{} bytes, digest {}", file.bytes, file.digest);
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string difference(const std::string& then, const std::string& now) {
  const Json a = Json::parse(then, nullptr, false), b = Json::parse(now, nullptr, false);
  if (!a.is_object() || !b.is_object()) return then == now ? "" : "the first record of its journal is none";
  std::string s;
  const auto name = [&](const std::string& key) {
    s += fmt::format("{}{} (then {}, now {})", s.empty() ? "" : ", ", key, value_in_words(a, key),
                     value_in_words(b, key));
  };
  for (const auto& [key, value] : b.items())
    if (!a.contains(key) || a[key] != value) name(key);
  for (const auto& [key, value] : a.items())
    if (!b.contains(key)) name(key);
  return s + set_alike(a, b);
}

}  // namespace fewbit
