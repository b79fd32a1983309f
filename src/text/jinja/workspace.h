#pragma once
// What one rendering owns and may spend: its values, and limits of steps, depth and memory, so that a hostile template
// ends with a message instead of taking the machine. Also what needs nothing else: truth, equality, order, hashes.
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "src/text/jinja/site.h"
#include "src/text/jinja/value.h"

namespace fewbit::jinja {

// A rendering may hold so many bytes, make texts of so many and take so many steps, and more where its input is large.
inline constexpr int64_t kMemory = int64_t{80} << 20, kMemoryPerByte = 64;
inline constexpr int64_t kLongestText = int64_t{12} << 20, kTextPerByte = 4;
inline constexpr int64_t kSteps = int64_t{16} << 20, kStepsPerByte = 256;
inline constexpr int kDepth = 1000;     // of expressions and blocks that are being evaluated, inside of each other
inline constexpr int kDataDepth = 200;  // of lists in lists

class Workspace {
 public:
  Workspace(const std::string& where, int64_t input_bytes);
  Site site;

  void step(int64_t n = 1) {
    steps_ -= n;
    if (steps_ < 0) too_many_steps();
  }
  // For work that is linear in `bytes` of text.
  void read(int64_t bytes) { step(1 + bytes / 16); }
  void claim(int64_t bytes);       // before the memory is taken
  void claim_text(int64_t bytes);  // of a text that is being put together: not longer than allowed
  [[noreturn]] void refuse(const std::string& what) const { site.refuse(what); }
  [[noreturn]] void unsupported(const std::string& what) const { site.unsupported(what); }

  Value text(std::string bytes, bool markup = false);
  Value character(uint32_t code);
  Value list(std::vector<Value> items, Type type = Type::list);
  Value dict();
  Value space();
  Value view(View);
  Value range(int64_t start, int64_t stop, int64_t step);
  Value method(Value self, const Text* name);
  void put(Dict&, Value key, Value value);
  const Value* find(const Dict&, const Value& key);
  const Value* find(const Dict&, std::string_view key);

  // Keeps an object until the rendering ends.
  template <class T>
  T* keep(std::deque<T>& in, T object, int64_t bytes) {
    claim(bytes + static_cast<int64_t>(sizeof(T)));
    in.push_back(std::move(object));
    return &in.back();
  }

  bool equal(const Value& a, const Value& b, int depth = 0);
  // Whether a is before b. Numbers, texts, lists and tuples have an order; others are refused, naming `op`.
  bool less(const Value& a, const Value& b, const char* op = "<", int depth = 0);
  uint64_t hash(const Value&, int depth = 0);  // refuses what Python cannot hash
  // What iterating gives: a borrowed list of items. A generator is empty afterwards.
  const std::vector<Value>& items(const Value&);
  bool iterable(const Value&) const;

  int depth = 0;

 private:
  [[noreturn]] void too_many_steps() const;
  int64_t steps_, memory_, longest_;
  std::deque<Text> texts_{};
  std::deque<List> lists_{};
  std::deque<Dict> dicts_{};
  std::deque<View> views_{};
  std::deque<Range> ranges_{};
  std::deque<Method> methods_{};
  std::unordered_map<uint32_t, Value> characters_{};
};

// One level deeper for as long as it lives.
class Deeper {
 public:
  explicit Deeper(Workspace& w) : w_(w) {
    w.step();
    if (++w.depth > kDepth) too_deep();
  }
  ~Deeper() { --w_.depth; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  [[noreturn]] void too_deep();
  Workspace& w_;
};

bool truthy(const Value&);
const char* name_of(Type);  // Python's: "int", "str", …
// "'x' is undefined" and the like.
std::string why_undefined(const Value&);
// A Text of bytes that are UTF-8.
Text text_of(std::string bytes, bool markup = false);

}  // namespace fewbit::jinja
