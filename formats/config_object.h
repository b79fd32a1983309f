#pragma once
// A JSON config as quantization configs are read: every value is asked for by key and type, and what does not
// fit is named with its place. JSON itself stays in .cpp files. Internal to formats/.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/text/regex.h"

namespace fewbit {

// An object of a tree that outlives it. null counts as absent everywhere.
class ConfigObject {
 public:
  ConfigObject(const void* json, std::string where) : where(std::move(where)), json_(json) {}

  bool has(const char* key) const;
  std::string shown(const char* key) const;  // the value as JSON, shortened; "nothing" where absent
  // Error{checkpoint} naming the place where the value has another type.
  std::string str(const char* key, const std::string& fallback) const;
  bool flag(const char* key, bool fallback) const;
  std::optional<int64_t> integer(const char* key) const;
  std::vector<std::string> strings(const char* key) const;  // a list of strings; absent: empty
  std::vector<int64_t> integers(const char* key) const;     // a list of integers; absent: empty
  std::optional<ConfigObject> object(const char* key) const;
  std::vector<ConfigObject> objects(const char* key) const;           // a list of objects; absent: empty
  std::vector<std::pair<std::string, ConfigObject>> members() const;  // in order; all must be objects
  // Error{checkpoint} "where.key: expected …, found …" and Error{unsupported} "where.key: found …; supported:
  // …".
  [[noreturn]] void wrong(std::string_view key, const std::string& expected) const;
  [[noreturn]] void unsupported(std::string_view key, const std::string& supported) const;

  std::string where;  // "config.json.quantization_config"

 private:
  const void* json_;  // nlohmann::ordered_json
};

class ConfigTree {
 public:
  // Error{checkpoint} where `text` is not JSON or not an object.
  ConfigTree(const std::string& text, const std::string& where);
  ~ConfigTree();
  ConfigObject root() const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace fewbit
