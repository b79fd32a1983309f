// One rank of the tests of tensor parallelism, started by mpirun: `tp_member FOLDER` runs every model of a folder by
// itself and together with the other ranks. Rank 0 prints a line for each: "llama: float32 1e-08 bf16 2e-04 steps same"
// (how far the perplexities are apart, and whether the engine chooses the same tokens), or why it was not run.
// `tp_member steps MODEL`, on GPUs, compares the logits of decode steps; scripts/gpu_ranks_check.sh runs it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "src/core/rng.h"
#include "src/ranks/exchange.h"
#include "src/run/engine.h"
#include "src/run/rank_sums.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"
#include "tools/cli/ranks.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

using Ids = std::span<const int32_t>;

double perplexity_of(Exec& ex, const Checkpoint& c, Ids ids, int64_t seqs, const LoadOptions& load) {
  Runner runner(ex, c, load);
  const std::vector<float> losses = runner.nll(ids, seqs);
  return std::exp(std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size()));
}

std::vector<int32_t> tokens_of(Exec& ex, const Checkpoint& c, Ids prompt, const LoadOptions& load) {
  Engine engine(ex, c, {.load = load, .capacity = 32, .prefill_chunk = 5});
  return generate(ex, engine, prompt, 12, {});
}

std::string outcome(Exec& ex, const fs::path& model, RankSums& ranks) {
  const Checkpoint c = Checkpoint::open(model);
  const Tensor all = test::Golden((model / "golden.safetensors").string()).get("input_ids");
  const Ids ids{all.as<int32_t>(), static_cast<size_t>(all.numel())};
  std::string line;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LoadOptions load{.dtype = dtype};
    const double alone = perplexity_of(ex, c, ids, all.shape()[0], load);
    load.ranks = &ranks;
    const double together = perplexity_of(ex, c, ids, all.shape()[0], load);
    line += fmt::format("{} {:.1e} ", dtype == DType::f32 ? "float32" : "bf16", std::fabs(together / alone - 1));
  }
  const auto latents = [](const std::vector<BlockOp>& block) { return latent_attention_of(block) != nullptr; };
  const bool coded = std::none_of(c.spec.kinds.begin(), c.spec.kinds.end(), latents);
  LoadOptions load{.dtype = DType::f32, .kv_cache = coded ? KvType::fp8 : KvType::plain};
  const std::vector<int32_t> alone = tokens_of(ex, c, ids.first(16), load);
  load.ranks = &ranks;
  return line + "steps " + (tokens_of(ex, c, ids.first(16), load) == alone ? "same" : "others");
}

void run_models(const fs::path& folder) {
  Exec ex = Exec::cpu();
  RankSums ranks(cli::the_ranks());
  std::vector<fs::path> models;
  for (const auto& entry : fs::directory_iterator(folder)) models.push_back(entry.path());
  std::sort(models.begin(), models.end());
  for (const fs::path& model : models) {
    std::string line;
    try {
      line = outcome(ex, model, ranks);
    } catch (const Error& e) {  // of all ranks alike: what cannot be read or divided is refused before a weight is read
      line = std::string("refused ") + e.what();
      std::replace(line.begin(), line.end(), '\n', ' ');
    }
    if (ranks.part().rank == 0) fmt::print("{}: {}\n", model.filename().string(), line);
  }
}

// Decode steps of one sequence on a GPU for each rank, recorded, from one launch to attention apart: how far the logits
// are from those of one GPU, and whether all ranks have the same bits. False where they are too far or differ.
bool compare_steps(const fs::path& model) {
  constexpr int64_t kPrompt = 56, kApart = 64, kEnd = 80;
  const Ranks& all = cli::the_ranks();
  RankSums ranks(all);
  Exec ex = Exec::cuda(all.node_rank());
  const Checkpoint c = Checkpoint::open(model);
  std::vector<int32_t> ids;
  Rng rng(5, "ids");
  for (int64_t i = 0; i < kEnd; ++i)
    ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(c.spec.vocab))));
  const auto engine = [&](RankSums* with, bool one_launch) {
    return Engine(ex, c, {.load = {.ranks = with}, .capacity = kEnd, .one_launch = one_launch, .long_context = kApart});
  };
  Engine alone = engine(nullptr, true), shared = engine(&ranks, true), by_op = engine(&ranks, false);
  for (Engine* e : {&alone, &shared, &by_op}) e->prefill(Ids(ids).first(kPrompt));
  std::map<std::string, double> errors;  // by the launches of the steps
  bool same = true;
  for (int64_t i = kPrompt; i < kEnd; ++i) {
    const Tensor next =
        ex.to_device(Tensor::host_from<int32_t>(DType::i32, {1}, Ids(ids).subspan(static_cast<size_t>(i), 1)));
    const Tensor expected = ex.to_host(alone.decode(next));
    for (Engine* e : {&shared, &by_op}) {
      const Tensor found = ex.to_host(e->decode(next));
      double& error = errors[name_of(e->step_launches())];
      error = std::max(error, test::relative_error(found, expected));
      Tensor of_root = clone_host(found);
      bytes_of_root(all, {static_cast<char*>(of_root.view().data), static_cast<size_t>(of_root.bytes())});
      same = true_for_all(
                 all, std::memcmp(of_root.view().data, found.view().data, static_cast<size_t>(found.bytes())) == 0) &&
             same;
    }
  }
  const bool packed = alone.kernel_table().front().find("marlin") != std::string::npos;
  const double limit = packed ? tol::kLogitsBf16 : tol::kLogitsBytesBf16;
  std::string line = same ? "the same bits on all ranks" : "the ranks differ";
  bool near = errors.size() == 3;
  for (const auto& [launches, error] : errors) {
    line += fmt::format(", {} {:.1e}", launches, error);
    near = near && error <= limit;
  }
  if (all.rank() == 0) fmt::print("{}{}\n", line, near ? "" : "; " + shared.why_not_together());
  return same && near;
}

int run(const std::string& what, const std::string& path) {
  const Launch launch = launch_from_environment();
  try {
    cli::join_ranks(launch, "tp_member", path, std::vector<std::string>{path});
    bool right = true;
    if (what == "steps")
      right = compare_steps(path);
    else
      run_models(path);
    cli::the_ranks().finish();
    return right ? 0 : 1;
  } catch (const Error& e) {
    return cli::report_failure(launch, "tp_member", e.what(), e.exit_code());
  }
}

}  // namespace
}  // namespace fewbit

int main(int argc, char** argv) {
  if (argc == 2) return fewbit::run("", argv[1]);
  return argc == 3 ? fewbit::run(argv[1], argv[2]) : 2;
}
