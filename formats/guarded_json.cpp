#include "formats/guarded_json.h"

#include <array>
#include <cmath>
#include <limits>
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

struct Word {
  std::string_view text;
  double value;
};
constexpr std::array<Word, 3> kNonFinite = {{{"NaN", std::numeric_limits<double>::quiet_NaN()},
                                             {"Infinity", std::numeric_limits<double>::infinity()},
                                             {"-Infinity", -std::numeric_limits<double>::infinity()}}};

// A text in which every such word that stands outside of texts is a text as long as itself, so that the library reads
// it and counts the same bytes; `values` says which of all texts, keys among them, these are.
struct Plain {
  std::string text{};  // "": there was none, and what was given is plain
  std::unordered_map<size_t, double> values{};
};

Plain plain_json(std::string_view text) {
  Plain p;
  size_t texts = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (inside && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      texts += !inside;
      inside = !inside;
    } else if (!inside && (text[i] == 'N' || text[i] == 'I' || text[i] == '-')) {
      for (const Word& w : kNonFinite)
        if (text.substr(i, w.text.size()) == w.text) {
          if (p.text.empty()) p.text = text;
          p.text.replace(i, w.text.size(), '"' + std::string(w.text.size() - 2, ' ') + '"');
          p.values[texts++] = w.value;
          i += w.text.size() - 1;
          break;
        }
    }
  }
  return p;
}

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

  bool refuse(std::string what) {
    if (problem.empty()) problem = std::move(what);
    return false;
  }

 private:
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
  // `values` as plain_json() has them; they outlive the builder.
  Builder(const JsonBudget& budget, const std::unordered_map<size_t, double>& values) : Base(budget), values_(values) {}
  Json root{};

  bool null() override { return Base::null() && add(nullptr); }
  bool boolean(bool v) override { return Base::boolean(v) && add(v); }
  bool number_integer(typename Base::number_integer_t v) override { return Base::number_integer(v) && add(v); }
  bool number_unsigned(typename Base::number_unsigned_t v) override { return Base::number_unsigned(v) && add(v); }
  bool number_float(typename Base::number_float_t v, const typename Base::string_t& s) override {
    return Base::number_float(v, s) && add(v);
  }
  bool string(typename Base::string_t& s) override {
    if (const double* v = value_of_this_text()) return Base::number_float(*v, s) && add(*v);
    return Base::string(s) && add(std::move(s));
  }
  bool key(typename Base::string_t& s) override {
    if (const double* v = value_of_this_text())
      return Base::refuse("not JSON: the key of an object is no text but " + python_json(Json(*v)));
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

  // Null where the text that was just read is one.
  const double* value_of_this_text() {
    const auto found = values_.find(texts_++);
    return found == values_.end() ? nullptr : &found->second;
  }

  const std::unordered_map<size_t, double>& values_;
  size_t texts_ = 0;
  std::vector<Open> open_{};
};

// What is wrong with the text, "" where nothing is; `root` then is its tree.
template <class Json>
std::string problem_in(std::string_view text, const JsonBudget& budget, Json& root) {
  if (static_cast<int64_t>(text.size()) > budget.text)
    return "has " + human_bytes(static_cast<int64_t>(text.size())) + "; such a file may have " +
           human_bytes(budget.text);
  const Plain plain = budget.python ? plain_json(text) : Plain{};
  if (!plain.text.empty()) text = plain.text;
  Builder<Json> builder(budget, plain.values);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  root = std::move(builder.root);
  return std::move(builder.problem);
}

template <class Json>
Json parsed(std::string_view text, const std::string& where, const JsonBudget& budget) {
  Json root;
  if (const std::string problem = problem_in(text, budget, root); !problem.empty())
    fail(ErrorKind::checkpoint, where + ": " + problem);
  return root;
}

template <class Json>
Json parsed_or_discarded(std::string_view text, const JsonBudget& budget) {
  Json root;
  if (!problem_in(text, budget, root).empty()) return Json(Json::value_t::discarded);
  return root;
}

// "" where `v` is anything but a number that is not finite.
template <class Json>
std::string_view word_of(const Json& v) {
  if (!v.is_number_float()) return "";
  const double x = v.template get<double>();
  return std::isfinite(x) ? "" : kNonFinite[std::isnan(x) ? 0 : x > 0 ? 1 : 2].text;
}

template <class Json>
void write_python(const Json& v, int indent, int depth, std::string& out) {
  const auto dump = [](const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); };
  if (!v.is_structured() || v.empty()) {
    const std::string_view word = word_of(v);
    out += word.empty() ? dump(v) : std::string(word);
    return;
  }
  const auto line = [&](int at) {
    if (indent >= 0) (out += '\n').append(static_cast<size_t>(indent * at), ' ');
  };
  out += v.is_object() ? '{' : '[';
  bool first = true;
  for (const auto& [key, value] : v.items()) {
    if (!first) out += ',';
    first = false;
    line(depth + 1);
    if (v.is_object()) out += dump(Json(key)) + (indent >= 0 ? ": " : ":");
    write_python(value, indent, depth + 1, out);
  }
  line(depth);
  out += v.is_object() ? '}' : ']';
}

template <class Json>
std::string python_text(const Json& v, int indent) {
  std::string out;
  write_python(v, indent, 0, out);
  return out;
}

template <class Json>
Json& put_words(Json& v) {
  if (v.is_structured())
    for (Json& part : v) put_words(part);
  else if (const std::string_view word = word_of(v); !word.empty())
    v = std::string(word);
  return v;
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

std::string python_json(const nlohmann::json& v, int indent) { return python_text(v, indent); }
std::string python_json(const nlohmann::ordered_json& v, int indent) { return python_text(v, indent); }

nlohmann::json with_words_for_non_finite(nlohmann::json v) { return std::move(put_words(v)); }
nlohmann::ordered_json with_words_for_non_finite(nlohmann::ordered_json v) { return std::move(put_words(v)); }

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
