#include "src/quant/pipeline.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/kv_scales.h"
#include "kernels/cast.h"
#include "kernels/column_stats.h"
#include "kernels/embed.h"
#include "kernels/gemm.h"
#include "kernels/gram.h"
#include "kernels/gram_loss.h"
#include "kernels/squared_error.h"
#include "src/calib/experts.h"
#include "src/calib/observe.h"
#include "src/calib/stream.h"
#include "src/core/hash.h"
#include "src/quant/block_encoding.h"
#include "src/quant/learned_rounding.h"
#include "src/quant/output.h"
#include "src/quant/rounding.h"
#include "src/run/runner.h"

namespace fewbit {
namespace {

constexpr float kLargestF8 = 448;  // of E4M3
// Scales per feature need fewer tokens than rounding does; the published AWQ takes as many.
constexpr int64_t kTransformTokens = 65536, kTransformSample = 1024;

class Timer {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

int64_t peak_host_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

// Says that `done` blocks (and a part of the next) are finished.
void tell(const QuantJob& job, const ModelSpec& spec, double done) {
  if (job.progress) job.progress("quantizing blocks", done / static_cast<double>(spec.layers));
}

// Everything that decides the bits of the output, on one line.
std::string identity_of(const Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& w,
                        const QuantJob& job) {
  Hasher recipes, model;
  for (const PlannedLinear& p : plan.linears) {
    const std::string line = p.linear.name + (p.keep ? "keep" : p.recipe.str() + std::string(p.layout()));
    recipes.add(line.data(), line.size());
  }
  recipes.add(&plan.fp8_kv_cache, sizeof plan.fp8_kv_cache);
  model.add(c.config.text().data(), c.config.text().size());
  for (const auto& [name, info] : c.store.index().tensors) {
    // A sample of every tensor: enough to tell two checkpoints apart without reading all of them.
    const ConstTensorView v = c.store.get(name);
    model.add(name.data(), name.size());
    model.add(v.data, static_cast<size_t>(std::min<int64_t>(v.bytes(), 4096)));
  }
  return nlohmann::json{{"recipes", recipes.hex()},
                        {"model", model.hex()},
                        {"calibration", content_hash(w.ids.data(), w.ids.size() * sizeof(int32_t))},
                        {"seq_len", w.length},
                        {"dtype", name_of(job.dtype)},
                        {"device", ex.on_cuda() ? "cuda" : "cpu"},
                        {"seed", job.seed}}
      .dump();
}

// One run: the two streams, the journal and what the block loop needs at hand.
class Run {
 public:
  Run(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& windows, const QuantJob& job)
      : ex_(ex),
        ckpt_(c),
        plan_(plan),
        job_(job),
        ropes_(ex, c.spec),
        journal_(job.out, identity_of(ex, c, plan, windows, job),
                 job.resume ? Journal::Start::resume : Journal::Start::fresh) {
    windows_ = windows.count;
    if (windows.count > 0) start_streams(windows);
  }

  Journal& journal() { return journal_; }
  std::map<std::string, double>& phases() { return phases_; }
  const std::vector<ExpertRecord>& experts() const { return experts_; }
  const std::vector<KvRecord>& kv_scales() const { return kv_scales_; }

  void block(int64_t layer) {
    const bool sealed = journal_.sealed(layer);
    if (sealed && !quantized_) return;  // data-free: nothing downstream depends on this block
    packed_.clear();
    coded_.clear();
    restored_.reset();
    rewritten_ = {};
    if (sealed) restored_ = container_safetensors.open(journal_.block_file(layer));
    const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
    BlockWeights weights;
    if (quantized_)
      timed("load", [&] { weights = load_block(ex_, ckpt_, layer, {.dtype = job_.dtype}, nullptr); });
    if (!plan_.transforms.empty()) transform(layer, weights);
    if (quantized_) quantized_->begin_block(ops);
    if (full_) full_->begin_block(ops);
    learning_ = !sealed && learns_rounding(plan_, ckpt_.spec, layer);
    const Tensor entering = learning_ ? copy_of(quantized_->x()) : Tensor();
    for (size_t i = 0; i < ops.size(); ++i) {
      std::map<std::string, Linear> replaced;
      if (const auto* group = std::get_if<Linears>(&ops[i])) replaced = quantize_group(layer, *group);
      if (const auto* moe = std::get_if<Moe>(&ops[i])) replaced = quantize_experts(layer, *moe, weights);
      if (!learning_) scale_kv(layer, ops[i]);
      timed("forward", [&] {
        if (full_) full_->run(i, weights, ropes_);  // before the weights are replaced
        for (auto& [name, linear] : replaced) {     // the bias stays
          auto& by = std::get<DenseLinear>(linear);
          auto& dense = std::get<DenseLinear>(weights.linears.at(name));
          dense.weight = std::move(by.weight);
          dense.input = by.input;
        }
        if (quantized_) quantized_->run(i, weights, ropes_);
      });
    }
    if (sealed) return;
    if (learning_) learn(layer, entering, weights);
    seal(layer);
  }

 private:
  template <class F>
  void timed(const std::string& phase, F&& work) {
    const Timer t;
    work();
    ex_.sync();
    phases_[phase] += t.seconds();
  }

  void start_streams(const Windows& w) {
    check_ids(ckpt_.spec, w.ids);
    const Tensor ids = ex_.to_device(Tensor::host_from<int32_t>(DType::i32, {w.count * w.length}, w.ids));
    const auto states = [&] {
      const Ends ends = load_ends(ex_, ckpt_, job_.dtype);
      Tensor x = ex_.alloc(job_.dtype, {w.count * w.length, ckpt_.spec.hidden});
      embed(ex_, ids, ends.embed, ckpt_.spec.embed_scale, x);
      return x;
    };
    quantized_.emplace(ex_, ckpt_.spec, states(), w.count);
    if (has(plan_.needs, Needs::cross)) full_.emplace(ex_, ckpt_.spec, states(), w.count);
  }

  Tensor copy_of(ConstTensorView device) {
    Tensor t = ex_.alloc(device.dtype, device.shape);
    ex_.copy(device, t);
    return t;
  }

  // Rewrites the block, in both streams and in what is quantized. A resumed run does the same again: the
  // rewritten weights, which no file holds, are those that the unquantized stream needs.
  void transform(int64_t layer, BlockWeights& weights) {
    const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
    TransformJob job{.ops = &ops, .migration = plan_.migration};
    for (const BlockOp& op : ops)
      if (const auto* group = std::get_if<Linears>(&op))
        for (const LinearDef& l : group->items)
          if (const PlannedLinear& p = plan_.of(ckpt_.spec.prefix(layer) + l.name); !p.keep)
            job.targets[l.name] = {p.recipe.spec, p.recipe.effort, p.recipe.method};
    job.absorbers = usable_absorbers(ops, job.targets);
    if (job.absorbers.empty()) return;
    timed("load", [&] { rewritten_ = load_block_f32(ex_, ckpt_, layer, job.absorbers); });
    for (const Transform* t : plan_.transforms) {
      timed("observe", [&] { job.stats = observe_block(ops, job.absorbers, weights); });
      timed("transform", [&] {
        t->apply(ex_, job, rewritten_);
        replace_in(ex_, rewritten_, job_.dtype, weights);
      });
    }
    for (NamedTensor& t : changed_tensors(rewritten_, ckpt_.spec.prefix(layer)))
      packed_.push_back(std::move(t));
  }

  // What the inputs of the absorbers' consumers look like when the states that enter the block (those of the
  // quantized stream) run through it as it is, on kTransformTokens of the tokens. The states themselves stay.
  std::map<size_t, ActivationStats> observe_block(const std::vector<BlockOp>& ops,
                                                  const std::vector<Absorber>& absorbers,
                                                  const BlockWeights& weights) {
    std::map<size_t, ActivationStats> stats;
    for (const Absorber& a : absorbers) stats[a.consumers.front()];
    // Windows at even distances, for the draw puts those of one text side by side.
    const int64_t length = quantized_->tokens() / windows_;
    const int64_t count = std::clamp(kTransformTokens / length, int64_t{1}, windows_);
    Tensor x = ex_.alloc(job_.dtype, {count * length, ckpt_.spec.hidden});
    for (int64_t k = 0; k < count; ++k) {
      const int64_t from = k * windows_ / count * length;
      ex_.copy(quantized_->x().view().row_range(from, from + length),
               x.view().row_range(k * length, (k + 1) * length));
    }
    Stream stream(ex_, ckpt_.spec, std::move(x), count);
    stream.begin_block(ops);
    for (size_t i = 0; i <= stats.rbegin()->first; ++i) {
      if (stats.count(i)) stats[i] = activation_stats(stream.input(std::get<Linears>(ops[i]).in));
      stream.run(i, weights, ropes_);
    }
    return stats;
  }

  ActivationStats activation_stats(ConstTensorView x) {
    ActivationStats s;
    s.input.tokens = x.rows();
    s.input.gram = ex_.alloc_zeros(DType::f32, {x.cols(), x.cols()});
    s.absmax = ex_.alloc_zeros(DType::f32, {x.cols()});
    s.abssum = ex_.alloc_zeros(DType::f64, {x.cols()});
    gram(ex_, x, s.input.gram);
    column_stats(ex_, x, {}, s.absmax, s.abssum);
    s.sample = spread_rows(ex_, x, kTransformSample);
    return s;
  }

  // Statistics of the input that the linears of a group share.
  std::optional<InputStats> observe(const Linears& group, const InputRounding& rounding) {
    std::optional<InputStats> stats;
    if (!quantized_) return stats;
    timed("observe", [&] {
      stats = observe_input(ex_, quantized_->input(group.in),
                            full_ ? full_->input(group.in) : ConstTensorView{}, rounding);
    });
    return stats;
  }

  // Quantizes (or, for a sealed block, restores) the linears of a group; returns what takes their place in
  // the quantized stream, without biases.
  std::map<std::string, Linear> quantize_group(int64_t layer, const Linears& group) {
    std::map<std::string, Linear> replaced;
    quantize_items(
        layer, group.items, [&](const InputRounding& r) { return observe(group, r); }, replaced);
    return replaced;
  }

  // The same of a mixture: gate and up of every expert, then every down, whose inputs the quantized gates
  // decide.
  std::map<std::string, Linear> quantize_experts(int64_t layer, const Moe& op, const BlockWeights& weights) {
    std::map<std::string, Linear> replaced;
    const auto linear = [&](const std::string& name) -> const Linear& {
      const auto it = replaced.find(name);
      return it == replaced.end() ? weights.linears.at(name) : it->second;
    };
    std::optional<ExpertInputs> seen;
    if (quantized_) {
      timed("observe", [&] {
        seen.emplace(ex_, op, weights, quantized_->input(op.in),
                     full_ ? full_->input(op.in) : ConstTensorView{});
      });
      experts_.push_back({layer, seen->tokens(), seen->starved()});
    }
    const auto stats_of = [&](auto&& ask) -> std::optional<InputStats> {
      std::optional<InputStats> stats;
      if (seen) timed("observe", [&] { stats = ask(*seen); });
      return stats;
    };
    for (int e = 0; e < op.experts; ++e)
      quantize_items(
          layer, {op.of_expert(op.gate, e), op.of_expert(op.up, e)},
          [&](const InputRounding& r) {
            return stats_of([&](ExpertInputs& s) { return s.of_input(e, r); });
          },
          replaced);
    for (int e = 0; e < op.experts; ++e)
      quantize_items(
          layer, {op.of_expert(op.down, e)},
          [&](const InputRounding& r) {
            return stats_of([&](ExpertInputs& s) { return s.of_activation(e, r, linear); });
          },
          replaced);
    return replaced;
  }

  // The scales of the layer's FP8 cache: the largest key (after RoPE) and the largest value that calibration
  // saw become the largest code. Of a block whose codes are learned, after that.
  void scale_kv(int64_t layer, const BlockOp& op) {
    const auto* a = std::get_if<Attention>(&op);
    if (!a || !plan_.fp8_kv_cache) return;
    const std::string name = ckpt_.spec.prefix(layer) + attention_module(ckpt_.spec.block(layer));
    KvScales scales;
    if (restored_) {
      scales = read_kv_scales(name, a->kv_heads, restored()).value();
    } else {
      timed("observe", [&] {
        for (auto [slot, to] : {std::pair{a->k, &scales.k}, std::pair{a->v, &scales.v}})
          *to = {largest_of(quantized_->input(slot)) / kLargestF8};
      });
      for (NamedTensor& t : kv_scale_tensors(name, scales)) packed_.push_back(std::move(t));
    }
    kv_scales_.push_back({layer, scales.k[0], scales.v[0]});
  }

  // The largest magnitude in x; the least normal number where all are zero.
  float largest_of(ConstTensorView x) {
    const Tensor absmax = ex_.alloc_zeros(DType::f32, {x.cols()}), sum = ex_.alloc_zeros(DType::f64, {x.cols()});
    column_stats(ex_, x, {}, absmax, sum);
    const Tensor host = ex_.to_host(absmax);
    return std::max(*std::max_element(host.as<float>(), host.as<float>() + host.numel()),
                    std::numeric_limits<float>::min() * kLargestF8);
  }

  // Linears that share the input whose statistics `observed` returns; it is asked only where they are needed,
  // once for every way in which they round that input.
  void quantize_items(int64_t layer, const std::vector<LinearDef>& items,
                      const std::function<std::optional<InputStats>(const InputRounding&)>& observed,
                      std::map<std::string, Linear>& replaced) {
    const bool restore = restored_.has_value();
    const float shared = restore ? 0 : shared_absmax(layer, items);
    std::optional<InputStats> stats;
    std::optional<InputRounding> seen;
    for (const LinearDef& def : items) {
      const PlannedLinear& p = plan_.of(ckpt_.spec.prefix(layer) + def.name);
      if (p.keep) continue;
      if (const InputRounding rounding = rounding_of(p.recipe.spec, p.recipe.percentile);
          !restore && seen != rounding) {
        stats = observed(rounding);
        seen = rounding;
      }
      const auto replace = [&](DenseLinear&& dense) {
        if (quantized_) replaced.emplace(def.name, std::move(dense));
      };
      if (p.blocks) {
        replace({.weight = encoded(def, p, stats ? &*stats : nullptr, restore), .bias = {}, .input = {}});
        continue;
      }
      if (restore) {
        replace(dense_of(unpack(p)));
        continue;
      }
      Coded& coded = quantize(def, p, stats ? &*stats : nullptr, shared);
      replace(dense_of(coded.linear));
      if (!learning_) pack(coded);
    }
  }

  // A linear of the block at hand, coded but not packed yet.
  struct Coded {
    const PlannedLinear* plan = nullptr;
    std::string name{};  // relative to the block
    Tensor weight{};     // [out, in] f32 on the device; kept where the codes will be learned, to measure them
    QuantizedLinear linear{};
    LinearRecord record{};
  };

  float absmax(const PlannedLinear& p) {
    if (const Tensor* w = rewritten(p)) return absmax_of(ex_, *w);
    return absmax_of(ex_, stored_weight(p));
  }

  // Largest |w| of the linears whose scales have a second level: engines that fuse them want it to be shared.
  float shared_absmax(int64_t layer, const std::vector<LinearDef>& items) {
    float largest = 0;
    for (const LinearDef& def : items)
      if (const PlannedLinear& p = plan_.of(ckpt_.spec.prefix(layer) + def.name);
          !p.keep && p.recipe.spec.two_level())
        largest = std::max(largest, absmax(p));
    return largest;
  }

  Coded& quantize(const LinearDef& def, const PlannedLinear& p, const InputStats* stats, float shared) {
    const Timer timer;
    Tensor w = weight_of(p);
    MethodResult r;
    timed("quantize", [&] {
      r = p.recipe.method->quantize(ex_, {.name = p.linear.name,
                                          .weight = w,
                                          .stats = stats,
                                          .spec = p.recipe.spec,
                                          .effort = p.recipe.effort,
                                          .act_order = p.recipe.act_order,
                                          .damp = p.recipe.damp,
                                          .allow_rtn = job_.allow_rtn,
                                          .seed = job_.seed,
                                          .shared_absmax = shared});
    });
    if (p.recipe.spec.activations == ActQuant::tensor) r.linear.input_scale = stats->input_scale;
    validate(r.linear);
    Coded& coded = coded_.emplace_back();
    coded.plan = &p;
    coded.name = def.name;
    coded.record = {.name = p.linear.name,
                    .recipe = p.recipe.str(),
                    .packing = std::string(p.packing->name),
                    .rung = r.rung,
                    .loss = r.loss,
                    .loss_rtn = r.loss_rtn,
                    .tokens = stats ? stats->tokens - stats->borrowed : 0,
                    .hash = {}};
    coded.linear = std::move(r.linear);
    if (learning_ && p.recipe.learns_rounding())
      coded.weight = std::move(w);
    else
      timed("measure", [&] { measure_linear(w, coded.linear, stats, coded.record); });
    coded.record.seconds = timer.seconds();
    return coded;
  }

  // Moves the codes of the block down the gradient of its output error, then runs the quantized stream
  // through the block again, from the states that entered it.
  void learn(int64_t layer, ConstTensorView entering, BlockWeights& weights) {
    BlockLearning job{.spec = &ckpt_.spec,
                      .layer = layer,
                      .ropes = &ropes_,
                      .weights = &weights,
                      .entering = entering,
                      .target = full_->x(),
                      .windows = windows_,
                      .seed = job_.seed,
                      .linears = {},
                      .progress = [&](double f) { tell(job_, ckpt_.spec, static_cast<double>(layer) + f); }};
    for (Coded& c : coded_)
      if (c.plan->recipe.learns_rounding()) job.linears.push_back({.name = c.name, .coded = &c.linear});
    timed("learn", [&] {
      if (!learn_rounding(ex_, job).changed) return;
      for (Coded& c : coded_) {
        validate(c.linear);
        if (c.plan->recipe.learns_rounding()) c.record.learned = true;
      }
    });
    for (const Coded& c : coded_)
      std::get<DenseLinear>(weights.linears.at(c.name)).weight = values_of(ex_, c.linear, job_.dtype);
    timed("forward", [&] { ex_.copy(entering, quantized_->x()); });
    const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
    quantized_->begin_block(ops);
    for (size_t i = 0; i < ops.size(); ++i) {
      if (const auto* group = std::get_if<Linears>(&ops[i])) timed("measure", [&] { measure_group(*group); });
      scale_kv(layer, ops[i]);
      timed("forward", [&] { quantized_->run(i, weights, ropes_); });
    }
  }

  // The records of the learned linears of a group on the inputs that they have now.
  void measure_group(const Linears& group) {
    InputStats stats;
    for (const LinearDef& l : group.items)
      for (Coded& c : coded_) {
        if (c.name != l.name || c.weight.empty()) continue;
        if (stats.gram.empty()) {
          const ConstTensorView x = quantized_->input(group.in);
          stats.tokens = x.rows();
          stats.gram = ex_.alloc_zeros(DType::f32, {x.cols(), x.cols()});
          gram(ex_, x, stats.gram);
        }
        measure_linear(c.weight, c.linear, &stats, c.record);
      }
  }

  // Turns the final codes into bytes and lets go of them; the record stays.
  void pack(Coded& c) {
    if (c.plan->blocks) return;  // its bytes are packed already
    timed("pack", [&] {
      for (NamedTensor& t : c.plan->packing->pack(c.plan->linear.name, c.linear).tensors)
        packed_.push_back(std::move(t));
    });
    c.record.hash = content_hash(c.linear);
    c.linear = {};
    c.weight.reset();
  }

  void seal(int64_t layer) {
    std::vector<LinearRecord> records;
    for (Coded& c : coded_) {
      if (learning_) pack(c);
      records.push_back(std::move(c.record));
    }
    timed("write", [&] { journal_.seal(layer, packed_, records); });
  }

  // The same of a linear that the format's encoder takes (or that a sealed block has): its values on the
  // device.
  Tensor encoded(const LinearDef& def, const PlannedLinear& p, const InputStats* stats, bool restore) {
    if (restore) return on_device(decode_blocks(p, restored()));
    const Timer timer;
    const Tensor w = weight_of(p);
    EncodedBlocks e;
    timed("quantize", [&] { e = encode_blocks(ex_, p, w, stats); });
    Coded& coded = coded_.emplace_back();
    coded.plan = &p;
    coded.name = def.name;
    coded.record = {.name = p.linear.name,
                    .recipe = p.recipe.str(),
                    .packing = std::string(p.layout()),
                    .rung = "",
                    .loss = e.loss,
                    .loss_rtn = e.loss_plain,
                    .tokens = stats ? stats->tokens - stats->borrowed : 0,
                    .hash = e.hash};
    timed("measure", [&] { measure(w, ex_.to_device(e.values), std::nullopt, stats, coded.record); });
    packed_.push_back(std::move(e.bytes));
    coded.record.seconds = timer.seconds();
    return on_device(e.values);
  }

  Tensor on_device(const Tensor& host_f32) {
    Tensor w = ex_.alloc(job_.dtype, host_f32.shape());
    cast(ex_, ex_.to_device(host_f32), w);
    return w;
  }

  Tensor* rewritten(const PlannedLinear& p) {
    const auto it =
        rewritten_.weights.find(p.linear.name.substr(ckpt_.spec.prefix(p.linear.layer).size()) + ".weight");
    return it == rewritten_.weights.end() ? nullptr : &it->second;
  }

  // The weight to quantize in f32: as a transform left it (which then is gone), else as it is stored.
  Tensor weight_of(const PlannedLinear& p) {
    if (Tensor* w = rewritten(p)) return std::move(*w);
    return stored_weight(p);
  }

  Tensor stored_weight(const PlannedLinear& p) {
    const std::string name = p.linear.name + ".weight";
    const ConstTensorView stored =
        ckpt_.store.expect(name, {DType::f32, DType::f16, DType::bf16}, {p.linear.out, p.linear.in});
    Tensor w = ex_.alloc(DType::f32, stored.shape);
    cast(ex_, ex_.to_device(stored), w);
    return w;
  }

  // What takes the place of a quantized linear in the quantized stream.
  DenseLinear dense_of(const QuantizedLinear& q) {
    if (!quantized_) return {};
    return {.weight = values_of(ex_, q, job_.dtype), .bias = {}, .input = input_quant(q.spec, q.input_scale)};
  }

  void measure_linear(const Tensor& w, const QuantizedLinear& q, const InputStats* stats, LinearRecord& record) {
    measure(w, values_of(ex_, q, DType::f32), input_quant(q.spec, q.input_scale), stats, record);
  }

  // Relative error of the output on the calibration data (of the weights where there is none) and SQNR. Where the
  // linear rounds its input, on the first kSampleTokens tokens, run both ways.
  void measure(const Tensor& w, const Tensor& value, const std::optional<RowQuant>& rounding,
               const InputStats* stats, LinearRecord& record) {
    const Tensor rows = ex_.alloc(DType::f64, {w.rows()});
    const auto total = [&](ConstTensorView b) {
      squared_error(ex_, w, b, rows);
      return sum_of(ex_, rows);
    };
    const double energy = total({}), error = total(value);
    record.sqnr_db = error > 0 ? 10 * std::log10(energy / error) : std::numeric_limits<double>::max();
    record.rel_error = energy > 0 ? std::sqrt(error / energy) : 0;
    if (!stats) return;
    if (rounding && stats->sample) {
      record.rel_error = output_error(w, value, *rounding, stats->sample);
      return;
    }
    const Tensor zero = ex_.alloc_zeros(DType::f32, w.shape());
    const auto output = [&](ConstTensorView b) {
      gram_loss(ex_, w, b, stats->gram, rows);
      return sum_of(ex_, rows);
    };
    const double signal = output(zero);
    record.rel_error = signal > 0 ? std::sqrt(std::max(0.0, output(value)) / signal) : 0;
  }

  // ||W x - Q round(x)|| / ||W x|| over the rows of x.
  double output_error(const Tensor& w, const Tensor& q, const RowQuant& rounding, const Tensor& sample) {
    Tensor x = ex_.alloc(DType::f32, sample.shape());
    cast(ex_, sample, x);
    const Tensor full = ex_.alloc(DType::f32, {x.rows(), w.rows()}), rounded = ex_.alloc(DType::f32, full.shape());
    gemm(ex_, x, w, {}, full);
    rounded_gemm(ex_, x, rounding, q, {}, rounded);
    const Tensor rows = ex_.alloc(DType::f64, {x.rows()});
    squared_error(ex_, full, {}, rows);
    const double signal = sum_of(ex_, rows);
    squared_error(ex_, full, rounded, rows);
    return signal > 0 ? std::sqrt(sum_of(ex_, rows) / signal) : 0;
  }

  QuantizedLinear unpack(const PlannedLinear& p) {
    return p.packing->unpack(p.linear.name, p.recipe.spec, p.linear.out, p.linear.in, restored());
  }

  TensorSource restored() {
    return [this](const std::string& name) -> ConstTensorView {
      const auto it = restored_->tensors.find(name);
      return it == restored_->tensors.end() ? ConstTensorView{} : restored_->view(it->second);
    };
  }

  Exec& ex_;
  const Checkpoint& ckpt_;
  const QuantPlan& plan_;
  const QuantJob& job_;
  RopeTables ropes_;
  Journal journal_;
  int64_t windows_ = 0;
  std::optional<Stream> quantized_, full_;
  BlockF32 rewritten_;  // of the block at hand; empty without transforms
  std::map<std::string, double> phases_;
  bool learning_ = false;  // the block's codes will be learned when it is complete
  std::vector<NamedTensor> packed_;
  std::deque<Coded> coded_;  // of the block at hand; a deque: references stay while it grows
  std::vector<ExpertRecord> experts_;
  std::vector<KvRecord> kv_scales_;
  std::optional<CheckpointIndex> restored_;
};

QuantReport report_of(const Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& w,
                      const QuantJob& job) {
  QuantReport r;
  r.recipe = job.recipe;
  r.note = job.note;
  r.model = c.dir.string();
  r.out = job.out.string();
  r.device = ex.device_name();
  r.dtype = std::string(name_of(job.dtype));
  r.calibration = w.source;
  r.seed = job.seed;
  r.samples = w.count;
  r.seq_len = w.length;
  r.source_bytes = plan.source_bytes;
  r.out_bytes = plan.out_bytes;
  r.bits_per_weight = plan.bits_per_weight;
  r.precision = job.precision;
  for (const PlannedLinear& p : plan.linears)
    if (p.keep) r.kept.push_back(p.linear.name);
  return r;
}

void run_blocks(Run& run, const Checkpoint& c, const QuantJob& job) {
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    tell(job, c.spec, static_cast<double>(layer));
    if (job.stop_requested && job.stop_requested())
      fail(ErrorKind::stopped,
           fmt::format("stopped before block {} of {}; {} blocks are kept in {}: run the same command "
                       "with --resume",
                       layer, c.spec.layers, run.journal().sealed_blocks(), run.journal().dir().string()));
    run.block(layer);
  }
  tell(job, c.spec, static_cast<double>(c.spec.layers));
}

}  // namespace

void check_out(const QuantJob& job) {
  namespace fs = std::filesystem;
  if (fs::exists(job.out) && !job.force)
    fail(ErrorKind::usage,
         fmt::format("{} exists; choose another OUT or give --force to replace it", job.out.string()));
  if (fs::exists(job.out) && !fs::exists(job.out / "config.json"))
    fail(ErrorKind::usage,
         fmt::format("{} exists and is not a checkpoint folder; --force does not replace it",
                     job.out.string()));
  const fs::path parent = fs::absolute(job.out).parent_path();
  if (!fs::is_directory(parent))
    fail(ErrorKind::io, fmt::format("{} is not a folder to write OUT into", parent.string()));
}

QuantReport run_pipeline(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& windows,
                         const QuantJob& job) {
  check_out(job);
  FEWBIT_ASSERT(plan.refusals.empty());
  const Timer timer;
  QuantReport report = report_of(ex, c, plan, windows, job);
  Run run(ex, c, plan, windows, job);
  try {
    run_blocks(run, c, job);
  } catch (const Error&) {
    run.journal().discard_if_empty();
    throw;
  }
  for (int64_t layer = 0; layer < c.spec.layers; ++layer)
    for (const LinearRecord& r : run.journal().records(layer)) report.linears.push_back(r);
  report.experts = run.experts();
  report.kv_scales = run.kv_scales();
  const Timer writing;
  report.peak_gpu_bytes = ex.on_cuda() ? ex.peak_bytes() : 0;
  report.peak_host_bytes = peak_host_bytes();
  report.phases = run.phases();
  report.seconds = timer.seconds();
  if (job.progress) job.progress("writing the checkpoint", 0);
  write_output(c, plan, run.journal(), job, report);
  report.phases["write"] += writing.seconds();
  report.seconds = timer.seconds();
  return report;
}

}  // namespace fewbit
