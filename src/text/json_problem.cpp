#include "src/text/json_problem.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace fewbit {
namespace {

constexpr size_t kDepth = 190;  // a template's own values may be a little deeper

class Inspector : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string problem{};

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t v) override {
    return v <= static_cast<uint64_t>(INT64_MAX) || refused(fmt::format("the number {} has more than 64 bits", v));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return text.find_first_of(".eE") != std::string::npos ||
           refused(fmt::format("the number {} has more than 64 bits", text));
  }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return deeper(); }
  bool key(string_t&) override { return true; }
  bool end_object() override { return --depth_, true; }
  bool start_array(size_t) override { return deeper(); }
  bool end_array() override { return --depth_, true; }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return refused(fmt::format("is no JSON at byte {}", at));
  }

 private:
  bool refused(std::string what) {
    problem = std::move(what);
    return false;
  }
  bool deeper() { return ++depth_ <= kDepth || refused(fmt::format("is nested more than {} deep", kDepth)); }
  size_t depth_ = 0;
};

}  // namespace

std::string json_problem(std::string_view text) {
  Inspector inspector;
  nlohmann::json::sax_parse(text, &inspector);
  return inspector.problem;
}

}  // namespace fewbit
