#include "src/quant/plan/plan_kept.h"

#include <algorithm>

#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/family.h"

namespace fewbit {
namespace {

constexpr std::string_view kRouter = "chooses the experts: a rounding would move tokens to others";
constexpr std::string_view kGrouped = "groups of outputs have inputs of their own: no packing has a place for that";
constexpr std::string_view kGate = "a few outputs, each of which scales a whole head or expert";
constexpr std::string_view kKeyChoice = "chooses the keys that attention gets to see: a rounding takes others";
constexpr std::string_view kBlockKeys = "makes the keys of blocks of tokens, which all heads look at";
constexpr std::string_view kRates = "decays and gates, which scale every feature of a head";
constexpr std::string_view kOfTokens = "what a token alone gives to a layer";
constexpr std::string_view kUnknown = "not part of the op list: travels as it is";
constexpr std::string_view kNotInGguf = "; left out: a .gguf of the language model has no place for it";

// Why a matrix that is no linear of a recipe stays as it is, by what it makes.
std::string_view reason_of(const Project& p) {
  constexpr std::pair<const char*, std::string_view> kReasons[] = {
      {"*indexer.*", kKeyChoice}, {"*compressor.*", kBlockKeys}, {"per_layer_*", kOfTokens},
      {"*.f_?_proj", kRates},     {"*.g_?_proj", kRates},        {"*", kGate}};
  if (p.groups > 1) return kGrouped;
  return std::find_if(std::begin(kReasons), std::end(kReasons),
                      [&](const auto& r) { return glob_match(r.first, p.name); })
      ->second;
}

class Groups {
 public:
  explicit Groups(const Checkpoint& c) : c_(c) {}
  // `module`: that of a matrix, or a stack of them, which has a name of its own.
  void add(const std::string& module, const std::string& reason) {
    const TensorInfo* stack = c_.store.find(module);
    const TensorInfo* t = stack ? stack : c_.store.find(module + ".weight");
    const auto same = [&](const KeptGroup& g) { return g.reason == reason; };
    auto it = std::find_if(all_.begin(), all_.end(), same);
    if (it == all_.end()) it = all_.insert(it, {.first = module, .reason = reason});
    it->matrices += stack ? stack->shape[0] : 1;
    it->bytes += t ? t->bytes : 0;
  }
  std::vector<KeptGroup> take() { return std::move(all_); }

 private:
  const Checkpoint& c_;
  std::vector<KeptGroup> all_;
};

}  // namespace

std::string kept_by_family(const ModelSpec& spec, const NamedLinear& l) {
  const Family* family = find_family(spec.arch);
  if (!family || l.layer == kOutsideBlocks) return "";
  return std::string(kept_in_block(*family, l.name.substr(spec.prefix(l.layer).size())));
}

std::vector<KeptGroup> kept_of(const Checkpoint& c, const QuantPlan& plan) {
  Groups groups(c);
  for (int64_t layer = 0; layer < c.spec.layers; ++layer)
    for (const BlockOp& op : c.spec.block(layer))
      if (const Moe* m = std::get_if<Moe>(&op); m && !m->router.empty())
        groups.add(c.spec.prefix(layer) + m->router, std::string(kRouter));
      else if (const TokenRoute* r = std::get_if<TokenRoute>(&op))
        groups.add(c.spec.prefix(layer) + r->router, std::string(kRouter));
      else if (const Project* p = std::get_if<Project>(&op))
        groups.add(c.spec.prefix(layer) + p->name, std::string(reason_of(*p)));
  const Family* family = find_family(c.spec.arch);
  std::vector<std::string> unknown = unknown_matrices(c);
  for (std::string& stack : unknown_stacks(c)) unknown.push_back(std::move(stack));
  for (const std::string& module : unknown) {
    if (plan.find(module)) continue;
    const std::string_view known = family ? kept_outside(*family, module) : std::string_view();
    groups.add(module,
               std::string(known.empty() ? kUnknown : known) + std::string(plan.format->gguf ? kNotInGguf : ""));
  }
  return groups.take();
}

}  // namespace fewbit
