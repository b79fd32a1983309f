#include "src/quant/plan/gguf_refusals.h"

#include <fmt/format.h>

#include <map>

#include "src/model/gguf_config.h"
#include "src/model/gguf_names.h"
#include "src/quant/output/companions.h"

namespace fewbit {
namespace {

// Experts of a layer are one tensor.
void check_stacks(const Checkpoint& c, const QuantPlan& plan) {
  std::map<std::string, std::string_view> types;  // of weights; absent: as they are
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep && (p.blocks || p.recipe.blocks)) types[p.linear.name + ".weight"] = gguf_type_of(p).name;
  for (const GgufTensor& g : gguf_tensors(c.spec))
    for (const std::string& part : g.parts)
      if (types[part] != types[g.parts.front()])
        fail(ErrorKind::unsupported,
             fmt::format("{} and {} get different types, and GGUF stacks the experts of a layer in one",
                         g.parts.front(), part));
}

}  // namespace

const gguf::BlockType& gguf_type_of(const PlannedLinear& p) { return p.blocks ? *p.blocks : *p.recipe.blocks; }

std::vector<Refusal> gguf_refusals(const Checkpoint& c, const QuantPlan& plan) {
  std::vector<Refusal> refusals;
  const auto attempt = [&](const auto& check) {
    try {
      check();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::unsupported) throw;
      refusals.push_back({"format gguf", e.what()});
    }
  };
  attempt([&] { gguf_metadata(c.config, c.spec); });
  if (refusals.empty()) attempt([&] { check_stacks(c, plan); });  // an architecture that is known
  attempt([&] { gguf_tokenizer_of(c); });
  return refusals;
}

}  // namespace fewbit
