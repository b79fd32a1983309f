#include <sstream>

#include "src/core/digest.h"
#include "src/eval/report_files.h"
#include "src/eval/tasks.h"
#include "src/quant/journal/journal.h"
#include "src/quant/journal/run_status.h"
#include "src/quant/plan/recipe.h"
#include "tests/hostile/readers.h"

namespace fewbit::test {

void read_recipe_bytes(const std::string& bytes, const Scratch&) { resolve(parse_recipe(bytes)).str(); }

void read_journal_bytes(const std::string& bytes, const Scratch& scratch) {
  std::string text;
  std::istringstream lines(bytes);
  for (std::string line; std::getline(lines, line);) text += digest_of(line) + " " + line + "\n";
  put(scratch, "journal", text);
  recorded_blocks(scratch);
  finished_report(scratch);
  holds_work(scratch);
}

void read_report_bytes(const std::string& bytes, const Scratch& scratch) {
  put(scratch, "quant_report.json", bytes);
  ReportModel model;
  read_quant_report(scratch, model);
  read_status(scratch);
}

void read_bench_bytes(const std::string& bytes, const Scratch& scratch) { read_bench(put(scratch, "b.json", bytes)); }

void read_tasks_bytes(const std::string& bytes, const Scratch& scratch) { read_tasks(put(scratch, "t.jsonl", bytes)); }

}  // namespace fewbit::test
