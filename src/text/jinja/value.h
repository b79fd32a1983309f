#pragma once
// The values of a template, as Python has them. A value is 16 bytes and borrows what it points to: a literal from the
// syntax, everything else from the Workspace of one rendering, which frees all at its end. Nothing changes once it is
// made, but for namespaces and generators.
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fewbit::jinja {

enum class Type : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  string,
  list,
  tuple,
  dict,
  view,  // of a dict: keys(), values(), items()
  range,
  generator,  // what map, select and the like give: its items can be had once
  space,      // namespace()
  loop,
  macro,
  function,
  method,
};

struct Text {
  std::string bytes{};  // UTF-8
  int64_t length = 0;   // code points
  bool markup = false;  // what `safe` and `escape` give; + escapes what is put beside it
  bool ascii() const { return length == static_cast<int64_t>(bytes.size()); }
};
struct List;
struct Dict;
struct View;
struct Range;
struct Loop;
struct Macro;
struct Method;

struct Value {
  Type type = Type::undefined;
  Type owner = Type::undefined;  // of an undefined value: what lacked the attribute `text`
  union {
    int64_t integer = 0;  // of booleans too; which one of a function
    double real;
    const Text* text;  // of an undefined value: its name, or null
    List* list;        // list, tuple, generator
    Dict* dict;        // dict, space
    const View* view;
    const Range* range;
    Loop* loop;
    const Macro* macro;
    const Method* method;
  };

  static Value none() { return of(Type::none); }
  static Value of(Type type) {
    Value v;
    v.type = type;
    return v;
  }
  static Value of(bool b) {
    Value v = of(Type::boolean);
    v.integer = b;
    return v;
  }
  static Value of(int64_t i) {
    Value v = of(Type::integer);
    v.integer = i;
    return v;
  }
  static Value of(double d) {
    Value v = of(Type::real);
    v.real = d;
    return v;
  }
  static Value of(const Text* t) {
    Value v = of(Type::string);
    v.text = t;
    return v;
  }
  static Value missing(const Text* name, Type owner = Type::undefined) {
    Value v;
    v.owner = owner;
    v.text = name;
    return v;
  }
  bool is(Type t) const { return type == t; }
  bool whole() const { return type == Type::integer || type == Type::boolean; }
  bool number() const { return whole() || type == Type::real; }
  const std::string& bytes() const { return text->bytes; }
  double as_real() const { return type == Type::real ? real : static_cast<double>(integer); }
};

struct List {
  std::vector<Value> items{};
  size_t next = 0;       // of a generator: the first item that was not taken yet
  bool grouped = false;  // a tuple of groupby: its items are also .grouper and .list
};
struct Dict {
  std::vector<std::pair<Value, Value>> entries{};  // in the order in which they came
  std::unordered_multimap<uint64_t, uint32_t> places{};
};
struct View {
  enum class Kind : uint8_t { keys, values, items } kind;
  const Dict* of;
};
struct Range {
  int64_t start, stop, step, length;
};
struct Method {
  Value self;
  const Text* name;
};

}  // namespace fewbit::jinja
