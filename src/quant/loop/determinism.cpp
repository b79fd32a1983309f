#include "src/quant/loop/determinism.h"

#include <fmt/format.h>

#include "src/core/digest.h"
#include "src/quant/loop/block_loop.h"

namespace fewbit {
namespace {

TensorDigests digests_of_first_block(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& windows,
                                     const QuantJob& job, const std::filesystem::path& place) {
  RunFolder folder = RunFolder::claim(place);
  Journal journal(folder, "{}", Journal::Start::fresh);
  TensorDigests digests;
  {
    BlockLoop loop(ex, c, plan, windows, job, journal);
    loop.block(0);
    loop.settle();
  }
  const CheckpointIndex block = journal.open_block(0);
  for (const auto& [name, info] : block.tensors) digests[name] = digest_of_pieces(block.view(info).data, info.bytes);
  folder.keep(false);
  return digests;
}

}  // namespace

void check_determinism(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& windows,
                       const QuantJob& job, const RunFolder& run) {
  QuantJob quiet = job;
  quiet.entered = {};
  quiet.progress = [&](const std::string&, double f) {
    if (job.progress) job.progress("quantizing a block twice", std::min(f * static_cast<double>(c.spec.layers), 0.99));
  };
  const auto digests = [&](const char* name) {
    return digests_of_first_block(ex, c, plan, windows, quiet, run.dir() / name);
  };
  const TensorDigests first = digests("first"), second = digests("second");
  std::string differ;
  for (const auto& [name, digest] : first)
    if (const auto it = second.find(name); it == second.end() || it->second != digest)
      differ += (differ.empty() ? "" : ", ") + name;
  if (!differ.empty())
    fail(ErrorKind::numeric,
         fmt::format("block 0 quantized twice gives different bytes: {}; this machine does not compute "
                     "the same twice: look for faulty memory, an overclocked device or a driver's bug",
                     differ));
}

}  // namespace fewbit
