#include "src/quant/output/output.h"

#include <fmt/format.h>

#include <set>

#include "src/quant/output/companions.h"
#include "src/quant/output/gguf_output.h"
#include "src/quant/output/model_card.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// A tensor comes from its sealed block where that has it (packed linears, norms that a transform rewrote),
// else from the model.
void write_tensors(const Checkpoint& c, const QuantPlan& plan, const Journal& journal, const fs::path& dir,
                   int64_t shard_bytes) {
  std::set<std::string> replaced;
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep) replaced.insert(p.linear.name + ".weight");
  std::vector<CheckpointIndex> blocks;
  for (int64_t layer = 0; layer < journal.sealed_blocks(); ++layer) {
    blocks.push_back(container_safetensors.open(journal.block_file(layer)));
    for (const auto& [name, info] : blocks.back().tensors) replaced.insert(name);
  }
  const auto writer = container_safetensors.create(dir, WriterOptions{.shard_bytes = shard_bytes});
  for (const auto& [name, info] : c.store.index().tensors)
    if (!replaced.count(name)) writer->add(name, c.store.get(name));
  for (const CheckpointIndex& block : blocks)
    for (const auto& [name, info] : block.tensors) writer->add(name, block.view(info));
  writer->finish();
}

}  // namespace

void write_report(const Checkpoint& c, const QuantPlan& plan, const QuantJob& job, const QuantReport& report,
                  const fs::path& dir) {
  const auto replace = [&](const char* name, const std::string& text) {
    write_text(dir / fmt::format(".{}.tmp", name), text);
    fs::rename(dir / fmt::format(".{}.tmp", name), dir / name);
  };
  replace("README.md", model_card(plan, job, report, text_of(c.dir / "README.md")));
  replace("quant_report.json", to_json(report));
}

void write_output(const Checkpoint& c, const QuantPlan& plan, const Journal& journal, const QuantJob& job,
                  const QuantReport& report) {
  const fs::path dir = journal.dir() / kBuilt;
  std::error_code ec;
  fs::remove_all(dir, ec);
  if (!fs::create_directories(dir, ec))
    fail(ErrorKind::io, fmt::format("{}: cannot create: {}", dir.string(), ec.message()));
  if (plan.format->gguf)
    write_gguf_output(c, plan, journal, dir / "model.gguf");
  else
    write_tensors(c, plan, journal, dir, job.shard_bytes);
  write_config(c, *plan.format, summary_of(c, plan), std::nullopt, dir);
  copy_companions(c.dir, dir);
  if (!plan.format->gguf) write_gguf_tokenizer(c, dir);
  write_report(c, plan, job, report, dir);
}

}  // namespace fewbit
