#include "src/quant/plan/gguf_refusals.h"

#include <fmt/format.h>

#include <map>

#include "src/model/gguf/config.h"
#include "src/model/gguf/names.h"
#include "src/quant/output/companions.h"

namespace fewbit {
namespace {

// Experts of a layer are one tensor.
void check_stacks(const Checkpoint& c, const QuantPlan& plan) {
  std::map<std::string, std::string_view> types;  // of weights; absent: as they are
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep && (p.blocks || p.recipe.blocks)) types[p.linear.name + ".weight"] = gguf_type_of(p).name;
  for (const GgufTensor& g : gguf_tensors(c.spec)) {
    if (const auto at = types.find(g.parts.front()); at != types.end() && !at->second.empty() && !g.runs.empty())
      if (const int64_t block = gguf::block_type(std::string(at->second)).elements; g.run % block != 0)
        fail(ErrorKind::unsupported, fmt::format("{}: {} inputs of a head are no whole blocks of {}, in which the file "
                                                 "has the heads in another order",
                                                 g.parts.front(), g.run, at->second));
    for (const std::string& part : g.parts)
      if (types[part] != types[g.parts.front()])
        fail(ErrorKind::unsupported,
             fmt::format("{} and {} get different types, and GGUF stacks the experts of a layer in one",
                         g.parts.front(), part));
  }
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
