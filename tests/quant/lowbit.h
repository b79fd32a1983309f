#pragma once
// Tests of models that come in low bits already: quantizing them, rewriting them by other names, comparing their bytes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "formats/checkpoint_format.h"
#include "src/core/hash.h"
#include "src/eval/verify.h"
#include "src/quant/convert/convert.h"
#include "src/quant/loop/pipeline.h"
#include "src/run/runner.h"
#include "tests/support/support.h"

namespace fewbit::test {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Tensors = std::map<std::string, Tensor>;

// Hashes of all tensors of a folder, as its files have them.
inline std::map<std::string, std::string> hashes_of(const fs::path& model) {
  std::map<std::string, std::string> all;
  const CheckpointIndex index = container_for(model).open(model);
  for (const auto& [name, info] : index.tensors) {
    const ConstTensorView v = index.view(info);
    Hasher h;
    h.add(v.data, static_cast<size_t>(v.bytes()));
    all[name] = fmt::format("{} {} {}", name_of(v.dtype), v.shape.str(), h.hex());
  }
  return all;
}

// The names whose hashes differ, or that only one has.
inline std::string differing(const fs::path& a, const fs::path& b) {
  const auto ours = hashes_of(a), theirs = hashes_of(b);
  std::string names;
  for (const auto& [name, hash] : ours)
    if (const auto it = theirs.find(name); it == theirs.end() || it->second != hash) names += name + ' ';
  for (const auto& [name, hash] : theirs)
    if (!ours.count(name)) names += name + ' ';
  return names;
}

class LowBit : public ::testing::Test {
 protected:
  // Quantizes with windows of a golden's ids; Error{unsupported} of the first refusal.
  QuantReport quantize(const fs::path& model, const std::string& recipe, const std::string& out,
                       const std::vector<Rule>& rules = {}) {
    return quantize(Checkpoint::open(model), recipe, out, rules);
  }
  QuantReport quantize(const Checkpoint& c, const std::string& recipe, const std::string& out,
                       const std::vector<Rule>& rules = {}) {
    const QuantPlan plan =
        make_plan(c, {.base = parse_recipe(recipe), .rules = rules, .tokens = kSeqs * kLen, .seq_len = kLen});
    if (!plan.refusals.empty()) fail(ErrorKind::unsupported, plan.refusals[0].name + ": " + plan.refusals[0].reason);
    std::vector<int32_t> ids(kSeqs * kLen);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 131 + i / 7 * 17) % 250);
    const Windows windows = plan.calibrates() ? windows_from_ids(ids, kSeqs, kLen, "test") : Windows{};
    return run_pipeline(ex_, c, plan, windows, {.recipe = recipe, .out = dir_ / out});
  }
  std::string refusal(const fs::path& model, const std::string& recipe, const std::vector<Rule>& rules = {}) {
    return message_of([&] { quantize(model, recipe, "refused", rules); }, ErrorKind::unsupported);
  }
  // Writes the folder again with other tensors and another config.
  void rewrite(const fs::path& from, const fs::path& to, const std::function<void(Tensors&, Json&)>& edit) {
    Tensors tensors;
    {
      const CheckpointIndex index = container_for(from).open(from);
      for (const auto& [name, info] : index.tensors) tensors[name] = clone_host(index.view(info));
    }
    std::ifstream in(from / "config.json");
    Json config = Json::parse(in);
    edit(tensors, config);
    const auto writer = container_safetensors.create(to, {});
    for (const auto& [name, t] : tensors) writer->add(name, t);
    writer->finish();
    std::ofstream(to / "config.json") << config.dump(1);
  }
  // Mean loss of some ids in float32 without rounding of inputs.
  double loss_of(const fs::path& model) {
    const Checkpoint c = Checkpoint::open(model);
    std::vector<int32_t> ids(4 * kLen);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 71 + i / 5 * 13) % 250);
    const std::vector<float> nll = Runner(ex_, c, {.dtype = DType::f32, .weights = Weights::values}).nll(ids, 4);
    return std::accumulate(nll.begin(), nll.end(), 0.0) / static_cast<double>(nll.size());
  }
  void expect_verified(const fs::path& out) {
    const VerifyResult r = verify(ex_, out);
    EXPECT_TRUE(r.ok()) << (r.ok() ? "" : r.problems[0].linear + ": " + r.problems[0].what);
  }
  void convert_to(const std::string& target, const fs::path& model, const fs::path& out) {
    convert(Checkpoint::open(model),
            {.target = convert_target(target), .model = model, .out = out, .shard_bytes = int64_t{1} << 30});
  }

  static constexpr int64_t kSeqs = 8, kLen = 64;
  TempDir dir_;
  Exec ex_ = Exec::cpu();
};

#define FEWBIT_GOLDEN(name)                                      \
  FEWBIT_NEEDS_REFERENCE("goldens/models/" name "/config.json"); \
  const fs::path golden = reference("goldens/models/" name);

inline int64_t lossless(const QuantReport& r) {
  return std::count_if(r.linears.begin(), r.linears.end(), [](const LinearRecord& l) { return l.lossless; });
}

}  // namespace fewbit::test
