#include "src/quant/rule_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/core/text/nearest.h"
#include "src/model/mtp.h"

namespace fewbit {
namespace {

constexpr size_t kNamesShown = 16;  // of a block: a line that says all of a mixture's would be no line

std::string last_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

bool is_end_by_exact_name(const ModelSpec& spec, const Rule& rule) {
  const std::vector<NamedLinear> ends = ends_of(spec);
  return rule.glob == "lm_head" ||  // of a tied model: its plan has a word of its own for that
         std::any_of(ends.begin(), ends.end(), [&](const NamedLinear& l) { return l.name == rule.glob; });
}

// "mlp.experts.17.up_proj" -> "mlp.experts.*.up_proj": of a hundred experts one name is enough.
std::string without_numbers(const std::string& name) {
  std::string out;
  for (const std::string& part : split(name, '.')) {
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out += (out.empty() ? "" : ".") + (number ? std::string("*") : part);
  }
  return out;
}

// The names of linears as rules may say them, those of the first blocks first, each once.
std::vector<std::string> names_in_blocks(const ModelSpec& spec) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const NamedLinear& l : linears_of(spec))
    if (std::string name = without_numbers(l.name.substr(spec.prefix(l.layer).size())); seen.insert(name).second)
      names.push_back(std::move(name));
  return names;
}

// What the user may have meant: a whole name, or the last word of one.
std::string meant(const std::string& glob, const std::vector<std::string>& names) {
  std::string wanted = glob;
  while (!wanted.empty() && (wanted.front() == '*' || wanted.front() == '.')) wanted.erase(0, 1);
  while (!wanted.empty() && (wanted.back() == '*' || wanted.back() == '.')) wanted.pop_back();
  std::vector<std::string> known = names;
  for (const std::string& name : names) known.push_back(last_of(name));
  const std::vector<std::string_view> all(known.begin(), known.end());
  std::string_view near = nearest(wanted, all);
  if (near.empty()) near = nearest(last_of(wanted), all);
  const auto within = [&](std::string_view name) { return name.find(wanted) != std::string_view::npos; };
  if (const auto it = std::find_if(all.begin(), all.end(), within); near.empty() && !wanted.empty() && it != all.end())
    near = *it;
  if (near.empty()) return "";
  const bool whole = std::find(names.begin(), names.end(), near) != names.end();
  return fmt::format("did you mean '{}{}'? ", whole ? "" : "*.", near);
}

// The first matrix of the checkpoint beside linears and ends that the glob matches; "" = there is none.
std::string matrix_of(const Checkpoint& c, const std::string& glob) {
  constexpr std::string_view kWeight = ".weight";
  const auto matches = [&](const std::string& module) {
    if (glob_match(glob, module)) return true;
    for (int64_t layer = 0; layer < c.spec.layers; ++layer)
      if (const std::string prefix = c.spec.prefix(layer); starts_with(module, prefix))
        return glob_match(glob, module.substr(prefix.size()));
    return false;
  };
  for (const auto& [name, info] : c.store.index().tensors)
    if (info.shape.rank() >= 2 && ends_with(name, kWeight) && name != c.spec.embed && name != c.spec.lm_head)
      if (std::string module = name.substr(0, name.size() - kWeight.size()); matches(module)) return module;
  for (const NamedLinear& l : c.others)
    if (matches(l.name)) return l.name;
  return "";
}

[[noreturn]] void refuse(const Checkpoint& c, const Rule& rule) {
  const std::string flag = fmt::format("{} '{}'", rule.recipe.keep ? "--keep" : "--set", rule.glob);
  for (const NamedLinear& end : ends_of(c.spec))
    if (glob_match(rule.glob, end.name) || last_of(rule.glob) == last_of(end.name))
      fail(ErrorKind::usage, fmt::format("{}: {} is meant only by exactly its name: {} {}{}", flag, end.name,
                                         rule.recipe.keep ? "--keep" : "--set", end.name,
                                         rule.recipe.keep ? "; without a rule it stays as it is" : "=…"));
  if (const std::string matrix = matrix_of(c, rule.glob); !matrix.empty())
    fail(ErrorKind::usage, fmt::format("{}: '{}' is none of the linears that a recipe touches and stays as it is; "
                                       "`quantize plan` lists both",
                                       flag, matrix));
  const std::vector<std::string> names = names_in_blocks(c.spec);
  const size_t shown = std::min(names.size(), kNamesShown);
  fail(ErrorKind::usage,
       fmt::format("{}: no linear of {} has such a name; {}names in a block: {}{}; `quantize plan` lists all", flag,
                   c.dir.string(), meant(rule.glob, names), fmt::join(names.begin(), names.begin() + shown, " "),
                   shown < names.size() ? " …" : ""));
}

}  // namespace

bool means_mtp(const Rule& rule, const ModelSpec& spec, const NamedLinear& l) {
  const bool by_name = starts_with(rule.glob, "mtp.") || starts_with(rule.glob, spec.prefix(spec.layers));
  return by_name && glob_match(rule.glob, l.name);
}

void require_matches(const Checkpoint& c, const std::vector<Rule>& rules) {
  if (rules.empty()) return;
  const std::vector<NamedLinear> linears = linears_of(c.spec);
  const auto further = mtp_linears(c.spec, c.store);
  for (const Rule& rule : rules) {
    if (rule.recipe.source_grid || is_end_by_exact_name(c.spec, rule)) continue;
    const auto meant_by = [&](const NamedLinear& l) { return means(rule, c.spec, l); };
    if (std::any_of(linears.begin(), linears.end(), meant_by)) continue;
    const auto some_meant = [&](const std::vector<NamedLinear>& group) {
      return std::any_of(group.begin(), group.end(), [&](const auto& l) { return means_mtp(rule, c.spec, l); });
    };
    if (std::any_of(further.begin(), further.end(), some_meant)) continue;
    // What stays as it is anyway may be kept by name: a tower, routers, MTP layers.
    if (rule.recipe.keep && !matrix_of(c, rule.glob).empty()) continue;
    refuse(c, rule);
  }
}

}  // namespace fewbit
