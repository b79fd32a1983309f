#include "src/quant/search/end_sensitivity.h"

#include <algorithm>

#include "kernels/model/cast.h"
#include "src/calib/observe.h"
#include "src/quant/rounding.h"
#include "src/quant/search/mean_divergence.h"

namespace fewbit {
namespace {

const Method& method_for(const QuantSpec& spec, bool embedding) {
  if (!embedding) return method_gptq;
  return spec.grid == Grid::f8_e4m3 ? method_fp8 : method_rtn;
}

InputStats stats_of_head(Exec& ex, Runner& runner, ConstTensorView base) {
  const Tensor normed = runner.final_normed(base);
  const EachChunk each = [&](const auto& show) { show({normed}); };
  return observe_input(ex, each, normed.rows(), {.in = normed.cols()}, {});
}

}  // namespace

std::vector<double> end_costs(Exec& ex, const Checkpoint& c, Runner& runner, const UnitSpecs& unit,
                              const Windows& held_out, ConstTensorView base, uint64_t seed) {
  const std::string name = unit.linears.names().front();
  const auto ends = ends_of(c.spec);
  const NamedLinear& end =
      *std::find_if(ends.begin(), ends.end(), [&](const NamedLinear& l) { return l.name == name; });
  const bool embedding = name + ".weight" == c.spec.embed;
  const DType dtype = runner.dtype();
  const Tensor weight = ex.to_device(c.values(end));
  const InputStats stats = embedding ? InputStats{} : stats_of_head(ex, runner, base);
  Ends changed = load_ends(ex, c, {.dtype = dtype, .weights = Weights::values});
  std::vector<double> cost;
  for (const QuantSpec& spec : unit.specs) {
    const MethodResult r = method_for(spec, embedding)
                               .quantize(ex, {.name = name,
                                              .weight = weight,
                                              .stats = embedding ? nullptr : &stats,
                                              .spec = spec,
                                              .effort = embedding ? Effort::standard : Effort::quick,
                                              .allow_rtn = true,
                                              .seed = seed});
    Tensor values = values_of(ex, r.linear, dtype);
    Tensor states = ex.alloc(base.dtype, base.shape);
    if (embedding) {
      changed.embed = std::move(values);
      const EmbeddedTokens in = embed_tokens(ex, c.spec, changed, held_out.ids, held_out.count, dtype);
      ex.copy(in.x, states);
      runner.run_blocks(states, held_out.count, 0, c.spec.layers);
    } else {
      changed.lm_head = DenseLinear{.weight = std::move(values)};
      ex.copy(base, states);
    }
    cost.push_back(mean_divergence(
        ex, base.rows(), c.spec.vocab,
        [&](int64_t begin, int64_t last) { return runner.logits(base.row_range(begin, last)); },
        [&](int64_t begin, int64_t last) {
          return logits_of(ex, c.spec, changed, states.view().row_range(begin, last));
        }));
  }
  return cost;
}

}  // namespace fewbit
