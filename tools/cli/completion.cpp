// Completion scripts made from the option tables themselves, so they cannot go stale.
#include <fmt/format.h>

#include "tools/cli/options.h"

namespace fewbit::cli {
namespace {

std::string flags_of(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* o : app.get_options())
    for (const std::string& name : o->get_lnames()) out += (out.empty() ? "--" : " --") + name;
  return out;
}

std::string subcommands_of(const CLI::App& app) {
  std::string out;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    out += (out.empty() ? "" : " ") + sub->get_name();
  return out;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& program, const std::string& shell) {
  std::string cases;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    cases += fmt::format("    {}) words=\"{}\" ;;\n", sub->get_name(), flags_of(*sub));
  const std::string body = fmt::format(
      "_fewbit_{0}() {{\n"
      "  local words cur=\"${{COMP_WORDS[COMP_CWORD]}}\"\n"
      "  case \"${{COMP_WORDS[1]}}\" in\n{1}"
      "    *) words=\"{2} {3}\" ;;\n"
      "  esac\n"
      "  if [[ $cur == -* || $COMP_CWORD -eq 1 ]]; then COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")); "
      "fi\n"
      "  COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
      "}}\n"
      "complete -o filenames -F _fewbit_{0} {0}\n",
      program, cases, subcommands_of(app), flags_of(app));
  // zsh runs bash completions through its own adapter.
  return shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" + body : body;
}

}  // namespace fewbit::cli
