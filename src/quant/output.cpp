#include "src/quant/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/strings.h"
#include "src/quant/gguf_output.h"
#include "src/quant/model_card.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) fail(ErrorKind::io, fmt::format("{}: cannot write", path.string()));
}

// "" where there is no such file.
std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Files of the model directory that are rewritten or belong to its weights; everything else travels along.
bool travels(const fs::path& file) {
  const std::string name = file.filename().string();
  for (const char* suffix :
       {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf"})
    if (ends_with(name, suffix)) return false;
  if (std::find(std::begin(kSideFiles), std::end(kSideFiles), name) != std::end(kSideFiles)) return false;
  return name != "config.json" && name != "quant_report.json" && name != "README.md" &&
         name[0] != '.';
}

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

void write_config(const Checkpoint& c, const QuantPlan& plan, const fs::path& dir) {
  const QuantizationSummary summary = summary_of(c, plan);
  auto config = nlohmann::ordered_json::parse(c.config.text());
  const std::string quantization = plan.format->write_config(summary);
  if (!quantization.empty()) {
    config["quantization_config"] = nlohmann::ordered_json::parse(quantization);
    if (plan.format->side_file) {
      const ConfigFile side = plan.format->side_file(summary);
      write_text(dir / side.name, side.text + "\n");
    }
  }
  write_text(dir / "config.json", config.dump(2) + "\n");
}

// A model that is one .gguf file has no companions.
void copy_companions(const fs::path& model, const fs::path& dir) {
  if (!fs::is_directory(model)) return;
  for (const auto& entry : fs::directory_iterator(model))
    if (entry.is_regular_file() && travels(entry.path()))
      fs::copy_file(entry.path(), dir / entry.path().filename());
}

}  // namespace

void write_output(const Checkpoint& c, const QuantPlan& plan, const Journal& journal, const QuantJob& job,
                  const QuantReport& report) {
  const fs::path dir = journal.dir() / "checkpoint";
  std::error_code ec;
  fs::remove_all(dir, ec);
  if (!fs::create_directories(dir, ec))
    fail(ErrorKind::io, fmt::format("{}: cannot create: {}", dir.string(), ec.message()));
  if (plan.format->gguf)
    write_gguf_output(c, plan, journal, dir / "model.gguf");
  else
    write_tensors(c, plan, journal, dir, job.shard_bytes);
  write_config(c, plan, dir);
  copy_companions(c.dir, dir);
  write_text(dir / "README.md", model_card(plan, job, report, text_of(c.dir / "README.md")));
  write_text(dir / "quant_report.json", to_json(report));
  if (job.force) fs::remove_all(job.out, ec);
  fs::rename(dir, job.out, ec);
  if (ec)
    fail(ErrorKind::io,
         fmt::format("{}: cannot rename to {}: {}", dir.string(), job.out.string(), ec.message()));
  fs::remove_all(journal.dir(), ec);
}

}  // namespace fewbit
