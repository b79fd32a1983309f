// A template and the variables that it is rendered with.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/text/jinja/interpreter.h"
#include "src/text/jinja/jinja.h"
#include "src/text/jinja/print.h"

namespace fewbit::jinja {
namespace {

// Builds values while JSON is parsed, so that deep nesting costs no stack.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(Workspace& w) : w_(w) {}
  Value result{};

  bool null() override { return add(Value::none()); }
  bool boolean(bool v) override { return add(Value::of(v)); }
  bool number_integer(number_integer_t v) override { return add(Value::of(int64_t{v})); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<uint64_t>(INT64_MAX))
      w_.unsupported(fmt::format("the number {} in the variables, which has more than 64 bits,", v));
    return add(Value::of(static_cast<int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t& text) override {
    // Digits without a point that no 64 bits hold arrive here; to Python they are whole numbers.
    if (text.find_first_of(".eE") == std::string::npos)
      w_.unsupported(fmt::format("the number {} in the variables, which has more than 64 bits,", text));
    return add(Value::of(v));
  }
  bool string(string_t& v) override { return add(w_.text(std::move(v))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(w_.dict()); }
  bool key(string_t& v) override {
    keys_.back() = w_.text(std::move(v));
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(w_.list({})); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool add(const Value& v) {
    if (open_.empty()) {
      result = v;
    } else if (open_.back().is(Type::dict)) {
      w_.put(*open_.back().dict, keys_.back(), v);
    } else {
      w_.claim(2 * sizeof(Value));
      open_.back().list->items.push_back(v);
    }
    return true;
  }
  bool open(const Value& v) {
    add(v);
    if (open_.size() >= static_cast<size_t>(kDataDepth))
      w_.refuse(fmt::format("the variables are nested more than {} deep", kDataDepth));
    open_.push_back(v);
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  Workspace& w_;
  std::vector<Value> open_{}, keys_{};
};

}  // namespace

Template::Template(std::unique_ptr<Syntax> syntax) : syntax_(std::move(syntax)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

std::string Template::render(const std::string& variables_json) const {
  Workspace w(syntax_->where, static_cast<int64_t>(variables_json.size()));
  Builder builder(w);
  if (!nlohmann::json::sax_parse(variables_json, &builder) || !builder.result.is(Type::dict))
    w.refuse("the variables are no JSON object");
  Interpreter run(*syntax_, w);
  for (const auto& [name, v] : builder.result.dict->entries) run.give(name.bytes(), v);
  return run.run();
}

}  // namespace fewbit::jinja
