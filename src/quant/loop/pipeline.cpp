#include "src/quant/loop/pipeline.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "kernels/cpu/arithmetic.h"
#include "src/calib/stream.h"
#include "src/core/strings.h"
#include "src/quant/journal/identity.h"
#include "src/quant/journal/read_model.h"
#include "src/quant/journal/run_status.h"
#include "src/quant/loop/block_loop.h"
#include "src/quant/loop/determinism.h"
#include "src/quant/loop/run_ends.h"
#include "src/quant/output/digests.h"
#include "src/quant/output/out_folder.h"
#include "src/quant/output/output.h"
#include "src/quant/transform.h"
#include "src/ranks/exchange.h"

namespace fewbit {
namespace {

int64_t peak_host_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

QuantReport report_of(const Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& w,
                      const QuantJob& job) {
  QuantReport r;
  r.recipe = job.recipe;
  r.made_by = job.command;
  r.made_from = origin_json(c.dir, job.sources);
  r.note = job.note;
  r.short_calibration = job.short_calibration;
  r.model = c.dir.string();
  r.out = job.out.string();
  r.device = device_and_products(ex.device_name(), ex.on_cuda());
  r.dtype = std::string(name_of(job.dtype));
  r.calibration = w.source;
  r.seed = job.seed;
  r.samples = w.count;
  r.seq_len = w.length;
  r.source_bytes = plan.source_bytes;
  r.out_bytes = plan.out_bytes;
  r.bits_per_weight = plan.bits_per_weight;
  r.precision = job.precision;
  r.dropped = job.dropped;
  for (const PlannedLinear& p : plan.linears)
    if (p.keep) r.kept.push_back(p.linear.name);
  return r;
}

// OUT's files, written by a thread of their own: a digest or a sync must not hold up the packing of the next block.
struct Files {
  Files(OutShards* of, bool beside, bool pool) : shards(of), thread(beside, pool) {}
  OutShards* shards;  // null where nothing is written before the end
  Background thread;

  void advance(int64_t sealed) {
    if (shards) thread.give("write", 0, [s = shards, sealed] { s->advance(sealed); });
  }
};

// Everything up to the last sealed block, and every shard that is full by then.
void run_blocks(BlockLoop& loop, const Journal& journal, Files& files, const Checkpoint& c, const QuantJob& job) {
  const int64_t replayed = journal.sealed_blocks();
  files.advance(0);
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    tell(job, c.spec, static_cast<double>(layer));
    if (true_for_any(*job.ranks, job.stop_requested && job.stop_requested())) {
      loop.settle();  // what is computed is kept
      fail(ErrorKind::stopped, fmt::format("stopped before block {} of {}", layer, c.spec.layers));
    }
    loop.block(layer);
    loop.behind("write", [&] { files.advance(journal.sealed_blocks()); });
    if (layer >= replayed && layer + 1 < c.spec.layers) continue;
    if (layer + 1 == c.spec.layers && loop.is_computed()) job.ranks->unlink_devices();
    loop.settle();  // what was sealed before moves into shards, and the next block or the head is read there
    files.thread.wait();
  }
  loop.finish();
  job.ranks->unlink_devices();
  tell(job, c.spec, static_cast<double>(c.spec.layers));
}

// The job, with its progress in the status file too.
QuantJob watched(const QuantJob& job, const ModelSpec& spec, StatusFile& status) {
  QuantJob j = job;
  j.progress = [&job, &spec, &status](const std::string& what, double fraction) {
    status.reached(static_cast<int64_t>(fraction * static_cast<double>(spec.layers)), fraction);
    if (job.progress) job.progress(what, fraction);
  };
  j.entered = [&job, &status](const std::string& phase) {
    status.entered(phase);
    if (job.entered) job.entered(phase);
  };
  return j;
}

// The checkpoint that was built becomes OUT; what the run needed besides goes, an OUT that was replaced too.
void publish(Journal& journal, const QuantJob& job, RunFolder& folder) {
  namespace fs = std::filesystem;
  const fs::path built = folder.dir() / kBuilt, out = place_of(job.out);
  sync_tree(built);
  journal.finished(built);
  std::error_code ec;
  if (job.force && fs::exists(out, ec))
    put_in_place_of(built, out, folder.dir() / "replaced");
  else
    put_in_place(built, out);
  folder.remove();
}

// The journal of rank 0; that of the others, which knows how far it came.
Journal open_journal(const QuantJob& job, RunFolder* folder, const std::function<std::string()>& identity) {
  if (!folder) return {partial_of(job.out), value_of_root<int64_t>(*job.ranks, 0)};
  Journal journal(*folder, identity(), job.resume ? Journal::Start::resume : Journal::Start::fresh);
  value_of_root(*job.ranks, journal.sealed_blocks());
  return journal;
}

void add_loop(const Exec& ex, const BlockLoop& loop, const Background::Times& files, const Journal& journal,
              const QuantPlan& plan, double before, QuantReport& report) {
  report.experts = loop.experts();
  report.kv_scales = loop.kv_scales();
  report.phases = loop.phases().seconds();
  const auto total = [](const std::map<std::string, double>& phases) {
    double sum = 0;
    for (const auto& [phase, seconds] : phases) sum += seconds;
    return sum;
  };
  if (before > 0) report.phases["start"] = before;
  report.floor_seconds = total(report.phases);
  for (const Background::Times* beside : {&loop.beside(), &files}) {
    report.floor_seconds = std::max(report.floor_seconds, before + beside->working);
    for (const auto& [phase, s] : beside->busy) report.phases[phase] += s;
    for (const auto& [phase, s] : beside->hidden) report.hidden_seconds[phase] += s;
    report.idle_seconds += beside->idle;
  }
  report.phase_peaks = loop.phases().peaks();
  report.scratch_bytes = loop.states().file;
  for (int64_t layer = 0; layer < journal.sealed_blocks(); ++layer)  // one more where there are ends
    for (const LinearRecord& r : journal.records(layer)) report.linears.push_back(r);
  if (ex.on_cuda()) {
    for (const auto& [phase, bytes] : report.phase_peaks)
      report.peak_gpu_bytes = std::max(report.peak_gpu_bytes, bytes);
    report.peak_gpu_bytes += ex.library_bytes();  // which the plan counts too
  }
  report.peak_host_bytes = peak_host_bytes();
  report.planned_gpu_bytes = ex.on_cuda() ? plan.memory.device : 0;
  report.planned_host_bytes = plan.memory.host + plan.memory.mapped;
}

// All blocks. A device that runs out of memory half-way is asked for less, and the blocks that are sealed are replayed:
// products have the same shapes, so that the bits are the same. `plan` must outlive the loop.
void run_all_blocks(std::optional<BlockLoop>& loop, const std::function<void()>& begin, const Journal& journal,
                    Files& files, const Checkpoint& c, const QuantJob& job, QuantPlan& plan, QuantReport& report) {
  for (;;) try {
      begin();
      return run_blocks(*loop, journal, files, c, job);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::memory || !job.ranks->alone()) throw;
      loop.reset();
      const std::string less = keep_less(plan.memory);
      if (less.empty()) throw;
      add_note(report.note,
               fmt::format("{} in block {}, which was begun again with {}", e.what(), journal.sealed_blocks(), less));
    }
}

}  // namespace

QuantReport run_pipeline(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& windows,
                         const QuantJob& job) {
  RunFolder folder = claim_out(c.dir, job);
  return run_pipeline(ex, c, plan, windows, job, &folder);
}

QuantReport run_pipeline(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& windows,
                         const QuantJob& job, RunFolder* folder) {
  FEWBIT_ASSERT(plan.refusals.empty() && (folder != nullptr) == (job.ranks->rank() == 0));
  for (const Transform* t : plan.transforms) need_no_shared_choice(c.spec, std::string(t->name), windows.length);
  if (folder && job.sources.empty()) {
    QuantJob with_sources = job;
    read_model(c, *folder, {}, with_sources);
    return run_pipeline(ex, c, plan, windows, with_sources, folder);
  }
  const Stopwatch timer;
  QuantReport report = report_of(ex, c, plan, windows, job);
  Journal journal = open_journal(job, folder, [&] { return identity_of(ex, c, plan, windows, job); });
  if (!folder) {
    BlockLoop loop(ex, c, plan, windows, job, journal);
    Files none(nullptr, false, false);
    run_blocks(loop, journal, none, c, job);
    return report;
  }
  add_note(report.note, journal.note());
  if (plan.time && journal.sealed_blocks() == 0) {  // the plan counts every block
    report.planned_seconds = plan.time->phases;
    report.planned_total_seconds = plan.time->seconds;
  }
  StatusFile status(folder->dir(), {.blocks = c.spec.layers,
                                    .sealed_before = std::min(journal.sealed_blocks(), c.spec.layers),
                                    .planned_seconds = report.planned_total_seconds,
                                    .planned_host_bytes = plan.memory.host + plan.memory.mapped,
                                    .planned_gpu_bytes = ex.on_cuda() ? plan.memory.device : 0});
  const QuantJob watched_job = watched(job, c.spec, status);
  std::optional<OutShards> shards;  // of a single .gguf file nothing is written before the end
  if (!plan.format->gguf) shards.emplace(c, plan, journal, job.shard_bytes);
  std::optional<Files> files(std::in_place, shards ? &*shards : nullptr, job.overlaps, ex.on_cuda());
  std::optional<BlockLoop> loop;
  QuantPlan now = plan;
  try {
    if (job.check_determinism) check_determinism(ex, c, plan, windows, job, *folder);
    const auto begin = [&] { loop.emplace(ex, c, now, windows, watched_job, journal); };
    run_all_blocks(loop, begin, journal, *files, c, watched_job, now, report);
    add_loop(ex, *loop, files->thread.times(), journal, plan, job.seconds_before, report);
    loop.reset();
    status.entered("write");
    if (job.progress) job.progress("writing the checkpoint", 0);
    const Stopwatch writing;
    write_output(c, plan, journal, files->shards, report);
    report.phases["write"] += writing.seconds();
    if (job.measure) job.measure(folder->dir() / kBuilt, report);
    report.seconds = job.seconds_before + timer.seconds();
    const Stopwatch ending;
    write_report(c, plan, job, report, folder->dir() / kBuilt);
    publish(journal, job, *folder);
    report.phases["write"] += ending.seconds();
  } catch (const std::exception&) {
    loop.reset();  // what is written beside it is on the disk then
    files.reset();
    say_what_is_kept(std::current_exception(), journal, c.spec);
  }
  report.seconds = job.seconds_before + timer.seconds();
  return report;
}

}  // namespace fewbit
