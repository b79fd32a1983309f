// The shapes, the clock and the order of the sections.
#include "src/run/bench/ops_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/core/half.h"
#include "src/core/marlin_layout.h"
#include "src/core/rng.h"
#include "src/core/strings.h"
#include "src/run/bench/ops_bench_parts.h"

namespace fewbit {
namespace ops {
namespace {

constexpr int64_t kRandomCount = int64_t{1} << 22, kRandomShift = 4096;
constexpr int kWarmUp = 3;  // rounds before those that count

double median(std::vector<double> v) {
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

}  // namespace

RandomSource::RandomSource(Exec& ex) : ex_(ex) {
  const Rng rng(1, "bench");
  Tensor normal = Tensor::host(DType::bf16, {kRandomCount}), words = Tensor::host(DType::i32, {kRandomCount});
  for (int64_t i = 0; i < kRandomCount; ++i) {
    normal.as<bf16>()[i] = static_cast<float>(rng.normal_at(static_cast<uint64_t>(i))) * 0.1f;
    words.as<uint32_t>()[i] = static_cast<uint32_t>(rng.at(static_cast<uint64_t>(i)));
  }
  normal_ = ex.to_device(normal);
  words_ = ex.to_device(words);
}

Tensor RandomSource::normal(Shape shape) { return fill(ex_.alloc(DType::bf16, shape), normal_); }
Tensor RandomSource::words(Shape shape) { return fill(ex_.alloc(DType::i32, shape), words_); }

Tensor RandomSource::fill(Tensor t, const Tensor& from) {
  const int64_t width = bytes_of(t.dtype()), block = kRandomCount - kRandomShift;
  for (int64_t done = 0; done < t.numel(); done += block) {
    const int64_t n = std::min(block, t.numel() - done), shift = (shifts_++ * 64) % kRandomShift;
    ex_.copy({static_cast<const char*>(from.view().data) + shift * width, t.dtype(), Shape{n}, t.device()},
             {static_cast<char*>(t.view().data) + done * width, t.dtype(), Shape{n}, t.device()});
  }
  return t;
}

PackedWeight packed_weight(Exec& ex, RandomSource& random, int64_t out, int64_t in, int bits) {
  PackedWeight w;
  w.b = random.words({in / 16, marlin::words_per_row(out, bits)});
  Tensor scales = Tensor::host(DType::f16, {in / 128, out});
  for (int64_t i = 0; i < scales.numel(); ++i) scales.as<f16>()[i] = 0.001f + 0.0001f * static_cast<float>(i % 17);
  w.s = ex.to_device(scales);
  w.view = {.b = w.b, .s = w.s, .bits = bits, .out = out, .in = in};
  return w;
}

std::vector<OpsProduct> packable(OpsRun& run, const OpsModel& model) {
  std::vector<OpsProduct> taken;
  for (const OpsProduct& p : model.products)
    if (marlin::admits(p.out, p.in, 128, 4))
      taken.push_back(p);
    else
      run.note(fmt::format("{} {}: {} x {} does not fit the Marlin layout (in % 128, out % 64); not timed packed",
                           model.name, p.name, p.in, p.out));
  return taken;
}

std::vector<int64_t> OpsRun::up_to_most(std::initializer_list<int64_t> counts) const {
  std::vector<int64_t> kept;
  for (const int64_t n : counts)
    if (n <= options_.most) kept.push_back(n);
  return kept;
}

bool OpsRun::answers() {
  try {
    ex.sync();
    ex.alloc_zeros(DType::i32, {1});
    ex.sync();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The other rows need not be lost with a failed one: the report shows each, and the command counts them.
bool OpsRun::tried(OpRow& row, const std::function<void()>& work) {
  try {
    work();
    return true;
  } catch (const Error& e) {
    if (lost_) throw;
    row.error = e.what();
    if (answers()) return false;
    keep(row);
    lost_ = true;
    throw;
  }
}

void OpsRun::attempt(OpRow what, const std::function<void()>& work) {
  if (!tried(what, work)) keep(std::move(what));
}

void OpsRun::time_in_turn(std::span<Timed> ops) {
  struct Turn {
    Timed& op;
    RecordedGraph graph{};
    std::vector<std::pair<int, int>> marks{};  // before and after each replay
  };
  const auto calls = [](const Timed& op) {
    for (int64_t i = 0; i < op.calls; ++i) op.body(i);
  };
  std::vector<Turn> turns;
  for (Timed& op : ops)
    tried(op.row, [&] {
      calls(op);
      ex.sync();  // or what it does wrong is found in the next one's calls
      turns.push_back({.op = op, .graph = ex.record([&] { calls(op); })});
    });
  int last = ex.mark();
  for (int i = 0; i < kWarmUp + options_.replays; ++i)
    for (Turn& t : turns) {
      if (!t.op.row.error.empty()) continue;
      const bool ran = tried(t.op.row, [&] {
        ex.on_cuda() ? ex.replay(t.graph) : calls(t.op);
        t.marks.emplace_back(last, ex.mark());
      });
      last = ran ? t.marks.back().second : ex.mark();
    }
  for (Turn& t : turns)
    if (t.op.row.error.empty())
      tried(t.op.row, [&] {
        std::vector<double> ms;
        for (const auto& [from, to] : std::span(t.marks).subspan(kWarmUp)) ms.push_back(ex.elapsed_ms(from, to));
        t.op.row.us = median(std::move(ms)) * 1000 / static_cast<double>(t.op.calls);
      });
}

void OpsRun::add(Timed op) {
  time_in_turn({&op, 1});
  keep(std::move(op.row));
}

void OpsRun::add_with_peer(Timed peer, std::vector<Timed> ops) {
  ops.insert(ops.begin(), std::move(peer));
  time_in_turn(ops);
  const OpRow same = std::move(ops.front().row);
  if (!same.error.empty()) keep(same);
  for (Timed& op : std::span(ops).subspan(1)) {
    op.row.peer = same.type, op.row.peer_us = same.us;
    keep(std::move(op.row));
  }
}

void OpsRun::keep(OpRow r) {
  const auto over = [](double a, double b) { return b > 0 ? a / b : 0; };
  r.gb_per_s = over(r.bytes, r.us) / 1e3;
  r.read_share = r.gb_per_s / report.read_gb_per_s;
  r.tflop_per_s = over(r.flop, r.us) / 1e6;
  r.product_share = r.tflop_per_s / report.product_tflop_per_s;
  r.gain = over(r.peer_us, r.us);
  report.rows.push_back(std::move(r));
  tell_(std::min(1.0, static_cast<double>(++kept_) / static_cast<double>(expected_)));
}

void OpsRun::note(const std::string& text) {
  if (std::find(report.notes.begin(), report.notes.end(), text) == report.notes.end()) report.notes.push_back(text);
}

}  // namespace ops

namespace {

constexpr OpsSection kSections[] = {
    {"small", "norm, addition, RoPE, activation, argmax", false, ops::small_ops},
    {"attention", "one token of each sequence over bf16, fp8 and int8 caches", false, ops::decode_attention},
    {"prefill", "causal attention of whole sequences", false, ops::prefill_attention},
    {"block", "a block's products, packed int4, back to back", true, ops::packed_block},
    {"layer", "a whole decoder layer, packed int4, op by op and in launches of its own", false, ops::decoder_layer},
    {"bytes", "a block's products on bf16, fp8 and int8 weights as they lie", true, ops::plain_block},
    {"head", "the head and the norm before it: bf16, fp8, int4", false, ops::head},
    {"linear", "each product of a block alone, packed int4 and int8", true, ops::packed_linears},
    {"latent", "one token of each sequence over a cache of latents, DeepSeek-V3's heads", false,
     ops::latent_attention_rows},
    {"delta", "the gated delta rule of Qwen3.8 27B: steps, and a prompt", false, ops::delta_rule_rows},
};

// The common form: q, k, v and gate, up side by side.
OpsModel preset(const char* name, int64_t hidden, int64_t inner, int64_t vocab, int heads) {
  constexpr int kKvHeads = 8;
  constexpr int64_t kHeadDim = 128;
  return {.name = name,
          .products = {{"qkv", hidden, (heads + 2 * kKvHeads) * kHeadDim},
                       {"o", heads * kHeadDim, hidden},
                       {"gate+up", hidden, 2 * inner},
                       {"down", inner, hidden}},
          .hidden = hidden,
          .inner = inner,
          .vocab = vocab,
          .heads = heads,
          .kv_heads = kKvHeads,
          .head_dim = kHeadDim,
          .notes = {}};
}

// "mlp.gate_proj" -> "gate"
std::string short_name(const std::string& linear) {
  const std::string last = linear.substr(linear.rfind('.') + 1);
  const size_t end = last.rfind("_proj");
  return end == std::string::npos ? last : last.substr(0, end);
}

}  // namespace

std::vector<OpsModel> ops_presets() {
  return {preset("8b", 4096, 14336, 128256, 32), preset("32b", 5120, 27648, 152064, 40),
          preset("70b", 8192, 28672, 128256, 64)};
}

OpsModel ops_model(const ModelSpec& spec, const std::string& name) {
  const std::vector<BlockOp>& block = spec.block(0);
  OpsModel m{.name = name, .products = {}, .hidden = spec.hidden, .vocab = spec.vocab, .notes = {}};
  if (spec.kinds.size() > 1) m.notes.push_back(name + ": its layers differ; the shapes are those of layer 0");
  if (const Attention* a = attention_of(block)) m.heads = a->heads, m.kv_heads = a->kv_heads, m.head_dim = a->head_dim;
  for (const BlockOp& op : block) {
    if (const GatedAct* act = std::get_if<GatedAct>(&op)) m.inner = slot_features(spec, block, act->gate);
    if (const Moe* moe = std::get_if<Moe>(&op)) {
      m.inner = moe->gate.out_features, m.experts = true;
      m.notes.push_back(name + ": products of experts are not timed");
    }
    const Linears* group = std::get_if<Linears>(&op);
    if (!group) continue;
    std::vector<std::string> names;
    int64_t out = 0;
    for (const LinearDef& l : group->items) names.push_back(short_name(l.name)), out += l.out_features;
    m.products.push_back({.name = join(names, "+"), .in = group->items.front().in_features, .out = out});
  }
  return m;
}

std::span<const OpsSection> ops_sections() { return kSections; }

OpsReport time_ops(Exec& ex, const OpsOptions& o, const BenchProgress& progress, const OpsSectionDone& done) {
  FEWBIT_ASSERT(!o.models.empty());
  const auto tell = [&](const std::string& phase, double f) {
    if (progress) progress(phase, f);
  };
  std::vector<OpsSection> wanted;
  for (const OpsSection& s : kSections)
    if (o.sections.empty() || std::find(o.sections.begin(), o.sections.end(), s.name) != o.sections.end())
      wanted.push_back(s);
  OpsReport r{.device = ex.device_name(), .rows = {}, .notes = {}};
  tell("measuring the ceilings", 0);
  r.read_gb_per_s = measure_memory(ex).read_gb_per_s;
  r.product_tflop_per_s = measure_products(ex, DType::bf16);
  if (done) done(r, "");
  std::string phase;
  double base = 0, part = 1;  // of the section: models that are done, and what one of them is
  ops::OpsRun run(ex, o, r, [&](double f) { tell(phase, base + part * f); });
  for (const OpsModel& m : o.models)
    for (const std::string& n : m.notes) run.note(n);
  for (size_t n = 0; n < wanted.size() && !run.lost(); ++n) {
    const OpsSection& section = wanted[n];
    const std::span models(o.models.data(), section.every_model ? o.models.size() : 1);
    phase = fmt::format("{}, section {} of {}", section.name, n + 1, wanted.size());
    part = 1 / static_cast<double>(models.size());
    for (size_t i = 0; i < models.size() && !run.lost(); ++i) {
      tell(phase, base = part * static_cast<double>(i));
      try {
        run.attempt({.section = section.name, .model = models[i].name, .op = section.name},
                    [&] { section.measure(run, models[i]); });
      } catch (const Error&) {
        FEWBIT_ASSERT(run.lost());
      }
    }
    if (done) done(r, section.name);
  }
  if (run.lost())
    r.notes.push_back("the GPU no longer answers after the last error: what was to follow is not measured");
  return r;
}

}  // namespace fewbit
