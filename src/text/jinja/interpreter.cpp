// Tags: what a node does.
#include "src/text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/text/jinja/print.h"

namespace fewbit::jinja {

// Sends what is printed into a text of its own.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& in) : in_(in) { std::swap(before_, in_.out_); }
  ~Capture() { std::swap(before_, in_.out_); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::string text() { return std::move(in_.out_); }

 private:
  Interpreter& in_;
  std::string before_{};
};

Interpreter::Interpreter(const Syntax& syntax, Workspace& workspace) : w(workspace), syntax_(syntax) {
  scope_ = open(nullptr, {});
  for (size_t i = 0; i < std::size(kFunctions); ++i) {
    Value f = Value::of(Type::function);
    f.integer = static_cast<int64_t>(i);
    give(kFunctions[i], f);
  }
}

void Interpreter::give(const std::string& name, Value value) {
  const auto at = std::find(syntax_.names.begin(), syntax_.names.end(), name);
  if (at != syntax_.names.end()) scope_->set(static_cast<Symbol>(at - syntax_.names.begin()), value);
}

std::string Interpreter::run() {
  scope_ = open(scope_, syntax_.hidden);
  run(syntax_.nodes);
  return std::move(out_);
}

Scope* Interpreter::open(Scope* around, const std::vector<Symbol>& hidden) {
  w.claim(64);
  w.step(static_cast<int64_t>(hidden.size() * syntax_.texts.size() / kLooksInAStep));
  Scope* scope = &scopes_.emplace_back();
  scope->parent = around;
  for (const Symbol s : hidden) {
    Value undefined;
    for (const Text& t : syntax_.texts)
      if (t.bytes == syntax_.names[static_cast<size_t>(s)]) undefined.text = &t;
    scope->set(s, undefined);
  }
  return scope;
}

void Interpreter::print(const std::string& text) {
  w.read(static_cast<int64_t>(text.size()));
  w.claim_text(static_cast<int64_t>(out_.size() + text.size()));
  out_ += text;
}

Interpreter::Flow Interpreter::run(const std::vector<Node>& nodes) {
  for (const Node& n : nodes)
    if (const Flow flow = run(n); flow != Flow::on) return flow;
  return Flow::on;
}

Interpreter::Flow Interpreter::run(const Node& n) {
  const Deeper deeper(w);
  w.site.line = n.line;
  switch (n.kind) {
    case Node::Kind::text:
      print(n.value.bytes());
      return Flow::on;
    case Node::Kind::output:
      if (const Value v = eval(*n.expr); v.is(Type::string))
        print(v.bytes());
      else
        print(str_of(w, v));
      return Flow::on;
    case Node::Kind::set:
      assign(*n.targets[0], eval(*n.expr));
      return Flow::on;
    case Node::Kind::set_block:
      captured_ = w.text(captured(n.body, n.hidden));
      assign(*n.targets[0], eval(*n.expr));
      return Flow::on;
    case Node::Kind::conditional:
      return conditional(n);
    case Node::Kind::loop:
      return loop(n);
    case Node::Kind::macro:
      macro(n);
      return Flow::on;
    case Node::Kind::call: {
      scope_->kept = true;
      w.claim(sizeof(Macro));
      Value caller = Value::of(Type::macro);
      caller.macro = &macros_.emplace_back(Macro{&n, scope_});
      print(str_of(w, call(*n.expr, &caller)));
      return Flow::on;
    }
    case Node::Kind::filter:
      captured_ = w.text(captured(n.body, n.hidden));
      print(str_of(w, eval(*n.expr)));
      return Flow::on;
    case Node::Kind::with:
    case Node::Kind::scope: {
      Scope* const around = scope_;
      Scope* const inner = open(around, n.hidden);
      for (size_t i = 0; i < n.values.size(); ++i) inner->set(n.targets[i]->symbol, eval(*n.values[i]));
      scope_ = inner;
      const Flow flow = run(n.body);
      scope_ = around;
      return flow;
    }
    case Node::Kind::leave:
      return Flow::leave;
    case Node::Kind::skip:
      return Flow::skip;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::conditional(const Node& n) {
  for (const Branch& b : n.branches)
    if (!b.condition || truthy(eval(*b.condition))) return run(b.body);
  return Flow::on;
}

std::string Interpreter::captured(const std::vector<Node>& nodes, const std::vector<Symbol>& hidden) {
  Scope* const around = scope_;
  Capture capture(*this);
  scope_ = open(around, hidden);
  run(nodes);
  scope_ = around;
  return capture.text();
}

void Interpreter::macro(const Node& n) {
  scope_->kept = true;
  w.claim(sizeof(Macro));
  Value v = Value::of(Type::macro);
  v.macro = &macros_.emplace_back(Macro{&n, scope_});
  scope_->set(n.symbol, v);
}

void Interpreter::assign(const Expr& target, const Value& v) {
  if (target.kind == Expr::Kind::name) {
    w.step(static_cast<int64_t>(scope_->variables.size() / kLooksInAStep));
    return scope_->set(target.symbol, v);
  }
  if (target.kind == Expr::Kind::attribute) {
    const Value space = eval(*target.args[0]);
    if (!space.is(Type::space)) w.refuse(fmt::format("\"{}\" is no namespace", target.args[0]->text->bytes));
    if (target.text->bytes.starts_with('_')) w.refuse("attributes of a namespace cannot begin with an underscore");
    return w.put(*space.dict, Value::of(target.text), v);
  }
  const std::vector<Value> parts = w.items(v);
  if (parts.size() != target.args.size())
    w.refuse(fmt::format("{} names are set to {} values", target.args.size(), parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) assign(*target.args[i], parts[i]);
}

// One more item that the loop's filter lets pass.
bool Interpreter::fetch(Loop& l) {
  const Node& n = *l.node;
  while (n.condition && l.next < l.items->size()) {
    const Value item = (*l.items)[l.next++];
    w.step();
    Scope* const around = scope_;
    scope_ = open(l.around, {});
    assign(*n.targets[0], item);
    const bool passes = truthy(eval(*n.condition));
    scope_ = around;
    if (!passes) continue;
    w.claim(2 * sizeof(Value));
    l.passed.push_back(item);
    return true;
  }
  return false;
}

Interpreter::Flow Interpreter::loop(const Node& n) {
  const Value over = eval(*n.expr);
  if (over.is(Type::undefined) && over.owner == Type::undefined && !over.text) w.refuse(why_undefined(over));
  w.claim(sizeof(Loop));
  Loop& l = loops_.emplace_back();
  l.node = &n;
  l.around = scope_;
  l.items = &w.items(over);
  if (!run_loop(n, l) && !n.otherwise.empty()) {
    Scope* const around = scope_;
    scope_ = open(around, {});
    const Flow flow = run(n.otherwise);
    scope_ = around;
    return flow;
  }
  return Flow::on;
}

// Whether a pass ran to its end: only then Jinja leaves "else" out.
bool Interpreter::run_loop(const Node& n, Loop& l) {
  Scope* const around = scope_;
  Value self = Value::of(Type::loop);
  self.loop = &l;
  bool whole = false;
  Scope* inner = nullptr;
  for (l.index = 0; l.index < l.ready().size() || fetch(l); ++l.index) {
    w.step();  // an empty body takes none
    scope_ = l.around;
    if (!inner || inner->kept || !n.hidden.empty())
      inner = open(l.around, n.hidden);
    else
      inner->variables.clear();
    scope_ = inner;
    assign(*n.targets[0], l.ready()[l.index]);
    inner->set(n.symbol, self);
    const Flow flow = run(n.body);
    if (flow == Flow::leave) break;
    whole |= flow == Flow::on;
  }
  scope_ = around;
  return whole;
}

// The attributes of a loop.
Value Interpreter::loop_attribute(Loop& l, const std::string& name) {
  const auto at = static_cast<int64_t>(l.index);
  const auto length = [&] {
    while (fetch(l)) {
    }
    return static_cast<int64_t>(l.ready().size());
  };
  const auto has_next = [&] { return l.index + 1 < l.ready().size() || fetch(l); };
  if (name == "index") return Value::of(at + 1);
  if (name == "index0") return Value::of(at);
  if (name == "first") return Value::of(at == 0);
  if (name == "last") return Value::of(!has_next());
  if (name == "length") return Value::of(length());
  if (name == "revindex") return Value::of(length() - at);
  if (name == "revindex0") return Value::of(length() - at - 1);
  if (name == "depth") return Value::of(int64_t{l.depth} + 1);
  if (name == "depth0") return Value::of(int64_t{l.depth});
  if (name == "previtem") return at > 0 ? l.ready()[l.index - 1] : Value();
  if (name == "nextitem") return has_next() ? l.ready()[l.index + 1] : Value();
  w.refuse(fmt::format("\"loop\" has no attribute \"{}\"", name));
}

Value Interpreter::loop_method(Loop& l, const std::string& name, const Args& args) {
  if (!args.named.empty()) w.refuse(fmt::format("\"loop.{}\" takes no named arguments", name));
  if (name == "cycle") {
    if (args.positional.empty()) w.refuse("\"loop.cycle\" has no items to cycle through");
    return args.positional[l.index % args.positional.size()];
  }
  const Value now = w.list(args.positional, Type::tuple);
  const bool changed = !l.has_changed || !w.equal(l.changed, now);
  l.changed = now;
  l.has_changed = true;
  return Value::of(changed);
}

Value Interpreter::call_loop(Loop& l, const Args& args) {
  if (!l.node->recursive) w.refuse("\"loop\" is called, but the loop is not marked \"recursive\"");
  const Bound b(w, "loop", args, {"iterable"});
  const Deeper deeper(w);
  w.claim(sizeof(Loop));
  Loop& inner = loops_.emplace_back();
  inner.node = l.node;
  inner.around = l.around;
  inner.depth = l.depth + 1;
  inner.items = &w.items(b.required(0));
  Scope* const around = scope_;
  Capture capture(*this);
  if (!run_loop(*l.node, inner) && !l.node->otherwise.empty()) {
    scope_ = open(l.around, {});
    run(l.node->otherwise);
  }
  scope_ = around;
  return w.text(capture.text());
}

std::string loop_text(const Loop& l) { return fmt::format("<LoopContext {}/{}>", l.index + 1, l.ready().size()); }
std::string macro_text(const Macro& m) {
  return m.node->kind == Node::Kind::call ? "<Macro anonymous>"
                                          : fmt::format("<Macro {}>", repr_of(m.node->text->bytes));
}

}  // namespace fewbit::jinja
