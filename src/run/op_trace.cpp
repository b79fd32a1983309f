#include "src/run/op_trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/exec/read_all.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

struct Named {
  std::string category, name;
};

struct Namer {
  Named operator()(const Norm& op) const { return {"norm", op.name}; }
  Named operator()(const HeadNorm& op) const { return {"norm", op.name}; }
  Named operator()(const Linears& op) const {
    std::vector<std::string> names;
    for (const LinearDef& l : op.items) names.push_back(l.name);
    return {"linears", join(names, " + ")};
  }
  Named operator()(const Split& op) const { return {"other", std::string("split ") + name_of(op.in)}; }
  Named operator()(const Rope&) const { return {"other", "rope"}; }
  Named operator()(const Attention&) const { return {"attention", "attention"}; }
  Named operator()(const GatedAct& op) const {
    static constexpr const char* kNames[] = {"silu gate", "gelu gate", "relu gate", "product"};
    return {"other", kNames[static_cast<size_t>(op.act)]};
  }
  Named operator()(const AddTo&) const { return {"other", "residual"}; }
  Named operator()(const Moe& op) const { return {"experts", op.router.empty() ? "experts" : op.router + ", experts"}; }
  Named operator()(const Project& op) const { return {"other", op.name}; }
  Named operator()(const Scale& op) const { return {"other", op.name}; }
  Named operator()(const SigmoidGate&) const { return {"other", "sigmoid gate"}; }
  Named operator()(const ShortConv& op) const { return {"other", op.name}; }
  Named operator()(const BiasedNorm& op) const { return {"norm", op.name}; }
  Named operator()(const KeyChoice&) const { return {"attention", "choice of keys"}; }
  Named operator()(const LatentAttention&) const { return {"attention", "latent attention"}; }
  Named operator()(const DeltaRule&) const { return {"attention", "delta rule"}; }
  Named operator()(const StateScan&) const { return {"attention", "state scan"}; }
  Named operator()(const PositionScale&) const { return {"other", "position scale"}; }
  Named operator()(const TokenInput&) const { return {"other", "token input"}; }
  Named operator()(const Keep&) const { return {"other", "keep"}; }
  Named operator()(const CompressKeys& op) const { return {"attention", op.name}; }
  Named operator()(const SharedKeyAttention&) const { return {"attention", "attention over shared keys"}; }
  Named operator()(const ReadStreams& op) const { return {"other", op.name}; }
  Named operator()(const WriteStreams&) const { return {"other", "residual streams"}; }
  Named operator()(const TokenRoute& op) const { return {"other", op.router}; }
};

TracedOp traced(const PassStep& step) {
  TracedOp t{.name = std::string(step.what), .category = "ends", .layer = step.layer};
  std::vector<std::string> names;
  for (const BlockOp& op : step.ops) {
    const Named n = std::visit(Namer{}, op);
    names.push_back(n.name);
    // Of ops that ran as one, the heaviest names the category.
    const bool heavy = n.category == "linears" || n.category == "attention" || n.category == "experts";
    if (names.size() == 1 || heavy) t.category = n.category;
    if (const Linears* linears = std::get_if<Linears>(&op))
      for (const LinearDef& l : linears->items)
        t.shapes.emplace_back(l.name, fmt::format("{} x {}", l.out_features, l.in_features));
  }
  if (!names.empty()) t.name = join(names, ", ");
  return t;
}

// Runs `pass` with a mark behind every step of it.
TracedPass trace(Exec& ex, Engine& engine, const char* name, int64_t rows, const std::function<void()>& pass) {
  TracedPass result{.name = name, .rows = rows, .ops = {}};
  std::vector<std::pair<int, int>> spans;
  int last = ex.mark();
  engine.watch([&](const PassStep& step) {
    const int now = ex.mark();
    if (!step.begins) {
      result.ops.push_back(traced(step));
      spans.emplace_back(last, now);
    }
    last = now;
  });
  pass();
  engine.watch({});
  ex.sync();
  const int first = spans.front().first;
  for (size_t i = 0; i < spans.size(); ++i) {
    result.ops[i].begin_us = 1e3 * ex.elapsed_ms(first, spans[i].first);
    result.ops[i].us = 1e3 * ex.elapsed_ms(spans[i].first, spans[i].second);
  }
  return result;
}

}  // namespace

std::vector<TracedPass> trace_passes(Exec& ex, Engine& engine, std::span<const int32_t> prompt) {
  const int64_t batch = engine.batch();
  const auto prefill = [&] { engine.greedy_start(engine.prefill(prompt)); };
  engine.reset();
  prefill();
  engine.greedy_step();
  engine.greedy_tokens();
  engine.reset();
  std::vector<TracedPass> passes;
  passes.push_back(trace(ex, engine, "prefill", static_cast<int64_t>(prompt.size()), prefill));
  // The launches of a step take the host longer than the GPU: some milliseconds of other work let it get ahead, so that
  // the times are the GPU's.
  const Tensor ahead = ex.alloc_zeros(DType::u8, {ex.on_cuda() ? int64_t{256} << 20 : 256}),
               mixed = ex.alloc(DType::i32, {1});
  for (int i = 0; ex.on_cuda() && i < 100; ++i) read_all(ex, ahead, mixed);
  passes.push_back(trace(ex, engine, "decode step", batch, [&] { engine.greedy_step(); }));
  engine.reset();
  return passes;
}

}  // namespace fewbit
