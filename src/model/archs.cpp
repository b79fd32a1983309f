// The table of families, expanded from archs.def, and what is looked up in it.
#include "src/model/archs.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/error.h"
#include "src/core/strings.h"

namespace fewbit {

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> all = {
#define FEWBIT_FAMILY(id) &family_##id,
#include "src/model/archs.def"
#undef FEWBIT_FAMILY
  };
  return all;
}

namespace {

// Null where the family has no such class.
const FamilyClass* class_of(const Family& family, std::string_view name) {
  const auto* it = std::find_if(std::begin(family.classes), std::end(family.classes),
                                [&](const FamilyClass& c) { return !c.name.empty() && c.name == name; });
  return it == std::end(family.classes) ? nullptr : it;
}

std::vector<std::string> all_classes() {
  std::vector<std::string> names;
  for (const Family* f : families())
    for (const FamilyClass& c : f->classes)
      if (!c.name.empty()) names.emplace_back(c.name);
  return names;
}

// Letters and digits that two class names have in common from their beginning.
size_t likeness(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// A class says what a model computes only beside the model_type that its config class has: look-alikes keep the class
// and change what its keys mean.
void check_model_type(const ConfigView& config, const Family& family, const std::string& class_name) {
  if (!config.has("model_type") || family.model_types[0].empty()) return;
  const std::string found = config.str("model_type");
  std::vector<std::string_view> known;
  for (const std::string_view type : family.model_types) {
    if (!type.empty()) known.push_back(type);
    if (type == found && !type.empty()) return;
  }
  fail(ErrorKind::unsupported,
       fmt::format("{}: model_type: found \"{}\"; the nearest family read here: {}, of {}; supported: {}",
                   config.where(), found, class_name, fmt::join(known, ", "), join(all_classes(), ", ")));
}

// Families that are known by name, and what they need that is not here.
struct Unread {
  std::string_view class_name, needs;
};
constexpr Unread kUnread[] = {
#define FEWBIT_UNREAD(name, needs) {name, needs},
#include "src/model/archs_unread.def"
#undef FEWBIT_UNREAD
};

std::string needs_of(std::string_view class_name) {
  for (const Unread& u : kUnread)
    if (u.class_name == class_name) return ", which needs " + std::string(u.needs);
  return "";
}

void move_prefix(std::string& name, std::string_view from, std::string_view to) {
  if (name.starts_with(from)) name = std::string(to) + name.substr(from.size());
}

}  // namespace

const Family* find_family(std::string_view class_name) {
  for (const Family* f : families())
    if (class_of(*f, class_name)) return f;
  return nullptr;
}

const Family& family_of(const ModelSpec& spec) {
  const Family* f = find_family(spec.arch);
  FEWBIT_ASSERT(f);
  return *f;
}

std::string nearest_class(std::string_view class_name) {
  const std::vector<std::string> known = all_classes();
  return *std::max_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
    return likeness(a, class_name) < likeness(b, class_name);
  });
}

const Family& family_of(const ConfigView& config) {
  const std::string name = config.architecture();
  const Family* family = find_family(name);
  if (!family)
    fail(ErrorKind::unsupported,
         fmt::format("{}: architectures: found \"{}\"{}; the nearest family read here: {}; supported: {}",
                     config.where(), name, needs_of(name), nearest_class(name), join(all_classes(), ", ")));
  check_model_type(config, *family, name);
  return *family;
}

ModelSpec build_spec(const ConfigView& config) {
  const Family& family = family_of(config);
  const FamilyClass& of = *class_of(family, config.architecture());
  if (of.text.empty()) return family.build(config);
  ModelSpec spec = family.build(config.text_model());
  const bool tied = spec.tied();
  for (std::string* name : {&spec.block_prefix, &spec.embed, &spec.final_norm}) move_prefix(*name, "model.", of.text);
  for (std::vector<BlockOp>& block : spec.kinds)
    for (BlockOp& op : block)
      if (auto* t = std::get_if<TokenInput>(&op))
        for (std::string* name : {&t->table, &t->projection, &t->norm}) move_prefix(*name, "model.", of.text);
  if (!of.head.empty()) move_prefix(spec.lm_head, "lm_head.", of.head);
  if (tied) spec.lm_head = spec.embed;
  return spec;
}

namespace {

std::string_view kept(const Family& family, std::string_view name, bool outside) {
  for (const FamilyKeep& k : family.keeps)
    if (!k.glob.empty() && k.outside == outside && glob_match(k.glob, name)) return k.reason;
  return "";
}

}  // namespace

std::string_view kept_in_block(const Family& family, std::string_view name) { return kept(family, name, false); }
std::string_view kept_outside(const Family& family, std::string_view name) { return kept(family, name, true); }

}  // namespace fewbit
