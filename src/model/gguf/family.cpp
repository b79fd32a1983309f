#include "src/model/gguf/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/gguf/metadata.h"
#include "src/core/error.h"
#include "src/model/family.h"

namespace fewbit {
namespace {

// What `name` gives of the families that have files, each once.
template <class NameOf>
std::string known(const NameOf& name) {
  std::vector<std::string_view> all;
  for (const Family* f : families())
    if (!f->gguf.arch.empty() && std::find(all.begin(), all.end(), name(*f)) == all.end()) all.push_back(name(*f));
  return fmt::format("{}", fmt::join(all, " "));
}

}  // namespace

const GgufFamily& gguf_family_of(const ModelSpec& spec) {
  const GgufFamily& g = family_of(spec).gguf;
  if (!g.arch.empty()) return g;
  fail(ErrorKind::unsupported, fmt::format("{}: no GGUF of this architecture is written: {}; known: {}", spec.arch,
                                           g.why_not.empty() ? "its names in one are not known here" : g.why_not,
                                           known([](const Family& f) { return f.name(); })));
}

const Family& gguf_family_named(const gguf::Metadata& m) {
  const std::string architecture = m.text("general.architecture");
  const auto key = [&](std::string_view name) { return architecture + "." + std::string(name); };
  const bool experts = m.integer(key("expert_count"), 0) > 0,
             windows = m.integer(key("attention.sliding_window"), 0) > 0;
  const auto tells = [&](const GgufTell& t) {
    return t.key.empty() || (m.has(key(t.key)) && (t.value == 0 || m.integer(key(t.key)) == t.value));
  };
  for (const Family* f : families()) {
    const GgufFamily& g = f->gguf;
    if (!g.arch.empty() && g.arch_of(experts) == architecture &&
        (g.has_experts == experts || (g.dense_too && !experts)) && (windows || !g.windows_tell) && tells(g.tell))
      return *f;
  }
  fail(ErrorKind::unsupported,
       fmt::format("{}: general.architecture: found \"{}\"{}; known: {}", m.where(), architecture,
                   experts ? " with experts" : "", known([](const Family& f) { return f.gguf.arch; })));
}

}  // namespace fewbit
