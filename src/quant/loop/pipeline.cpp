#include "src/quant/loop/pipeline.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/hash.h"
#include "src/quant/loop/block_loop.h"
#include "src/quant/output/output.h"

namespace fewbit {
namespace {

int64_t peak_host_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

// Everything that decides the bits of the output, on one line.
std::string identity_of(const Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& w,
                        const QuantJob& job) {
  Hasher recipes, model;
  for (const PlannedLinear& p : plan.linears) {
    const std::string line = p.linear.name + (p.keep ? "keep" : p.recipe.str() + std::string(p.layout()));
    recipes.add(line.data(), line.size());
  }
  recipes.add(&plan.fp8_kv_cache, sizeof plan.fp8_kv_cache);
  model.add(c.config.text().data(), c.config.text().size());
  for (const auto& [name, info] : c.store.index().tensors) {
    // A sample of every tensor: enough to tell two checkpoints apart without reading all of them.
    const ConstTensorView v = c.store.get(name);
    model.add(name.data(), name.size());
    model.add(v.data, static_cast<size_t>(std::min<int64_t>(v.bytes(), 4096)));
  }
  return nlohmann::json{{"recipes", recipes.hex()},
                        {"model", model.hex()},
                        {"calibration", content_hash(w.ids.data(), w.ids.size() * sizeof(int32_t))},
                        {"seq_len", w.length},
                        {"dtype", name_of(job.dtype)},
                        {"device", ex.on_cuda() ? "cuda" : "cpu"},
                        {"seed", job.seed}}
      .dump();
}

QuantReport report_of(const Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& w,
                      const QuantJob& job) {
  QuantReport r;
  r.recipe = job.recipe;
  r.note = job.note;
  r.model = c.dir.string();
  r.out = job.out.string();
  r.device = ex.device_name();
  r.dtype = std::string(name_of(job.dtype));
  r.calibration = w.source;
  r.seed = job.seed;
  r.samples = w.count;
  r.seq_len = w.length;
  r.source_bytes = plan.source_bytes;
  r.out_bytes = plan.out_bytes;
  r.bits_per_weight = plan.bits_per_weight;
  r.precision = job.precision;
  for (const PlannedLinear& p : plan.linears)
    if (p.keep) r.kept.push_back(p.linear.name);
  return r;
}

void run_blocks(BlockLoop& loop, const Journal& journal, const Checkpoint& c, const QuantJob& job) {
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    tell(job, c.spec, static_cast<double>(layer));
    if (job.stop_requested && job.stop_requested())
      fail(ErrorKind::stopped,
           fmt::format("stopped before block {} of {}; {} blocks are kept in {}: run the same command "
                       "with --resume",
                       layer, c.spec.layers, journal.sealed_blocks(), journal.dir().string()));
    loop.block(layer);
  }
  loop.finish();
  tell(job, c.spec, static_cast<double>(c.spec.layers));
}

}  // namespace

void check_out(const QuantJob& job) {
  namespace fs = std::filesystem;
  if (fs::exists(job.out) && !job.force)
    fail(ErrorKind::usage,
         fmt::format("{} exists; choose another OUT or give --force to replace it", job.out.string()));
  if (fs::exists(job.out) && !fs::exists(job.out / "config.json"))
    fail(ErrorKind::usage,
         fmt::format("{} exists and is not a checkpoint folder; --force does not replace it", job.out.string()));
  const fs::path parent = fs::absolute(job.out).parent_path();
  if (!fs::is_directory(parent))
    fail(ErrorKind::io, fmt::format("{} is not a folder to write OUT into", parent.string()));
}

QuantReport run_pipeline(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& windows,
                         const QuantJob& job) {
  check_out(job);
  FEWBIT_ASSERT(plan.refusals.empty());
  const Stopwatch timer;
  QuantReport report = report_of(ex, c, plan, windows, job);
  Journal journal(job.out, identity_of(ex, c, plan, windows, job),
                  job.resume ? Journal::Start::resume : Journal::Start::fresh);
  try {
    BlockLoop loop(ex, c, plan, windows, job, journal);
    run_blocks(loop, journal, c, job);
    report.experts = loop.experts();
    report.kv_scales = loop.kv_scales();
    report.phases = loop.phases();
  } catch (const Error&) {
    journal.discard_if_empty();
    throw;
  }
  for (int64_t layer = 0; layer < journal.sealed_blocks(); ++layer)  // one more where there are ends
    for (const LinearRecord& r : journal.records(layer)) report.linears.push_back(r);
  const Stopwatch writing;
  report.peak_gpu_bytes = ex.on_cuda() ? ex.peak_bytes() : 0;
  report.peak_host_bytes = peak_host_bytes();
  report.seconds = timer.seconds();
  if (job.progress) job.progress("writing the checkpoint", 0);
  write_output(c, plan, journal, job, report);
  report.phases["write"] += writing.seconds();
  report.seconds = timer.seconds();
  return report;
}

}  // namespace fewbit
