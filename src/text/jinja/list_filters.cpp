// Filters of lists and mappings.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/core/strings.h"
#include "src/text/jinja/arithmetic.h"
#include "src/text/jinja/characters.h"
#include "src/text/jinja/filters.h"
#include "src/text/jinja/print.h"
#include "src/text/jinja/texts.h"

namespace fewbit::jinja {
namespace {

using Items = std::vector<Value>;

Value folded(Workspace& w, const Value& v) { return v.is(Type::string) ? w.text(lower(v.bytes())) : v; }
const Value* given(const Bound& b, size_t i) { return b.has(i) && !b.at(i).is(Type::none) ? &b.at(i) : nullptr; }
Value generator(const Use& u, Items items) { return u.w().list(std::move(items), Type::generator); }

Value do_length(const Use& u) {
  u.bound({});
  switch (u.of.type) {
    case Type::undefined:
      return Value::of(int64_t{0});
    case Type::string:
      return Value::of(u.of.text->length);
    case Type::list:
    case Type::tuple:
    case Type::dict:
    case Type::view:
    case Type::range:
      return Value::of(static_cast<int64_t>(u.w().items(u.of).size()));
    case Type::loop: {
      static const Text length = text_of("length");
      return u.in.attribute(u.of, &length);
    }
    default:
      u.w().refuse(fmt::format("object of type '{}' has no len()", name_of(u.of.type)));
  }
}

Value do_list(const Use& u) {
  u.bound({});
  return u.w().list(u.w().items(u.of));
}

Value do_first(const Use& u) {
  u.bound({});
  if (u.of.is(Type::generator)) {
    List& l = *u.of.list;
    return l.next < l.items.size() ? l.items[l.next++] : Value();
  }
  const Items& items = u.w().items(u.of);
  return items.empty() ? Value() : items.front();
}
Value do_last(const Use& u) {
  u.bound({});
  if (u.of.is(Type::generator)) u.w().refuse("\"last\" of a generator; put \"list\" in front of it");
  const Items& items = u.w().items(u.of);
  return items.empty() ? Value() : items.back();
}
Value do_reverse(const Use& u) {
  u.bound({});
  if (u.of.is(Type::string))
    return sliced(u.w(), u.of,
                  slice_of(u.w(), u.of.text->length, Value::none(), Value::none(), Value::of(int64_t{-1})));
  Items items = u.w().items(u.of);
  std::reverse(items.begin(), items.end());
  return u.of.is(Type::generator) ? u.w().list(std::move(items)) : generator(u, std::move(items));
}

Value do_join(const Use& u) {
  const Bound b = u.bound({"d", "attribute"});
  const Getter get = getter_of(u, given(b, 1), false);
  const std::string between = b.has(0) ? str_of(u.w(), b.at(0)) : "";
  std::string out;
  const Items& items = u.w().items(u.of);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i) out += between;
    out += str_of(u.w(), get(items[i]));
    u.w().claim_text(static_cast<int64_t>(out.size()));
    u.w().read(static_cast<int64_t>(between.size()));
  }
  return u.w().text(std::move(out));
}

// Sorted by what `get` finds; equal ones keep their order, also backwards.
void sort_by(const Use& u, Items& items, const Getter& get, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  u.w().claim(static_cast<int64_t>(items.size() * 2 * sizeof(Value)));
  for (const Value& v : items) keyed.emplace_back(get(v), v);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? u.w().less(b.first, a.first) : u.w().less(a.first, b.first);
  });
  for (size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
}

Value do_sort(const Use& u) {
  const Bound b = u.bound({"reverse", "case_sensitive", "attribute"});
  const bool fold = !b.truth(1, false);
  std::vector<Getter> parts;
  if (given(b, 2) && b.at(2).is(Type::string))
    for (const std::string& part : split(b.at(2).bytes(), ',')) {
      const Value attribute = u.w().text(part);
      parts.push_back(getter_of(u, &attribute, fold));
    }
  else
    parts.push_back(getter_of(u, given(b, 2), fold));
  Items items = u.w().items(u.of);
  sort_by(
      u, items,
      [&](const Value& v) {
        Items keys;
        for (const Getter& get : parts) keys.push_back(get(v));
        return u.w().list(std::move(keys));
      },
      b.truth(0, false));
  return u.w().list(std::move(items));
}

Value do_dictsort(const Use& u) {
  const Bound b = u.bound({"case_sensitive", "by", "reverse"});
  const std::string by = b.text(1, "key");
  if (by != "key" && by != "value") u.w().refuse(fmt::format("\"dictsort\" sorts by key or value, found {}", by));
  if (!u.of.is(Type::dict)) u.w().refuse(fmt::format("\"dictsort\" needs a mapping, found {}", name_of(u.of.type)));
  Items items;
  for (const auto& [key, v] : u.of.dict->entries) items.push_back(u.w().list({key, v}, Type::tuple));
  const bool fold = !b.truth(0, false);
  sort_by(
      u, items,
      [&](const Value& pair) {
        const Value& v = pair.list->items[by == "value"];
        return fold ? folded(u.w(), v) : v;
      },
      b.truth(2, false));
  return u.w().list(std::move(items));
}

Value do_unique(const Use& u) {
  const Bound b = u.bound({"case_sensitive", "attribute"});
  const Getter get = getter_of(u, given(b, 1), !b.truth(0, false));
  const Value seen = u.w().dict();
  Items out;
  for (const Value& v : u.w().items(u.of)) {
    const Value key = get(v);
    if (u.w().find(*seen.dict, key)) continue;
    u.w().put(*seen.dict, key, Value::none());
    out.push_back(v);
  }
  return generator(u, std::move(out));
}

Value do_extreme(const Use& u) {
  const Bound b = u.bound({"case_sensitive", "attribute"});
  const Getter get = getter_of(u, given(b, 1), !b.truth(0, false));
  const Items& items = u.w().items(u.of);
  if (items.empty()) return {};
  Value best = items[0], key = get(best);
  for (size_t i = 1; i < items.size(); ++i) {
    const Value other = get(items[i]);
    if (u.name == "min" ? !u.w().less(other, key) : !u.w().less(key, other, ">")) continue;
    best = items[i];
    key = other;
  }
  return best;
}

Value do_sum(const Use& u) {
  const Bound b = u.bound({"attribute", "start"});
  const Getter get = getter_of(u, given(b, 0), false);
  Value total = b.value(1, Value::of(int64_t{0}));
  if (total.is(Type::string)) u.w().refuse("\"sum\" does not join texts; \"join\" does");
  for (const Value& v : u.w().items(u.of)) total = arithmetic(u.w(), Op::add, total, get(v));
  return total;
}

Value do_items(const Use& u) {
  u.bound({});
  if (u.of.is(Type::undefined)) return generator(u, {});
  if (!u.of.is(Type::dict)) u.w().refuse(fmt::format("\"items\" needs a mapping, found {}", name_of(u.of.type)));
  Items items;
  for (const auto& [key, v] : u.of.dict->entries) items.push_back(u.w().list({key, v}, Type::tuple));
  return generator(u, std::move(items));
}

Value do_batch(const Use& u) {
  const Bound b = u.bound({"linecount", "fill_with"});
  b.required(0);
  const int64_t size = b.integer(0, 0);
  Items rows, row;
  const auto flush = [&] { rows.push_back(u.w().list(std::move(row))), row.clear(); };
  // A row is full when it has exactly `size`: none ever is below 1, but for the first of 0.
  for (const Value& v : u.w().items(u.of)) {
    if (static_cast<int64_t>(row.size()) == size) flush();
    row.push_back(v);
  }
  if (!row.empty()) {
    const int64_t lacking = given(b, 1) ? size - static_cast<int64_t>(row.size()) : 0;
    u.w().claim(std::max<int64_t>(lacking, 0) > (int64_t{1} << 40) ? INT64_MAX : std::max<int64_t>(lacking, 0) * 16);
    for (int64_t i = 0; i < lacking; ++i) row.push_back(b.at(1));
    flush();
  }
  return generator(u, std::move(rows));
}

Value do_slice(const Use& u) {
  const Bound b = u.bound({"slices", "fill_with"});
  b.required(0);
  const int64_t count = b.integer(0, 0);
  const Items& items = u.w().items(u.of);
  if (count == 0) u.w().refuse("\"slice\" into 0 parts");
  Items parts;
  const auto length = static_cast<int64_t>(items.size());
  size_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = length / count + (i < length % count);
    Items part(items.begin() + static_cast<int64_t>(at), items.begin() + static_cast<int64_t>(at) + size);
    at += static_cast<size_t>(size);
    if (given(b, 1) && i >= length % count) part.push_back(b.at(1));
    parts.push_back(u.w().list(std::move(part)));
  }
  return generator(u, std::move(parts));
}

Value do_groupby(const Use& u) {
  const Bound b = u.bound({"attribute", "default", "case_sensitive"});
  b.required(0);
  const bool fold = !b.truth(2, false);
  const Getter get = getter_of(u, &b.at(0), fold, given(b, 1)), plain = getter_of(u, &b.at(0), false, given(b, 1));
  Items items = u.w().items(u.of), groups;
  sort_by(u, items, get, false);
  for (size_t i = 0; i < items.size();) {
    const Value key = get(items[i]), shown = plain(items[i]);
    Items group;
    for (; i < items.size() && u.w().equal(get(items[i]), key); ++i) group.push_back(items[i]);
    groups.push_back(u.w().list({shown, u.w().list(std::move(group))}, Type::tuple));
    groups.back().list->grouped = true;
  }
  return u.w().list(std::move(groups));
}

// map(attribute=…, default=…), or map('filter', …).
Value do_map(const Use& u) {
  Items out;
  const Items& items = u.w().items(u.of);
  if (u.args.positional.empty()) {
    const Bound b = u.bound({"attribute", "default"});
    if (!b.has(0)) u.w().refuse("\"map\" needs the name of a filter, or attribute=");
    const Getter get = getter_of(u, &b.at(0), false, given(b, 1));
    for (const Value& v : items) out.push_back(get(v));
    return generator(u, std::move(out));
  }
  const Value& name = u.args.positional[0];
  if (!name.is(Type::string)) u.w().refuse("\"map\" needs the name of a filter");
  const Args rest = {{u.args.positional.begin() + 1, u.args.positional.end()}, u.args.named};
  for (const Value& v : items) out.push_back(u.in.filter(name.bytes(), v, rest));
  return generator(u, std::move(out));
}

// select, reject, selectattr, rejectattr.
Value do_select(const Use& u) {
  const bool of_attribute = u.name.ends_with("attr"), wanted = u.name.starts_with("select");
  size_t next = 0;
  Getter get = [](const Value& v) { return v; };
  if (of_attribute) {
    if (u.args.positional.empty()) u.w().refuse(fmt::format("\"{}\" needs the name of an attribute", u.name));
    get = getter_of(u, &u.args.positional[next++], false);
  }
  const Value* name = u.args.positional.size() > next ? &u.args.positional[next++] : nullptr;
  if (name && !name->is(Type::string)) u.w().refuse(fmt::format("\"{}\" needs the name of a test", u.name));
  const Args rest = {{u.args.positional.begin() + static_cast<int64_t>(next), u.args.positional.end()}, u.args.named};
  Items out;
  for (const Value& v : u.w().items(u.of)) {
    const Value part = get(v);
    if ((name ? u.in.test(name->bytes(), part, rest) : truthy(part)) == wanted) out.push_back(v);
  }
  return generator(u, std::move(out));
}

}  // namespace

Getter getter_of(const Use& u, const Value* attribute, bool fold_case, const Value* otherwise) {
  std::vector<Value> path;
  if (attribute && attribute->is(Type::string)) {
    for (const std::string& part : split(attribute->bytes(), '.')) {
      const bool place = !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string::npos;
      path.push_back(place ? Value::of(int64_t{std::stoll(part)}) : u.w().text(part));
    }
  } else if (attribute) {
    path.push_back(*attribute);
  }
  const Value fallback = otherwise ? *otherwise : Value();
  const bool has_fallback = otherwise != nullptr;
  return [&u, path, fold_case, fallback, has_fallback](const Value& v) {
    Value found = v;
    for (const Value& key : path) {
      found = u.in.item(found, key);
      if (has_fallback && found.is(Type::undefined)) found = fallback;
    }
    return fold_case ? folded(u.w(), found) : found;
  };
}

Filter list_filter(const std::string& name) {
  static const std::map<std::string, Filter> table = {
      {"length", do_length},     {"count", do_length},      {"list", do_list},     {"first", do_first},
      {"last", do_last},         {"reverse", do_reverse},   {"join", do_join},     {"sort", do_sort},
      {"dictsort", do_dictsort}, {"unique", do_unique},     {"min", do_extreme},   {"max", do_extreme},
      {"sum", do_sum},           {"items", do_items},       {"batch", do_batch},   {"slice", do_slice},
      {"groupby", do_groupby},   {"map", do_map},           {"select", do_select}, {"reject", do_select},
      {"selectattr", do_select}, {"rejectattr", do_select},
  };
  const auto at = table.find(name);
  return at == table.end() ? nullptr : at->second;
}

}  // namespace fewbit::jinja
