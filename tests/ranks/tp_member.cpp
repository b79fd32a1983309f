// One rank of the tests of tensor parallelism, started by mpirun: `tp_member FOLDER` runs every model of a folder by
// itself and together with the other ranks. Rank 0 prints a line for each: "llama: float32 1e-08 bf16 2e-04 steps same"
// (how far the perplexities are apart, and whether the engine chooses the same tokens), or why it was not run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "src/run/engine.h"
#include "src/run/rank_sums.h"
#include "tests/support/support.h"
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

int run(const std::string& folder) {
  const Launch launch = launch_from_environment();
  try {
    cli::join_ranks(launch, "tp_member", folder, std::vector<std::string>{folder});
    run_models(folder);
    cli::the_ranks().finish();
    return 0;
  } catch (const Error& e) {
    return cli::report_failure(launch, "tp_member", e.what(), e.exit_code());
  }
}

}  // namespace
}  // namespace fewbit

int main(int argc, char** argv) { return argc == 2 ? fewbit::run(argv[1]) : 2; }
