#include "tools/cli/usage.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

#include "src/core/strings.h"
#include "src/core/text/nearest.h"

namespace fewbit::cli {
namespace {

// The command whose arguments were being read, with the words that lead to it.
struct Command {
  const CLI::App* app;
  std::string name;
};
Command command_of(const CLI::App& program) {
  Command c{&program, program.get_name()};
  while (!c.app->get_subcommands().empty()) {
    c.app = c.app->get_subcommands().front();
    c.name += ' ' + c.app->get_name();
  }
  return c;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* o : app.get_options())
    for (const std::string& name : o->get_lnames()) flags.push_back("--" + name);
  return flags;
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known) {
  const std::vector<std::string_view> views(known.begin(), known.end());
  const std::string_view near = nearest(name, views);
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

// The first argument that nothing took, a flag before a word: a word may be the value of an unknown flag.
std::string first_extra(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(true);
  for (const std::string& e : extras)
    if (starts_with(e, "-")) return e.substr(0, e.find('='));
  return extras.empty() ? "" : extras.front();
}

std::string unknown_command(const Command& c, const std::string& found) {
  const std::vector<std::string> known = commands_of(*c.app);
  if (found.empty()) return fmt::format("a command is missing; expected one of {}", join(known, ", "));
  const std::string question = did_you_mean(found, known);
  return fmt::format("unknown command \"{}\"{}{} known: {}", found, question, question.empty() ? ";" : "",
                     join(known, " "));
}

std::string unknown_argument(const Command& c, const std::string& found) {
  if (!starts_with(found, "-")) return fmt::format("\"{}\" is one argument too many", found);
  const std::vector<std::string> flags = flags_of(*c.app);
  const std::string question = did_you_mean(found, flags);
  return fmt::format("unknown flag {}{}{}", found, question,
                     question.empty() ? fmt::format("; known: {}", join(flags, " ")) : "");
}

// "--bits: 1 required TEXT missing": the words of CLI11, for which we have others.
std::string value_problem(const std::string& what) {
  const size_t colon = what.find(": ");
  if (colon == std::string::npos) return what;
  if (what.find(" required ", colon) != std::string::npos && ends_with(what, " missing"))
    return what.substr(0, colon) + ": expected a value, found none";
  return what;
}

// The names of CLI11's errors are those of the option or the command where there is one.
bool is(const CLI::ParseError& e, CLI::ExitCodes kind) { return e.get_exit_code() == static_cast<int>(kind); }

}  // namespace

std::string usage_line(const CLI::App& app, const CLI::ParseError& e) {
  const Command c = command_of(app);
  const std::string extra = first_extra(app);
  const bool lacks_command = c.app->get_require_subcommand_min() > 0;
  std::string s;
  if (lacks_command && !starts_with(extra, "-"))
    s = unknown_command(c, extra);
  else if (is(e, CLI::ExitCodes::ExtrasError) || (lacks_command && !extra.empty()))
    s = unknown_argument(c, extra);
  else if (is(e, CLI::ExitCodes::RequiredError) && !extra.empty() && starts_with(extra, "-"))
    s = unknown_argument(c, extra);
  else if (is(e, CLI::ExitCodes::RequiredError))
    s = fmt::format("{}, and was not given", e.what());
  else if (is(e, CLI::ExitCodes::RequiresError))
    s = fmt::format("{}, which was not given", e.what());
  else if (is(e, CLI::ExitCodes::ExcludesError))
    s = fmt::format("{}: give one of them", e.what());
  else
    s = value_problem(e.what());
  return fmt::format("{}: {}{} `{} --help` shows what it takes", app.get_name(), s, ends_with(s, "?") ? "" : ";",
                     c.name);
}

namespace {

template <class T>
std::optional<T> whole(const std::string& text) {
  T n{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, n);
  return error == std::errc() && rest == end ? std::optional(n) : std::nullopt;
}

}  // namespace

CLI::Validator in_range(int64_t least, int64_t most) {
  return {[least, most](const std::string& text) {
            const auto n = whole<int64_t>(text);
            if (n && *n >= least && *n <= most) return std::string();
            return fmt::format("expected a whole number from {} to {}, found {}", least, most, text);
          },
          ""};
}

CLI::Validator number_in(double least, double most) {
  return {[least, most](const std::string& text) {
            const auto x = whole<double>(text);
            if (x && *x >= least && *x <= most) return std::string();
            return fmt::format("expected a number from {} to {}, found {}", least, most, text);
          },
          ""};
}

CLI::Validator above_zero(const char* unit) {
  return {[unit](const std::string& text) {
            const auto x = whole<double>(text);
            if (x && *x > 0 && std::isfinite(*x)) return std::string();
            return fmt::format("expected a number of {} above 0, found {}", unit, text);
          },
          ""};
}

}  // namespace fewbit::cli
