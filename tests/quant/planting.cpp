#include "tests/quant/planting.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "formats/container.h"
#include "kernels/model/embed.h"
#include "src/calib/stream.h"
#include "src/core/rng.h"
#include "src/run/runner.h"
#include "src/text/builtin_texts.h"
#include "src/text/corpus.h"
#include "src/text/tokenizer.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

using Channels = std::vector<size_t>;

Channels first(Channels all, int64_t count) {
  FEWBIT_ASSERT(count >= 0 && static_cast<size_t>(count) <= all.size());
  all.resize(static_cast<size_t>(count));
  return all;
}

Channels drawn(size_t n, Rng rng) {
  Channels all(n);
  std::iota(all.begin(), all.end(), size_t{0});
  for (size_t k = 0; k + 1 < n; ++k) std::swap(all[k], all[k + rng.below(n - k)]);
  return all;
}

// Channels by what they carry, most first: the energy of x_j times that of column j of the consumers.
Channels by_salience(ConstTensorView x, const Absorber& a, const BlockF32& block) {
  const auto energy = [](ConstTensorView m) {
    std::vector<double> sum(static_cast<size_t>(m.cols()));
    for (int64_t i = 0; i < m.numel(); ++i) sum[static_cast<size_t>(i % m.cols())] += std::pow(m.as<float>()[i], 2);
    return sum;
  };
  std::vector<double> columns(static_cast<size_t>(x.cols())), carried = energy(x);
  for (const LinearDef& l : a.linears) {
    const std::vector<double> sum = energy(block.weights.at(l.name + ".weight"));
    for (size_t j = 0; j < sum.size(); ++j) columns[j] += sum[j];
  }
  Channels order(carried.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (const size_t j : order) carried[j] *= columns[j];
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return carried[a] > carried[b]; });
  return order;
}

constexpr int64_t kLength = 256, kWindows = 8;

// The residual stream of the built-in evaluation text on its way through the blocks.
std::unique_ptr<Stream> start_stream(StateStore& store, const Checkpoint& c) {
  const Windows w =
      cut_windows(Tokenizer::open(c.dir), builtin_evaluation("builtin:multilingual"), kLength, kWindows, "builtin");
  auto stream = std::make_unique<Stream>(store, c.spec, Chunks{.windows = w.count, .length = w.length}, DType::f32);
  FEWBIT_ASSERT(stream->chunks().count() == 1);
  stream->start(0, embed_rows(store.exec(), c, w.ids, DType::f32));
  return stream;
}

}  // namespace

void write_changed(const Checkpoint& c, const std::map<std::string, Tensor>& changed, const fs::path& dir) {
  fs::create_directories(dir);
  for (const auto& entry : fs::directory_iterator(c.dir))
    if (entry.path().extension() == ".json" && entry.path().filename() != "model.safetensors.index.json")
      fs::copy_file(entry.path(), dir / entry.path().filename());
  const auto writer = container_safetensors.create(dir, {});
  for (const auto& [name, info] : c.store.index().tensors)
    if (const auto it = changed.find(name); it != changed.end())
      writer->add(name, it->second);
    else
      writer->add(name, c.store.get(name));  // experts out of a stack are gathered, they lie nowhere by themselves
  writer->finish();
}

void collect(Exec& ex, const BlockF32& block, const std::string& prefix, std::map<std::string, Tensor>& out) {
  for (const auto& [name, w] : block.weights) out[prefix + name] = ex.to_host(w);
  for (NamedTensor& t : changed_tensors(ex, block, prefix)) out[t.name] = std::move(t.tensor);
}

void plant_outliers(const Checkpoint& c, const Planting& planting, const fs::path& dir) {
  Exec ex = Exec::cpu();
  const bool salient = planting.where == Planting::Where::salient;
  StateStore store(ex, {});
  std::unique_ptr<Stream> stream;
  if (salient) stream = start_stream(store, c);
  const RopeTables ropes(ex, c.spec, kLength);
  std::map<std::string, Tensor> changed;
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    const std::vector<BlockOp>& ops = c.spec.block(layer);
    const std::string prefix = c.spec.prefix(layer);
    BlockWeights weights;
    if (salient) weights = load_block(ex, c, layer, {.dtype = DType::f32}, nullptr);
    std::vector<Absorber> norms;
    for (Absorber& a : absorbers_of(ops))
      if (std::holds_alternative<Norm>(ops[a.op])) norms.push_back(std::move(a));
    BlockF32 block = load_block_f32(ex, c, layer, norms);
    if (salient) stream->begin_block(ops);
    for (size_t i = 0; i < ops.size(); ++i) {
      for (const Absorber& a : norms) {
        if (a.consumers.front() != i) continue;
        std::vector<float> s(static_cast<size_t>(a.features), 1.f);
        const Channels order =
            salient ? by_salience(stream->bring(0, i, weights, ropes)[std::get<Norm>(ops[a.op]).out], a, block)
                    : drawn(s.size(), Rng(planting.seed, prefix + a.name));
        for (const size_t j : first(order, planting.channels)) s[j] = 1 / planting.factor;
        fold(ex, block, ops, a, foldable_scale(block, ops, a, s));
      }
    }
    if (salient) {
      stream->bring(0, ops.size(), weights, ropes, ops.size());
      stream->moved(ops.size());
    }
    collect(ex, block, prefix, changed);
  }
  write_changed(c, changed, dir);
}

}  // namespace fewbit::test
