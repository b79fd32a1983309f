#include "tools/cli/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/strings.h"
#include "tools/cli/ranks.h"
#include "tools/cli/results.h"

namespace fewbit::cli {
namespace {

size_t shown_width(const std::string& s) {  // of UTF-8: continuation bytes take no column
  return static_cast<size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string table(const std::vector<std::vector<std::string>>& lines, bool markdown, size_t left) {
  std::vector<size_t> widths(lines.front().size(), markdown ? 3 : 0);
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], shown_width(line[i]));
  std::string s;
  for (size_t n = 0; n < lines.size(); ++n) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string blanks(widths[i] - shown_width(lines[n][i]), ' ');
      s += markdown ? "| " : i ? "  " : "";
      s += i < left ? lines[n][i] + blanks : blanks + lines[n][i];
      if (markdown) s += " ";
    }
    s += markdown ? "|\n" : "\n";
    if (!markdown || n > 0) continue;
    for (size_t i = 0; i < widths.size(); ++i) s += "|" + std::string(widths[i] + 1, '-') + (i < left ? "-" : ":");
    s += "|\n";
  }
  return s;
}

std::string quoted(const std::string& s) { return "\"" + join(split(s, '"'), "\"\"") + "\""; }

void write_text(const Common& c, const std::string& path, const std::string& text) {
  if (path.empty() || the_ranks().rank() != 0) return;
  write_result(path, text);
  say(c, path + " written\n");
}

}  // namespace fewbit::cli
