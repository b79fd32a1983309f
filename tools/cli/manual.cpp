// The man page of a program, made from the option tables themselves, so that it cannot go stale.
#include "tools/cli/manual.h"

#include <fmt/format.h>

#include <cctype>

namespace fewbit::cli {
namespace {

// Text of troff: backslashes and hyphens as they are, and no line that begins with a request.
std::string plain(const std::string& text) {
  std::string s;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool first = i == 0 || text[i - 1] == '\n';
    if (first && (text[i] == '.' || text[i] == '\'')) s += "\\&";
    if (text[i] == '\\')
      s += "\\e";
    else if (text[i] == '-')
      s += "\\-";
    else
      s += text[i];
  }
  return s;
}

std::string option_lines(const CLI::App& app) {
  std::string s;
  for (const CLI::Option* o : app.get_options()) {
    std::string value = o->get_items_expected_max() > 0 ? o->get_type_name() : "";
    if (o->nonpositional() && !value.empty()) value = " \\fI" + plain(value) + "\\fR";
    const std::string name = o->get_positional() ? o->get_single_name() : o->get_name(false, true);
    s += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", plain(name), o->get_positional() ? "" : value,
                     plain(o->get_description()));
    if (!o->get_default_str().empty()) s += fmt::format("Default: {}.\n", plain(o->get_default_str()));
  }
  return s;
}

}  // namespace

std::string manual_page(const CLI::App& app, const std::string& program, const std::string& version) {
  std::string upper = program;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::string s = fmt::format(
      ".TH {} 1 \"\" \"fewbit {}\" \"fewbit\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n\\fB{}\\fR [OPTIONS] [COMMAND]\n",
      upper, plain(version), program, plain(app.get_description()), program);
  s += ".SH OPTIONS\n" + option_lines(app);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    s += fmt::format(".SH {} {}\n{}\n{}", upper, plain(command->get_name()), plain(command->get_description()),
                     option_lines(*command));
  s += fmt::format(".SH EXAMPLES\n.nf\n{}\n.fi\n", plain(app.get_footer()));
  return s +
         ".SH EXIT STATUS\n0 done, 1 refused or failed, 2 a wrong command line, 75 stopped on request and resumable.\n";
}

}  // namespace fewbit::cli
