#pragma once
// GGUF metadata: keys with typed values. The index of a variant's alternative is the type's number in the
// file.
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace fewbit::gguf {

// Alternative 9 of a value is an array; arrays of arrays are not read by anyone and have no alternative here.
using Array = std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>, std::vector<int16_t>,
                           std::vector<uint32_t>, std::vector<int32_t>, std::vector<float>, std::vector<bool>,
                           std::vector<std::string>, std::monostate, std::vector<uint64_t>, std::vector<int64_t>,
                           std::vector<double>>;
using Value = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool, std::string, Array,
                           uint64_t, int64_t, double>;

// Reads convert between the widths of a kind (any integer type is an integer). Error{checkpoint} names file
// and key, what was expected and what was found; a fallback is taken only where the key is absent.
class Metadata {
 public:
  Metadata() = default;
  explicit Metadata(std::string where) : where_(std::move(where)) {}

  void set(const std::string& key, Value value) { values_[key] = std::move(value); }
  void merge(const Metadata& other) { values_.insert(other.values_.begin(), other.values_.end()); }
  bool has(const std::string& key) const { return values_.count(key) > 0; }
  const std::map<std::string, Value>& values() const { return values_; }
  const std::string& where() const { return where_; }

  int64_t integer(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t fallback) const;
  double number(const std::string& key) const;
  double number(const std::string& key, double fallback) const;
  bool flag(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  const std::vector<std::string>& texts(const std::string& key) const;  // an array of strings
  std::vector<int64_t> integers(const std::string& key) const;          // an array of any integers; absent: {}
  std::vector<float> numbers(const std::string& key) const;             // an array of f32; absent: {}
  std::vector<bool> flags(const std::string& key) const;  // an array of bools, or of integers (0 = false); absent: {}
  bool is_array(const std::string& key) const;

 private:
  const Value* find(const std::string& key) const;
  const Value& need(const std::string& key, const char* expected) const;
  [[noreturn]] void wrong(const std::string& key, const char* expected, const Value* found) const;

  std::string where_;
  std::map<std::string, Value> values_;
};

}  // namespace fewbit::gguf
