#pragma once
// Results as tables: for people, for a page, for a spreadsheet.
#include <string>
#include <vector>

#include "tools/cli/options.h"

namespace fewbit::cli {

// Lines of cells, headings first. Columns are as wide as their widest cell, flush right except for the first `left`;
// with bars for Markdown.
std::string table(const std::vector<std::vector<std::string>>& lines, bool markdown, size_t left = 0);
// A cell of a CSV that may hold commas or quotes.
std::string quoted(const std::string&);

// "" = no file was asked for.
void write_text(const Common&, const std::string& path, const std::string& text);

}  // namespace fewbit::cli
