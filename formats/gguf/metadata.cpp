#include "formats/gguf/metadata.h"

#include <optional>
#include <type_traits>

#include "src/core/error.h"

namespace fewbit::gguf {
namespace {

constexpr const char* kTypeNames[] = {"u8",   "i8",     "u16",      "i16", "u32", "i32", "f32",
                                      "bool", "string", "an array", "u64", "i64", "f64"};
static_assert(std::size(kTypeNames) == std::variant_size_v<Value>);

template <class T>
constexpr bool kInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

std::optional<int64_t> as_integer(const Value& v) {
  return std::visit(
      [](const auto& x) -> std::optional<int64_t> {
        using T = std::decay_t<decltype(x)>;
        if constexpr (kInteger<T>) {
          const auto n = static_cast<int64_t>(x);
          if (std::is_unsigned_v<T> && n < 0) return std::nullopt;
          return n;
        }
        return std::nullopt;
      },
      v);
}

}  // namespace

const Value* Metadata::find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

const Value& Metadata::need(const std::string& key, const char* expected) const {
  const Value* v = find(key);
  if (!v) wrong(key, expected, nullptr);
  return *v;
}

void Metadata::wrong(const std::string& key, const char* expected, const Value* found) const {
  fail(ErrorKind::checkpoint,
       where_ + ": " + key + ": expected " + expected + ", found " + (found ? kTypeNames[found->index()] : "nothing"));
}

int64_t Metadata::integer(const std::string& key) const {
  const Value& v = need(key, "an integer");
  const auto n = as_integer(v);
  if (!n) wrong(key, "an integer", &v);
  return *n;
}
int64_t Metadata::integer(const std::string& key, int64_t fallback) const { return has(key) ? integer(key) : fallback; }

double Metadata::number(const std::string& key) const {
  const Value& v = need(key, "a number");
  if (const float* f = std::get_if<float>(&v)) return *f;
  if (const double* d = std::get_if<double>(&v)) return *d;
  const auto n = as_integer(v);
  if (!n) wrong(key, "a number", &v);
  return static_cast<double>(*n);
}
double Metadata::number(const std::string& key, double fallback) const { return has(key) ? number(key) : fallback; }

bool Metadata::flag(const std::string& key, bool fallback) const {
  const Value* v = find(key);
  if (!v) return fallback;
  if (!std::holds_alternative<bool>(*v)) wrong(key, "a bool", v);
  return std::get<bool>(*v);
}

std::string Metadata::text(const std::string& key) const {
  const Value& v = need(key, "a string");
  if (!std::holds_alternative<std::string>(v)) wrong(key, "a string", &v);
  return std::get<std::string>(v);
}
std::string Metadata::text(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

const std::vector<std::string>& Metadata::texts(const std::string& key) const {
  const Value& v = need(key, "an array of strings");
  const Array* array = std::get_if<Array>(&v);
  const auto* strings = array ? std::get_if<std::vector<std::string>>(array) : nullptr;
  if (!strings) wrong(key, "an array of strings", &v);
  return *strings;
}

std::vector<int64_t> Metadata::integers(const std::string& key) const {
  const Value* v = find(key);
  if (!v) return {};
  const Array* array = std::get_if<Array>(v);
  if (!array) wrong(key, "an array of integers", v);
  return std::visit(
      [&](const auto& list) -> std::vector<int64_t> {
        using List = std::decay_t<decltype(list)>;
        if constexpr (!std::is_same_v<List, std::monostate>) {
          if constexpr (kInteger<typename List::value_type>) return {list.begin(), list.end()};
        }
        wrong(key, "an array of integers", v);
      },
      *array);
}

std::vector<float> Metadata::numbers(const std::string& key) const {
  const Value* v = find(key);
  if (!v) return {};
  const Array* array = std::get_if<Array>(v);
  const auto* floats = array ? std::get_if<std::vector<float>>(array) : nullptr;
  if (!floats) wrong(key, "an array of f32", v);
  return *floats;
}

std::vector<bool> Metadata::flags(const std::string& key) const {
  if (const Value* v = find(key))
    if (const Array* array = std::get_if<Array>(v))
      if (const auto* bools = std::get_if<std::vector<bool>>(array)) return *bools;
  std::vector<bool> out;
  for (const int64_t i : integers(key)) out.push_back(i != 0);
  return out;
}

bool Metadata::is_array(const std::string& key) const {
  const Value* v = find(key);
  return v && std::holds_alternative<Array>(*v);
}

}  // namespace fewbit::gguf
