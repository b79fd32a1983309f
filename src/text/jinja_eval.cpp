// The interpreter. Values are JSON; "undefined" is a discarded value. Scopes are copies, so that what a loop
// sets ends with its pass; a namespace lives in the scope that made it.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/text/jinja.h"

namespace fewbit::jinja {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kBlanks = " \t\r\n";

Json undefined() { return Json(Json::value_t::discarded); }

bool truthy(const Json& v) {
  if (v.is_discarded() || v.is_null()) return false;
  if (v.is_boolean()) return v.get<bool>();
  if (v.is_number()) return v.get<double>() != 0;
  return v.is_string() ? !v.get_ref<const std::string&>().empty() : !v.empty();
}

std::string printed(const Json& v) {
  if (v.is_discarded()) return "";
  if (v.is_null()) return "None";
  if (v.is_boolean()) return v.get<bool>() ? "True" : "False";
  return v.is_string() ? v.get<std::string>() : v.dump();
}

std::string stripped(const std::string& s, std::string_view characters, bool left, bool right) {
  const size_t begin = left ? std::min(s.find_first_not_of(characters), s.size()) : 0;
  const size_t last = right ? s.find_last_not_of(characters) : s.size() - 1;
  return last == std::string::npos || last + 1 <= begin ? "" : s.substr(begin, last + 1 - begin);
}

std::string mapped(std::string s, int (*f)(int)) {
  for (char& c : s)
    if (static_cast<unsigned char>(c) < 0x80) c = static_cast<char>(f(c));
  return s;
}

Json split_text(const std::string& s, const std::string& separator) {
  Json parts = Json::array();
  size_t begin = 0;
  for (size_t at; (at = s.find(separator, begin)) != std::string::npos; begin = at + separator.size())
    parts.push_back(s.substr(begin, at - begin));
  parts.push_back(s.substr(begin));
  return parts;
}

std::string replaced(std::string s, const std::string& from, const std::string& to) {
  for (size_t at = 0; !from.empty() && (at = s.find(from, at)) != std::string::npos; at += to.size())
    s.replace(at, from.size(), to);
  return s;
}

class Interpreter {
 public:
  Interpreter(Json variables, std::string where) : where_(std::move(where)) { scopes_.push_back(std::move(variables)); }

  void run(const std::vector<Node>& nodes) {
    for (const Node& n : nodes) run(n);
  }
  std::string text() { return std::move(out_); }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::checkpoint, fmt::format("{}: {}", where_, what));
  }

  void run(const Node& n) {
    switch (n.kind) {
      case Node::Kind::text:
        out_ += n.text;
        return;
      case Node::Kind::output:
        out_ += printed(value(*n.value));
        return;
      case Node::Kind::set:
        return assign(n);
      case Node::Kind::conditional:
        for (const Branch& b : n.branches)
          if (!b.condition || truthy(value(*b.condition))) return run(b.body);
        return;
      case Node::Kind::loop:
        return loop(n);
    }
  }

  Json* find(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (scope->contains(name)) return &(*scope)[name];
    return nullptr;
  }

  void assign(const Node& n) {
    Json v = value(*n.value);
    if (n.attribute.empty()) {
      scopes_.back()[n.text] = std::move(v);
      return;
    }
    Json* object = find(n.text);
    if (!object || !object->is_object()) refuse(fmt::format("\"{}\" is no namespace", n.text));
    (*object)[n.attribute] = std::move(v);
  }

  // Sets the targets of a loop to an item; a list of as many items is taken apart.
  void bind(const Node& n, const Json& item) {
    if (n.targets.size() == 1) {
      scopes_.back()[n.targets[0]] = item;
      return;
    }
    if (!item.is_array() || item.size() != n.targets.size())
      refuse(fmt::format("a loop over {} names met {}", n.targets.size(), item.dump()));
    for (size_t i = 0; i < n.targets.size(); ++i) scopes_.back()[n.targets[i]] = item[i];
  }

  void loop(const Node& n) {
    Json list = value(*n.value);
    if (list.is_object()) {
      Json keys = Json::array();
      for (const auto& [key, ignored] : list.items()) keys.push_back(key);
      list = std::move(keys);
    }
    if (!list.is_array()) refuse(fmt::format("a loop needs a list, found \"{}\"", printed(list)));
    std::vector<Json> items;
    for (const Json& item : list) {
      scopes_.push_back(Json::object());
      bind(n, item);
      if (!n.filter || truthy(value(*n.filter))) items.push_back(item);
      scopes_.pop_back();
    }
    for (size_t i = 0; i < items.size(); ++i) {
      scopes_.push_back(Json::object());
      bind(n, items[i]);
      Json state = {{"index", i + 1},
                    {"index0", i},
                    {"first", i == 0},
                    {"last", i + 1 == items.size()},
                    {"length", items.size()},
                    {"revindex", items.size() - i},
                    {"revindex0", items.size() - i - 1}};
      if (i > 0) state["previtem"] = items[i - 1];
      if (i + 1 < items.size()) state["nextitem"] = items[i + 1];
      scopes_.back()["loop"] = std::move(state);
      run(n.body);
      scopes_.pop_back();
    }
  }

  Json value(const Expr& e) {
    const auto arg = [&](size_t i) { return value(*e.args[i]); };
    switch (e.kind) {
      case Expr::Kind::literal:
        return std::visit([](const auto& v) { return literal(v); }, e.literal);
      case Expr::Kind::name: {
        const Json* v = find(e.text);
        return v ? *v : undefined();
      }
      case Expr::Kind::list: {
        Json list = Json::array();
        for (size_t i = 0; i < e.args.size(); ++i) list.push_back(arg(i));
        return list;
      }
      case Expr::Kind::attribute:
        return element(arg(0), Json(e.text));
      case Expr::Kind::index:
        return element(arg(0), arg(1));
      case Expr::Kind::slice:
        return slice(e);
      case Expr::Kind::call:
        return call(e);
      case Expr::Kind::method:
        return method(e);
      case Expr::Kind::filter:
        return filter(e);
      case Expr::Kind::test:
        return test(e.text, arg(0));
      case Expr::Kind::unary:
        return e.text == "not" ? Json(!truthy(arg(0))) : Json(-integer(arg(0)));
      case Expr::Kind::binary:
        return binary(e);
      case Expr::Kind::conditional:
        if (truthy(arg(1))) return arg(0);
        return e.args[2] ? arg(2) : undefined();
    }
    bug("an expression of no kind");
  }

  static Json literal(std::monostate) { return nullptr; }
  template <class T>
  static Json literal(const T& v) {
    return v;
  }

  int64_t integer(const Json& v) const {
    if (!v.is_number_integer()) refuse(fmt::format("expected a whole number, found \"{}\"", printed(v)));
    return v.get<int64_t>();
  }

  Json element(const Json& of, const Json& key) const {
    if (of.is_discarded()) refuse(fmt::format("\"{}\" of something undefined", printed(key)));
    if (of.is_object() && key.is_string() && of.contains(key.get<std::string>())) return of[key.get<std::string>()];
    if (of.is_array() && key.is_number_integer()) {
      const auto n = static_cast<int64_t>(of.size());
      const int64_t i = key.get<int64_t>() < 0 ? key.get<int64_t>() + n : key.get<int64_t>();
      if (i >= 0 && i < n) return of[static_cast<size_t>(i)];
    }
    return undefined();
  }

  Json slice(const Expr& e) {
    const Json of = value(*e.args[0]);
    if (!of.is_array() && !of.is_string()) refuse("a slice needs a list or a text");
    const auto n = static_cast<int64_t>(of.is_string() ? of.get_ref<const std::string&>().size() : of.size());
    const int64_t step = e.args[3] ? integer(value(*e.args[3])) : 1;
    if (step == 0) refuse("a slice of step 0");
    const auto bound = [&](size_t i, int64_t otherwise) {
      if (!e.args[i]) return otherwise;
      const int64_t v = integer(value(*e.args[i]));
      return std::clamp<int64_t>(v < 0 ? v + n : v, step > 0 ? 0 : -1, step > 0 ? n : n - 1);
    };
    const int64_t begin = bound(1, step > 0 ? 0 : n - 1), end = bound(2, step > 0 ? n : -1);
    Json list = Json::array();
    std::string text;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      if (of.is_string())
        text += of.get_ref<const std::string&>()[static_cast<size_t>(i)];
      else
        list.push_back(of[static_cast<size_t>(i)]);
    }
    return of.is_string() ? Json(text) : list;
  }

  Json call(const Expr& e) {
    std::vector<Json> args;
    for (const ExprPtr& a : e.args) args.push_back(value(*a));
    if (e.text == "raise_exception") refuse("the chat template refuses: " + (args.empty() ? "" : printed(args[0])));
    if (e.text == "namespace") {
      Json object = Json::object();
      for (size_t i = 0; i < e.keywords.size(); ++i) object[e.keywords[i]] = args[args.size() - e.keywords.size() + i];
      return object;
    }
    if (e.text == "range" && (args.size() == 1 || args.size() == 2)) {
      Json list = Json::array();
      for (int64_t i = args.size() == 2 ? integer(args[0]) : 0; i < integer(args.back()); ++i) list.push_back(i);
      return list;
    }
    fail(ErrorKind::unsupported,
         fmt::format("{}: the function \"{}\" is outside of the supported subset of Jinja", where_, e.text));
  }

  Json method(const Expr& e) {
    const Json self = value(*e.args[0]);
    const auto text_at = [&](size_t i, const std::string& otherwise) {
      return e.args.size() > i ? printed(value(*e.args[i])) : otherwise;
    };
    if (e.text == "get" && self.is_object()) {
      const std::string key = text_at(1, "");
      return self.contains(key) ? self[key] : e.args.size() > 2 ? value(*e.args[2]) : Json(nullptr);
    }
    if (e.text == "items" && self.is_object()) {
      Json list = Json::array();
      for (const auto& [key, v] : self.items()) list.push_back(Json::array({key, v}));
      return list;
    }
    if (!self.is_string()) refuse(fmt::format("\"{}\" needs a text, found \"{}\"", e.text, printed(self)));
    const auto& s = self.get_ref<const std::string&>();
    if (e.text == "strip") return stripped(s, text_at(1, std::string(kBlanks)), true, true);
    if (e.text == "lstrip") return stripped(s, text_at(1, std::string(kBlanks)), true, false);
    if (e.text == "rstrip") return stripped(s, text_at(1, std::string(kBlanks)), false, true);
    if (e.text == "startswith") return s.starts_with(text_at(1, ""));
    if (e.text == "endswith") return s.ends_with(text_at(1, ""));
    if (e.text == "upper") return mapped(s, std::toupper);
    if (e.text == "lower") return mapped(s, std::tolower);
    if (e.text == "replace") return replaced(s, text_at(1, ""), text_at(2, ""));
    if (e.text == "split" && !text_at(1, "").empty()) return split_text(s, text_at(1, ""));
    fail(ErrorKind::unsupported,
         fmt::format("{}: this use of \"{}\" is outside of the supported subset of Jinja", where_, e.text));
  }

  Json filter(const Expr& e) {
    const Json v = value(*e.args[0]);
    const Json more = e.args.size() > 1 ? value(*e.args[1]) : undefined();
    if (e.text == "default") return v.is_discarded() ? (more.is_discarded() ? Json("") : more) : v;
    if (e.text == "tojson") return v.dump(more.is_number_integer() ? more.get<int>() : -1);
    if (e.text == "string" || e.text == "safe") return printed(v);
    if (e.text == "trim") return stripped(printed(v), kBlanks, true, true);
    if (e.text == "upper") return mapped(printed(v), std::toupper);
    if (e.text == "lower") return mapped(printed(v), std::tolower);
    if (e.text == "length" || e.text == "count")
      return v.is_string() ? length_of(v.get<std::string>()) : static_cast<int64_t>(v.size());
    if (!v.is_array()) refuse(fmt::format("\"{}\" needs a list, found \"{}\"", e.text, printed(v)));
    if (e.text == "first") return v.empty() ? undefined() : v.front();
    if (e.text == "last") return v.empty() ? undefined() : v.back();
    std::string joined;  // join
    for (size_t i = 0; i < v.size(); ++i) joined += (i ? printed(more) : "") + printed(v[i]);
    return joined;
  }

  static int64_t length_of(const std::string& s) {  // code points
    return std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  }

  static bool test(const std::string& name, const Json& v) {
    if (name == "defined") return !v.is_discarded();
    if (name == "undefined") return v.is_discarded();
    if (name == "none") return v.is_null();
    if (name == "string") return v.is_string();
    if (name == "mapping") return v.is_object();
    if (name == "boolean") return v.is_boolean();
    if (name == "number") return v.is_number();
    if (name == "true") return v.is_boolean() && v.get<bool>();
    if (name == "false") return v.is_boolean() && !v.get<bool>();
    return v.is_array() || v.is_object() || v.is_string();  // iterable, sequence
  }

  Json binary(const Expr& e) {
    const Json a = value(*e.args[0]);
    if (e.text == "and") return truthy(a) ? value(*e.args[1]) : a;
    if (e.text == "or") return truthy(a) ? a : value(*e.args[1]);
    const Json b = value(*e.args[1]);
    if (e.text == "~") return printed(a) + printed(b);
    if (e.text == "==" || e.text == "!=")
      return (a.is_discarded() || b.is_discarded() ? a.type() == b.type() : a == b) == (e.text == "==");
    if (e.text == "in") return contains(b, a);
    if (e.text == "+" && a.is_string() && b.is_string()) return a.get<std::string>() + b.get<std::string>();
    if (e.text == "+" && a.is_array() && b.is_array()) {
      Json sum = a;
      for (const Json& item : b) sum.push_back(item);
      return sum;
    }
    const int64_t x = integer(a), y = integer(b);
    if (e.text == "+") return x + y;
    if (e.text == "-") return x - y;
    if (e.text == "*") return x * y;
    if (e.text == "<") return x < y;
    if (e.text == ">") return x > y;
    if (e.text == "<=") return x <= y;
    if (e.text == ">=") return x >= y;
    if (y == 0) refuse("a division by 0");
    const int64_t rest = ((x % y) + y) % y;  // Python's: of the divisor's sign
    return e.text == "%" ? rest : (x - rest) / y;
  }

  bool contains(const Json& in, const Json& v) const {
    if (in.is_string()) return in.get_ref<const std::string&>().find(printed(v)) != std::string::npos;
    if (in.is_object()) return v.is_string() && in.contains(v.get<std::string>());
    if (in.is_array()) return std::find(in.begin(), in.end(), v) != in.end();
    refuse(fmt::format("\"in\" needs a text, a list or a mapping, found \"{}\"", printed(in)));
  }

  std::string where_, out_;
  std::vector<Json> scopes_;
};

}  // namespace

std::string render(const std::vector<Node>& nodes, const std::string& variables_json, const std::string& where) {
  Interpreter run(Json::parse(variables_json), where);
  run.run(nodes);
  return run.text();
}

}  // namespace fewbit::jinja
