#include "src/quant/output/output.h"

#include <fmt/format.h>

#include "src/core/file_io.h"
#include "src/quant/output/companions.h"
#include "src/quant/output/digests.h"
#include "src/quant/output/gguf_output.h"
#include "src/quant/output/model_card.h"

namespace fewbit {
namespace fs = std::filesystem;

void write_report(const Checkpoint& c, const QuantPlan& plan, const QuantJob& job, const QuantReport& report,
                  const fs::path& dir) {
  write_text(dir / "README.md", model_card(plan, job, report, text_or_empty(c.dir / "README.md")));
  write_text(dir / "quant_report.json", to_json(report));
  write_checksums(dir, report.files);
}

void write_output(const Checkpoint& c, const QuantPlan& plan, const Journal& journal, OutShards* shards,
                  QuantReport& report) {
  const fs::path dir = journal.dir() / kBuilt;
  std::error_code ec;
  fs::create_directories(dir, ec);
  if (!fs::is_directory(dir)) fail(ErrorKind::io, fmt::format("{}: cannot create: {}", dir.string(), ec.message()));
  if (shards) {
    shards->finish();
    report.files = journal.written_shards();
  } else {
    remove_all_but_shards(journal);
    report.files = {write_gguf_output(c, plan, journal, dir / "model.gguf")};
  }
  write_config(c, *plan.format, summary_of(c, plan), std::nullopt, dir);
  copy_companions(c.dir, dir);
  if (!plan.format->gguf) write_gguf_tokenizer(c, dir);
  report.config = model_config_json(dir);
  report.companions = companion_digests(dir, report.files);
}

}  // namespace fewbit
