#include "src/quant/importance.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/error.h"
#include "src/model/gguf/names.h"

namespace fewbit {
namespace {

// One of several tensors that a linear is in, whose rows alone differ, speaks for it; numbers that are turned over have
// no inputs in common with it.
bool speaks(const GgufTensor& g) { return g.turned == 0 && (g.linear || g.part.rank() == 2); }

std::vector<float> in_order(const GgufTensor& g, const std::vector<float>& row, GgufDirection direction) {
  if (g.runs.empty()) return row;
  const auto n = static_cast<int64_t>(row.size());
  const Tensor turned = reordered_runs(Tensor::host_from<float>(DType::f32, {1, n}, row), g.runs,
                                       g.run * static_cast<int64_t>(sizeof(float)), direction);
  return {turned.as<float>(), turned.as<float>() + n};
}

}  // namespace

ConstTensorView importance_of(const Importance* all, const std::string& linear) {
  if (!all) return {};
  const auto at = all->find(linear);
  return at == all->end() ? ConstTensorView{} : at->second.view();
}

Importance importance_from(const gguf::Imatrix& m, const ModelSpec& spec, const std::string& file) {
  Importance all;
  for (const GgufTensor& g : gguf_tensors(spec)) {
    const auto at = m.entries.find(g.name);
    if (at == m.entries.end() || !speaks(g)) continue;
    const gguf::ImatrixEntry& e = at->second;
    const size_t parts = g.parts.size(), in = static_cast<size_t>(g.part[-1]);
    if (e.squares.size() != parts * in || (e.counts.size() != parts && e.counts.size() != 1))
      fail(ErrorKind::checkpoint,
           fmt::format("{}: {}: expected {} x {} sums for this model, found {} with {} counts; it is of another model",
                       file, g.name, parts, in, e.squares.size(), e.counts.size()));
    for (size_t i = 0; i < parts; ++i) {
      const float count = e.counts[e.counts.size() == 1 ? 0 : i];
      std::vector<float> row(e.squares.begin() + static_cast<int64_t>(i * in),
                             e.squares.begin() + static_cast<int64_t>((i + 1) * in));
      for (float& v : row) v = count > 0 ? v / count : 1.f;
      row = in_order(g, row, GgufDirection::from_gguf);
      all.emplace(module_of(g.parts[i]), Tensor::host_from<float>(DType::f32, {static_cast<int64_t>(in)}, row));
    }
  }
  if (all.empty())
    fail(ErrorKind::checkpoint, fmt::format("{}: none of its {} entries is of a tensor of this model (first: {})", file,
                                            m.entries.size(), m.entries.begin()->first));
  return all;
}

gguf::Imatrix imatrix_of(const std::map<std::string, SeenInputs>& seen, const ModelSpec& spec) {
  gguf::Imatrix m;
  for (const GgufTensor& g : gguf_tensors(spec)) {
    if (!speaks(g)) continue;
    gguf::ImatrixEntry e;
    bool some = false;
    for (const std::string& part : g.parts) {
      const auto at = seen.find(module_of(part));
      some |= at != seen.end();
      std::vector<float> row(static_cast<size_t>(g.part[-1]), 0.f);
      if (at != seen.end()) std::copy_n(at->second.squares.as<float>(), row.size(), row.begin());
      row = in_order(g, row, GgufDirection::to_gguf);
      e.squares.insert(e.squares.end(), row.begin(), row.end());
      e.counts.push_back(at == seen.end() ? 0.f : static_cast<float>(at->second.tokens));
    }
    if (some) m.entries.emplace(g.name, std::move(e));
  }
  return m;
}

}  // namespace fewbit
