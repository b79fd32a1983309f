#include "src/text/jinja/workspace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "src/core/error.h"
#include "src/text/utf8.h"

namespace fewbit::jinja {
namespace {

std::string one_line(std::string s) {
  std::replace(s.begin(), s.end(), '\n', ' ');
  return s;
}

// Of an integer and a real: exact, because a long double holds both.
long double wide(const Value& v) { return v.is(Type::real) ? v.real : static_cast<long double>(v.integer); }

}  // namespace

void Site::refuse(const std::string& what) const {
  fail(ErrorKind::checkpoint, one_line(fmt::format("{}: line {}: {}", where, line, what)));
}
void Site::unsupported(const std::string& what) const {
  fail(ErrorKind::unsupported,
       one_line(
           fmt::format("{}: line {}: {} is not implemented; docs/chat-templates.md lists what is", where, line, what)));
}

const char* name_of(Type t) {
  static constexpr std::array kNames = std::to_array<const char*>(
      {"Undefined", "NoneType", "bool", "int", "float", "str", "list", "tuple", "dict", "dict view", "range",
       "generator", "Namespace", "LoopContext", "Macro", "function", "builtin_function_or_method"});
  return kNames[static_cast<size_t>(t)];
}

std::string why_undefined(const Value& v) {
  const std::string name = v.text ? v.text->bytes : "";
  if (v.owner == Type::undefined) return v.text ? fmt::format("'{}' is undefined", name) : "a value is undefined";
  if (v.owner == Type::none) return fmt::format("None has no attribute '{}'", name);
  return fmt::format("'{} object' has no attribute '{}'", name_of(v.owner), name);
}

Text text_of(std::string bytes, bool markup) {
  const int64_t length =
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
  return {std::move(bytes), length, markup};
}

bool truthy(const Value& v) {
  switch (v.type) {
    case Type::undefined:
    case Type::none:
      return false;
    case Type::boolean:
    case Type::integer:
      return v.integer != 0;
    case Type::real:
      return v.real != 0;
    case Type::string:
      return v.text->length > 0;
    case Type::list:
    case Type::tuple:
      return !v.list->items.empty();
    case Type::dict:
      return !v.dict->entries.empty();
    case Type::view:
      return !v.view->of->entries.empty();
    case Type::range:
      return v.range->length > 0;
    case Type::generator:
    case Type::space:
    case Type::loop:
    case Type::macro:
    case Type::function:
    case Type::method:
      return true;
  }
  return true;
}

Workspace::Workspace(const std::string& where, int64_t input_bytes)
    : site(where),
      steps_(kSteps + kStepsPerByte * input_bytes),
      memory_(kMemory + kMemoryPerByte * input_bytes),
      longest_(kLongestText + kTextPerByte * input_bytes) {}

void Workspace::too_many_steps() const {
  refuse("the template takes too many steps; it loops over too much, or for ever");
}
void Workspace::claim(int64_t bytes) {
  if (bytes > memory_) refuse("the template makes more values than memory is allowed for them");
  memory_ -= bytes;
}
void Workspace::claim_text(int64_t bytes) {
  if (bytes > longest_) refuse(fmt::format("the template makes a text of more than {} MiB", longest_ >> 20));
}
void Deeper::too_deep() {
  --w_.depth;
  w_.refuse(fmt::format("blocks, expressions and macros are nested more than {} deep", kDepth));
}

Value Workspace::text(std::string bytes, bool markup) {
  const auto size = static_cast<int64_t>(bytes.size());
  claim_text(size);
  read(size);
  return Value::of(keep(texts_, text_of(std::move(bytes), markup), size));
}
Value Workspace::character(uint32_t code) {
  const auto [at, fresh] = characters_.try_emplace(code);
  if (fresh) {
    std::string s;
    append_code(s, code);
    at->second = text(std::move(s));
  }
  return at->second;
}
Value Workspace::list(std::vector<Value> items, Type type) {
  Value v = Value::of(type);
  const auto size = static_cast<int64_t>(items.size());
  step(size / 4);
  v.list = keep(lists_, List{std::move(items)}, size * static_cast<int64_t>(sizeof(Value)));
  return v;
}
Value Workspace::dict() {
  Value v = Value::of(Type::dict);
  v.dict = keep(dicts_, Dict{}, 0);
  return v;
}
Value Workspace::space() {
  Value v = dict();
  v.type = Type::space;
  return v;
}
Value Workspace::view(View of) {
  Value v = Value::of(Type::view);
  v.view = keep(views_, of, 0);
  return v;
}
Value Workspace::method(Value self, const Text* name) {
  Value v = Value::of(Type::method);
  v.method = keep(methods_, Method{self, name}, 0);
  return v;
}
Value Workspace::range(int64_t start, int64_t stop, int64_t step) {
  using Wide = __int128;
  const Wide span = step > 0 ? Wide{stop} - start : Wide{start} - stop, stride = step > 0 ? Wide{step} : -Wide{step};
  const Wide length = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (length > 100000) refuse("a range of more than 100000 items, which the sandbox of transformers refuses as well");
  Value v = Value::of(Type::range);
  v.range = keep(ranges_, Range{start, stop, step, static_cast<int64_t>(length)}, 0);
  return v;
}

void Workspace::put(Dict& d, Value key, Value value) {
  const uint64_t h = hash(key);
  const auto [first, last] = d.places.equal_range(h);
  for (auto at = first; at != last; ++at)
    if (auto& entry = d.entries[at->second]; equal(entry.first, key)) {
      entry.second = value;
      return;
    }
  claim(128);  // an entry and its place
  d.places.emplace(h, static_cast<uint32_t>(d.entries.size()));
  d.entries.emplace_back(key, value);
}
const Value* Workspace::find(const Dict& d, const Value& key) {
  const auto [first, last] = d.places.equal_range(hash(key));
  for (auto at = first; at != last; ++at)
    if (equal(d.entries[at->second].first, key)) return &d.entries[at->second].second;
  return nullptr;
}
const Value* Workspace::find(const Dict& d, std::string_view key) {
  const auto [first, last] = d.places.equal_range(std::hash<std::string_view>()(key));
  for (auto at = first; at != last; ++at)
    if (const auto& [k, v] = d.entries[at->second]; k.is(Type::string) && k.bytes() == key) return &v;
  return nullptr;
}

uint64_t Workspace::hash(const Value& v, int level) {
  step();
  if (v.is(Type::string)) {
    read(static_cast<int64_t>(v.bytes().size()));
    return std::hash<std::string_view>()(v.bytes());
  }
  if (v.number()) return std::hash<double>()(v.as_real());
  if (v.is(Type::tuple)) {
    if (level > kDataDepth) refuse(fmt::format("tuples are nested more than {} deep", kDataDepth));
    uint64_t h = 17;
    for (const Value& item : v.list->items) h = h * 1000003 + hash(item, level + 1);
    return h;
  }
  if (v.is(Type::list) || v.is(Type::dict)) refuse(fmt::format("unhashable type: '{}'", name_of(v.type)));
  return static_cast<uint64_t>(v.type);
}

bool Workspace::equal(const Value& a, const Value& b, int level) {
  step();
  if (level > kDataDepth) refuse(fmt::format("lists are nested more than {} deep", kDataDepth));
  if (a.number() && b.number()) return a.whole() && b.whole() ? a.integer == b.integer : wide(a) == wide(b);
  if (a.type != b.type) return false;
  switch (a.type) {
    case Type::undefined:
    case Type::none:
      return true;
    case Type::string:
      if (a.bytes().size() == b.bytes().size()) read(static_cast<int64_t>(a.bytes().size()));
      return a.bytes() == b.bytes();
    case Type::list:
    case Type::tuple:
      return a.list == b.list ||
             std::equal(a.list->items.begin(), a.list->items.end(), b.list->items.begin(), b.list->items.end(),
                        [&](const Value& x, const Value& y) { return equal(x, y, level + 1); });
    case Type::dict:
      if (a.dict == b.dict) return true;
      return a.dict->entries.size() == b.dict->entries.size() &&
             std::all_of(a.dict->entries.begin(), a.dict->entries.end(), [&](const auto& entry) {
               const Value* other = find(*b.dict, entry.first);
               return other && equal(entry.second, *other, level + 1);
             });
    case Type::range: {
      const Range &x = *a.range, &y = *b.range;
      return x.length == y.length && (x.length == 0 || (x.start == y.start && (x.length == 1 || x.step == y.step)));
    }
    case Type::view:
      unsupported("comparing views of mappings");
    default:
      return a.integer == b.integer;  // the same object
  }
}

bool Workspace::less(const Value& a, const Value& b, const char* op, int level) {
  step();
  if (level > kDataDepth) refuse(fmt::format("lists are nested more than {} deep", kDataDepth));
  if (a.number() && b.number()) return a.whole() && b.whole() ? a.integer < b.integer : wide(a) < wide(b);
  if (a.is(Type::string) && b.is(Type::string)) {
    read(static_cast<int64_t>(std::min(a.bytes().size(), b.bytes().size())));
    return a.bytes() < b.bytes();  // bytes of UTF-8 have the order of code points
  }
  if (a.type == b.type && (a.is(Type::list) || a.is(Type::tuple))) {
    const std::vector<Value>&x = a.list->items, &y = b.list->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i], level + 1)) return less(x[i], y[i], op, level + 1);
    return x.size() < y.size();
  }
  if (a.is(Type::undefined) || b.is(Type::undefined)) refuse(why_undefined(a.is(Type::undefined) ? a : b));
  refuse(fmt::format("'{}' not supported between instances of '{}' and '{}'", op, name_of(a.type), name_of(b.type)));
}

bool Workspace::iterable(const Value& v) const {
  switch (v.type) {
    case Type::undefined:
    case Type::string:
    case Type::list:
    case Type::tuple:
    case Type::dict:
    case Type::view:
    case Type::range:
    case Type::generator:
    case Type::loop:
      return true;
    default:
      return false;
  }
}

const std::vector<Value>& Workspace::items(const Value& v) {
  if (v.is(Type::list) || v.is(Type::tuple)) return v.list->items;
  std::vector<Value> out;
  switch (v.type) {
    case Type::undefined:
      break;
    case Type::string:
      claim(v.text->length * static_cast<int64_t>(sizeof(Value)));
      for (size_t i = 0; i < v.bytes().size();) out.push_back(character(next_code(v.bytes(), i)));
      break;
    case Type::dict:
      for (const auto& entry : v.dict->entries) out.push_back(entry.first);
      break;
    case Type::view:
      for (const auto& [key, value] : v.view->of->entries)
        out.push_back(v.view->kind == View::Kind::keys     ? key
                      : v.view->kind == View::Kind::values ? value
                                                           : list({key, value}, Type::tuple));
      break;
    case Type::range:
      for (int64_t i = 0; i < v.range->length; ++i) out.push_back(Value::of(v.range->start + i * v.range->step));
      break;
    case Type::generator:
      out.assign(v.list->items.begin() + static_cast<int64_t>(v.list->next), v.list->items.end());
      v.list->next = v.list->items.size();
      break;
    case Type::loop:
      unsupported("iterating over \"loop\"");
    default:
      refuse(fmt::format("'{}' object is not iterable", name_of(v.type)));
  }
  step(static_cast<int64_t>(out.size()));
  return list(std::move(out)).list->items;
}

}  // namespace fewbit::jinja
