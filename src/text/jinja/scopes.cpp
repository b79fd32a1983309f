// Which names a scope hides. Jinja decides at compile time where a name comes from: a scope that sets a name, and
// neither reads it before nor has it from a scope around, begins with it undefined, whatever the variables given say.
// It shows where something inside of the scope (a macro, a loop) reads the name before it is set.
#include <algorithm>
#include <set>

#include "src/text/jinja/syntax.h"

namespace fewbit::jinja {
namespace {

struct Level {
  const Level* around = nullptr;
  std::set<Symbol> known{}, hidden{};

  bool known_around(Symbol s) const {
    for (const Level* l = around; l; l = l->around)
      if (l->known.count(s)) return true;
    return false;
  }
  void read(Symbol s) {
    if (!known_around(s)) known.insert(s);
  }
  void write(Symbol s) {
    if (known.insert(s).second && !known_around(s)) hidden.insert(s);
  }
};

void read(Level& level, const Expr& e) {
  if (e.kind == Expr::Kind::name) level.read(e.symbol);
  for (const ExprPtr& part : e.args)
    if (part) read(level, *part);
  if (e.more) read(level, *e.more);
  if (e.more_named) read(level, *e.more_named);
}
void write(Level& level, const Expr& target) {
  if (target.kind == Expr::Kind::attribute) return read(level, target);
  if (target.kind == Expr::Kind::name) level.write(target.symbol);
  for (const ExprPtr& part : target.args) write(level, *part);
}

// What stands in the scope itself; bodies with scopes of their own are left out.
void look_at(Level& level, const std::vector<Node>& nodes);

void look_at_branches(Level& level, const Node& n) {
  // Whatever only some branches set may come from the variables given. Jinja counts three branches: if, elif, else.
  std::vector<Level> seen;
  read(level, *n.branches[0].condition);
  Level before = level, first = before, middle = before, last = before;
  look_at(first, n.branches[0].body);
  for (size_t i = 1; i < n.branches.size(); ++i) {
    Level& branch = n.branches[i].condition ? middle : last;
    if (n.branches[i].condition) read(branch, *n.branches[i].condition);
    look_at(branch, n.branches[i].body);
  }
  for (const Level* l : {&first, &middle, &last}) level.known.insert(l->known.begin(), l->known.end());
  for (const Symbol s : first.hidden)
    if (middle.hidden.count(s) && last.hidden.count(s)) level.hidden.insert(s);
}

void look_at(Level& level, const std::vector<Node>& nodes) {
  for (const Node& n : nodes) {
    if (n.kind == Node::Kind::conditional) {
      look_at_branches(level, n);
    } else if (n.kind == Node::Kind::macro) {
      level.write(n.symbol);
    } else if (n.kind == Node::Kind::with) {
      for (const ExprPtr& v : n.values) read(level, *v);
    } else {
      if (n.expr) read(level, *n.expr);
      if (n.kind == Node::Kind::set || n.kind == Node::Kind::set_block) write(level, *n.targets[0]);
    }
  }
}

void enter(std::vector<Node>& nodes, const Level& around);

// The scope of a body, with what is set before it runs.
void enter_body(Node& n, std::vector<Node>& body, const Level& around, bool own_names) {
  Level level;
  level.around = &around;
  if (own_names) {
    for (const Symbol s : n.parameters) level.known.insert(s);
    if (n.kind == Node::Kind::loop || n.kind == Node::Kind::with)
      for (const ExprPtr& t : n.targets) {
        Level targets;
        write(targets, *t);
        level.known.insert(targets.known.begin(), targets.known.end());
      }
    if (n.kind == Node::Kind::loop) level.known.insert(n.symbol);
  }
  look_at(level, body);
  if (own_names) n.hidden.assign(level.hidden.begin(), level.hidden.end());
  enter(body, level);
}

void enter(std::vector<Node>& nodes, const Level& around) {
  for (Node& n : nodes) {
    if (n.kind == Node::Kind::conditional) {
      for (Branch& b : n.branches) enter(b.body, around);
      continue;
    }
    if (!n.body.empty()) enter_body(n, n.body, around, true);
    if (!n.otherwise.empty()) enter_body(n, n.otherwise, around, false);
  }
}

}  // namespace

void find_hidden(Syntax& syntax) {
  Level root;
  look_at(root, syntax.nodes);
  syntax.hidden.assign(root.hidden.begin(), root.hidden.end());
  enter(syntax.nodes, root);
}

}  // namespace fewbit::jinja
