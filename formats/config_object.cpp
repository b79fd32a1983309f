#include "formats/config_object.h"

#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

using nlohmann::ordered_json;

const ordered_json& tree(const void* json) { return *static_cast<const ordered_json*>(json); }

const ordered_json* find(const void* json, std::string_view key) {
  const auto it = tree(json).find(key);
  return it == tree(json).end() || it->is_null() ? nullptr : &*it;
}

std::string dump(const ordered_json& v) {
  const std::string s = python_json(v);
  return s.size() <= 60 ? s : s.substr(0, 57) + "...";
}

// Sizes and counts of a quantization are far below; products of two of them stay inside of 64 bits.
constexpr int64_t kLargest = INT32_MAX;

bool is_size(const ordered_json& v) {
  if (v.is_number_unsigned()) return v.get<uint64_t>() <= static_cast<uint64_t>(kLargest);
  return v.is_number_integer() && v.get<int64_t>() >= -kLargest;
}

template <class T>
std::vector<T> list(const ConfigObject& o, const ordered_json* v, const char* key, const char* expected,
                    bool (*fits)(const ordered_json&)) {
  std::vector<T> out;
  if (!v) return out;
  if (!v->is_array()) o.wrong(key, expected);
  for (const ordered_json& e : *v) {
    if (!fits(e)) o.wrong(key, expected);
    out.push_back(e.get<T>());
  }
  return out;
}

}  // namespace

bool ConfigObject::has(const char* key) const { return find(json_, key) != nullptr; }

std::string ConfigObject::shown(const char* key) const {
  const ordered_json* v = find(json_, key);
  return v ? dump(*v) : "nothing";
}

void ConfigObject::wrong(std::string_view key, const std::string& expected) const {
  const std::string k(key);
  fail(ErrorKind::checkpoint, where + '.' + k + ": expected " + expected + ", found " + shown(k.c_str()));
}

void ConfigObject::unsupported(std::string_view key, const std::string& supported) const {
  const std::string k(key);
  fail(ErrorKind::unsupported, where + '.' + k + ": found " + shown(k.c_str()) + "; supported: " + supported);
}

std::string ConfigObject::str(const char* key, const std::string& fallback) const {
  const ordered_json* v = find(json_, key);
  if (v && !v->is_string()) wrong(key, "a string");
  return v ? v->get<std::string>() : fallback;
}

bool ConfigObject::flag(const char* key, bool fallback) const {
  const ordered_json* v = find(json_, key);
  if (v && !v->is_boolean()) wrong(key, "true or false");
  return v ? v->get<bool>() : fallback;
}

std::optional<int64_t> ConfigObject::integer(const char* key) const {
  const ordered_json* v = find(json_, key);
  if (v && !is_size(*v)) wrong(key, "an integer of at most 31 bits");
  return v ? std::optional(v->get<int64_t>()) : std::nullopt;
}

std::vector<std::string> ConfigObject::strings(const char* key) const {
  return list<std::string>(*this, find(json_, key), key, "a list of strings",
                           [](const ordered_json& e) { return e.is_string(); });
}

std::vector<int64_t> ConfigObject::integers(const char* key) const {
  return list<int64_t>(*this, find(json_, key), key, "a list of integers of at most 31 bits",
                       [](const ordered_json& e) { return is_size(e); });
}

std::optional<ConfigObject> ConfigObject::object(const char* key) const {
  const ordered_json* v = find(json_, key);
  if (v && !v->is_object()) wrong(key, "an object");
  if (!v) return std::nullopt;
  return ConfigObject{v, where + '.' + key};
}

std::vector<ConfigObject> ConfigObject::objects(const char* key) const {
  const ordered_json* v = find(json_, key);
  if (v && !v->is_array()) wrong(key, "a list");
  std::vector<ConfigObject> out;
  for (size_t i = 0; v && i < v->size(); ++i) {
    if (!(*v)[i].is_object()) wrong(key, "a list of objects");
    out.emplace_back(&(*v)[i], where + '.' + key + '[' + std::to_string(i) + ']');
  }
  return out;
}

std::vector<std::pair<std::string, ConfigObject>> ConfigObject::members() const {
  std::vector<std::pair<std::string, ConfigObject>> out;
  for (const auto& [key, value] : tree(json_).items()) {
    if (!value.is_object()) wrong(key, "an object");
    out.emplace_back(key, ConfigObject{&value, where + '.' + key});
  }
  return out;
}

struct ConfigTree::Impl {
  ordered_json json;
  std::string where;
};

ConfigTree::ConfigTree(const std::string& text, const std::string& where) {
  ordered_json json = parse_ordered_json(text, where, kConfigJson);
  if (!json.is_object()) fail(ErrorKind::checkpoint, where + ": expected a JSON object, found " + dump(json));
  impl_ = std::make_unique<const Impl>(Impl{std::move(json), where});
}

ConfigTree::~ConfigTree() = default;

ConfigObject ConfigTree::root() const { return {&impl_->json, impl_->where}; }

}  // namespace fewbit
