#include "formats/guarded_json.h"

#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/core/file_io.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

// Bytes in memory, with what the allocator and growing vectors add: of a value in its list or object, of a list or an
// object itself, of a key with its place, and of a text; the latter two besides their characters.
constexpr int64_t kValue = 32, kContainer = 64, kKey = 112, kText = 48;

// Counts what is parsed, and stops the parser by an answer of false; `problem` then says why.
template <class Json>
class Guard : public nlohmann::json_sax<Json> {
 public:
  using Sax = nlohmann::json_sax<Json>;
  using typename Sax::binary_t;
  using typename Sax::number_float_t;
  using typename Sax::number_integer_t;
  using typename Sax::number_unsigned_t;
  using typename Sax::string_t;

  explicit Guard(const JsonBudget& budget) : budget_(budget), left_(budget.memory) {}
  std::string problem{};

  bool null() override { return take(kValue); }
  bool boolean(bool) override { return take(kValue); }
  bool number_integer(number_integer_t) override { return take(kValue); }
  bool number_unsigned(number_unsigned_t) override { return take(kValue); }
  bool number_float(number_float_t, const string_t&) override { return take(kValue); }
  bool string(string_t& s) override { return take(kValue + kText + static_cast<int64_t>(s.size())); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& s) override { return take(kKey + static_cast<int64_t>(s.size())); }
  bool start_object(size_t) override { return deeper(); }
  bool start_array(size_t) override { return deeper(); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& e) override {
    constexpr int kOutOfRange = 406;  // of a number, by the library's list
    return refuse((e.id == kOutOfRange ? "a number is beyond the range of a double at byte "
                                       : "not JSON: syntax error at byte ") +
                  std::to_string(at));
  }

 private:
  bool refuse(std::string what) {
    if (problem.empty()) problem = std::move(what);
    return false;
  }
  bool take(int64_t bytes) {
    return (left_ -= bytes) >= 0 || refuse("its values need more than " + human_bytes(budget_.memory) +
                                           " of memory, which is the limit for such a file");
  }
  bool deeper() {
    if (++depth_ > kJsonDepth) return refuse("is nested more than " + std::to_string(kJsonDepth) + " deep");
    return take(kValue + kContainer);
  }

  JsonBudget budget_;
  int64_t left_;
  int depth_ = 0;
};

// Builds the tree. The library's own parser looks for each key of an ordered object among all before it.
template <class Json>
class Builder final : public Guard<Json> {
 public:
  using Base = Guard<Json>;
  using Base::Base;
  Json root{};

  bool null() override { return Base::null() && add(nullptr); }
  bool boolean(bool v) override { return Base::boolean(v) && add(v); }
  bool number_integer(typename Base::number_integer_t v) override { return Base::number_integer(v) && add(v); }
  bool number_unsigned(typename Base::number_unsigned_t v) override { return Base::number_unsigned(v) && add(v); }
  bool number_float(typename Base::number_float_t v, const typename Base::string_t& s) override {
    return Base::number_float(v, s) && add(v);
  }
  bool string(typename Base::string_t& s) override { return Base::string(s) && add(std::move(s)); }
  bool key(typename Base::string_t& s) override {
    if (!Base::key(s)) return false;
    open_.back().key = std::move(s);
    return true;
  }
  bool start_object(size_t n) override { return Base::start_object(n) && open(Json::object()); }
  bool start_array(size_t n) override { return Base::start_array(n) && open(Json::array()); }
  bool end_object() override { return open_.pop_back(), Base::end_object(); }
  bool end_array() override { return open_.pop_back(), Base::end_array(); }

 private:
  // An object or list that is being filled. It does not move while its parts are open.
  struct Open {
    Json* at;
    std::string key{};                                 // of the next value
    std::unordered_map<std::string, size_t> places{};  // of keys in an ordered object
  };

  Json* put(Json&& v) {
    if (open_.empty()) return &(root = std::move(v));
    Open& o = open_.back();
    if (o.at->is_array()) {
      o.at->push_back(std::move(v));
      return &o.at->back();
    }
    auto& members = o.at->template get_ref<typename Json::object_t&>();
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      const auto [place, fresh] = o.places.try_emplace(o.key, members.size());
      if (fresh) {
        members.emplace_back(std::move(o.key), std::move(v));
        return &members.back().second;
      }
      return &(std::next(members.begin(), static_cast<std::ptrdiff_t>(place->second))->second = std::move(v));
    } else {
      return &(members[std::move(o.key)] = std::move(v));
    }
  }
  bool add(Json v) { return put(std::move(v)), true; }
  bool open(Json v) {
    Json* const at = put(std::move(v));
    open_.push_back({.at = at});
    return true;
  }

  std::vector<Open> open_{};
};

template <class Events>
std::string problem_in(std::string_view text, const JsonBudget& budget, Events& events) {
  if (static_cast<int64_t>(text.size()) > budget.text)
    return "has " + human_bytes(static_cast<int64_t>(text.size())) + "; such a file may have " +
           human_bytes(budget.text);
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  return std::move(events.problem);
}

template <class Json>
Json parsed(std::string_view text, const std::string& where, const JsonBudget& budget) {
  Builder<Json> builder(budget);
  if (const std::string problem = problem_in(text, budget, builder); !problem.empty())
    fail(ErrorKind::checkpoint, where + ": " + problem);
  return std::move(builder.root);
}

template <class Json>
Json parsed_or_discarded(std::string_view text, const JsonBudget& budget) {
  Builder<Json> builder(budget);
  if (!problem_in(text, budget, builder).empty()) return Json(Json::value_t::discarded);
  return std::move(builder.root);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where, const JsonBudget& budget) {
  return parsed<nlohmann::json>(text, where, budget);
}
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where, const JsonBudget& budget) {
  return parsed<nlohmann::ordered_json>(text, where, budget);
}

nlohmann::json json_or_discarded(std::string_view text, const JsonBudget& budget) {
  return parsed_or_discarded<nlohmann::json>(text, budget);
}
nlohmann::ordered_json ordered_json_or_discarded(std::string_view text, const JsonBudget& budget) {
  return parsed_or_discarded<nlohmann::ordered_json>(text, budget);
}

void take_apart(const std::string& where, const std::function<void()>& read) {
  try {
    read();
  } catch (const nlohmann::json::exception& e) {
    const std::string what = e.what();  // "[json.exception.type_error.302] type must be string, but is null"
    const size_t name = what.find("] ");
    fail(ErrorKind::checkpoint,
         where + ": is not made as expected: " + (name == std::string::npos ? what : what.substr(name + 2)));
  }
}

std::string json_text(const std::filesystem::path& path, const JsonBudget& budget) {
  const File file = File::read(path);
  if (file.size() > budget.text)
    fail(ErrorKind::checkpoint,
         path.string() + ": has " + human_bytes(file.size()) + "; such a file may have " + human_bytes(budget.text));
  return file.read_all();
}

}  // namespace fewbit
