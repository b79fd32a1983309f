#include "src/text/json/json_node.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

using nlohmann::json;

const json& of(const void* value) { return *static_cast<const json*>(value); }
const json kNull{};

bool is_id(const json& j) { return j.is_number_integer() && j >= 0 && j < kMaxTokenId; }
std::string_view view_of(const json& j) { return j.get_ref<const std::string&>(); }

}  // namespace

JsonNode::JsonNode(const void* value, std::string file, std::string key)
    : value_(value), file_(std::move(file)), key_(std::move(key)) {}

bool JsonNode::has(const char* name) const {
  const json& j = of(value_);
  return j.is_object() && j.contains(name) && !j[name].is_null();
}

JsonNode JsonNode::at(const char* name) const {
  const json& j = of(value_);
  if (!j.is_object()) expected("an object");
  JsonNode child(j.contains(name) ? &j[name] : &kNull, file_, key_.empty() ? name : key_ + "." + name);
  if (of(child.value_).is_null()) fail(ErrorKind::checkpoint, child.where() + " is missing");
  return child;
}

JsonNode JsonNode::item(size_t i) const { return {&of(value_)[i], file_, key_ + fmt::format("[{}]", i)}; }

std::vector<JsonNode> JsonNode::items() const {
  std::vector<JsonNode> out;
  for (size_t i = 0; i < list_size(); ++i) out.push_back(item(i));
  return out;
}

bool JsonNode::is_object() const { return of(value_).is_object(); }
bool JsonNode::is_zero() const { return of(value_).is_number() && of(value_) == 0; }

size_t JsonNode::list_size() const {
  if (!of(value_).is_array()) expected("a list");
  return of(value_).size();
}

std::string JsonNode::text() const {
  if (!of(value_).is_string()) expected("a string");
  return of(value_).get<std::string>();
}

std::string JsonNode::text_up_to(size_t bytes) const {
  std::string s = text();
  if (s.size() > bytes)
    fail(ErrorKind::unsupported, fmt::format("{}: found {} bytes; supported: {} at most", where(), s.size(), bytes));
  return s;
}

bool JsonNode::flag() const {
  if (!of(value_).is_boolean()) expected("true or false");
  return of(value_).get<bool>();
}

int64_t JsonNode::number() const {
  const json& j = of(value_);
  if (!j.is_number_integer() || (j.is_number_unsigned() && j.get<uint64_t>() > INT64_MAX)) expected("an integer");
  return j.get<int64_t>();
}

int32_t JsonNode::id() const {
  if (!of(value_).is_number_integer()) expected("an integer");
  if (!is_id(of(value_))) expected(fmt::format("a token id from 0 to {}", kMaxTokenId - 1));
  return of(value_).get<int32_t>();
}

bool JsonNode::flag(const char* name, bool otherwise) const { return has(name) ? at(name).flag() : otherwise; }

std::string JsonNode::text(const char* name, const char* otherwise) const {
  return has(name) ? at(name).text() : otherwise;
}

void JsonNode::each_id(const std::function<void(const std::string&, int32_t)>& take) const {
  if (!is_object()) expected("an object");
  for (const auto& [token, id] : of(value_).items()) {
    if (!is_id(id)) at(token.c_str()).id();  // says what is wrong
    take(token, id.get<int32_t>());
  }
}

std::optional<std::string_view> JsonNode::text_at(size_t i) const {
  const json& j = of(value_)[i];
  if (!j.is_string()) return std::nullopt;
  return view_of(j);
}

std::optional<std::pair<std::string_view, std::string_view>> JsonNode::texts_at(size_t i) const {
  const json& j = of(value_)[i];
  if (!j.is_array() || j.size() != 2 || !j[0].is_string() || !j[1].is_string()) return std::nullopt;
  return std::pair(view_of(j[0]), view_of(j[1]));
}

std::optional<std::pair<std::string_view, double>> JsonNode::scored_at(size_t i) const {
  const json& j = of(value_)[i];
  if (!j.is_array() || j.size() != 2 || !j[0].is_string() || !j[1].is_number()) return std::nullopt;
  const auto score = j[1].get<double>();
  if (!std::isfinite(score)) return std::nullopt;
  return std::pair(view_of(j[0]), score);
}

void JsonNode::expected(const std::string& what) const {
  fail(ErrorKind::checkpoint, fmt::format("{}: expected {}, found {}", where(), what, excerpt()));
}

void JsonNode::refuse(const std::string& supported) const {
  fail(ErrorKind::unsupported, fmt::format("{} = {} is not supported; supported: {}", where(), excerpt(), supported));
}

void JsonNode::check_depth(int depth) const {
  if (depth > kMaxDepth) fail(ErrorKind::unsupported, fmt::format("{}: more than {} nested parts", where(), kMaxDepth));
}

std::string JsonNode::excerpt() const {
  const json& j = of(value_);
  if (j.is_structured()) return j.is_array() ? "a list" : "an object";
  const std::string s = j.dump(-1, ' ', false, json::error_handler_t::replace);
  return s.size() <= 80 ? s : s.substr(0, 77) + "...";
}

struct JsonFile::Tree {
  Tree() {}  // what json's own constructor may throw, a defaulted one could not pass on
  json value;
};

JsonFile::JsonFile(const std::filesystem::path& path) : tree_(std::make_unique<Tree>()), path_(path.string()) {
  tree_->value = parse_json(json_text(path, kTableJson), path_, kTableJson);
}

JsonFile::~JsonFile() = default;

JsonNode JsonFile::root() const { return {&tree_->value, path_, ""}; }

}  // namespace fewbit
