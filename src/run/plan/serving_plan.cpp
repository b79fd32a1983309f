#include "src/run/plan/serving_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "kernels/choice/kernel_choice.h"
#include "src/core/strings.h"
#include "src/model/work.h"
#include "src/run/plan/serving_memory.h"

namespace fewbit {
namespace {

// An all-reduce of n GPUs takes NCCL's ring with its lowest latency 6.6 us and 2 (n - 1) steps of 0.6 us over NVLink or
// 1 us over PCIe (nccl, src/graph/tuning.cc, protocol LL), and moves 2 (n - 1) / n of the bytes through each link.
constexpr double kBaseMs = 6.6e-3, kNvlinkStepMs = 0.6e-3, kPcieStepMs = 1e-3;
double step_ms(const GpuModel& gpu) { return starts_with(gpu.link, "NVLink") ? kNvlinkStepMs : kPcieStepMs; }
double link_ms(const GpuModel& gpu, double bytes) { return bytes / gpu.link_gbs / 1e6; }
double all_reduce_ms(const GpuModel& gpu, int ranks, double bytes) {
  return kBaseMs + 2 * (ranks - 1) * step_ms(gpu) + link_ms(gpu, 2. * (ranks - 1) / ranks * bytes);
}

// A pass of `seqs` sequences, each with `tokens` new tokens behind `past` earlier ones.
struct Pass {
  int64_t seqs = 1, past = 0, tokens = 1;
  bool ends = true;  // the head runs behind it
  int64_t rows() const { return seqs * tokens; }
};

// Of one stage.
struct PassCost {
  double weights = 0, cache = 0, flop = 0, read_ms = 0, product_ms = 0, all_reduce_ms = 0;
  double ms() const { return std::max(read_ms, product_ms) + all_reduce_ms; }
};

class Planner {
 public:
  Planner(const ServedModel& m, const ServingJob& job)
      : m_(m), job_(job), gpu_(*job.gpu), whole_(m.checkpoint->spec), bytes_(bytes_of(m, job)) {}

  ServingPlan plan() const {
    ServingPlan p;
    p.parameters = parameter_count(whole_);
    p.active_parameters = active_parameters();
    p.stored_bytes = m_.stored;
    p.active_bytes = active_bytes();
    p.cache_bytes_per_sequence =
        cache_bytes(whole_, {0, whole_.layers}, job_.kv_cache, DType::bf16, job_.context, false);
    p.cache_bytes_per_token = position_bytes(whole_, job_.kv_cache, DType::bf16);
    p.contiguous_cache_bytes =
        contiguous_cache_bytes(whole_, {0, whole_.layers}, job_.kv_cache, DType::bf16, job_.context);
    fill_memory(p);
    p.step = step_of(job_.pp, job_.concurrency, bytes_.loaded, bytes_.head);
    p.stored_step_ms = step_of(job_.pp, job_.concurrency, bytes_.stored, bytes_.stored_head).ms;
    p.prefill = prefill();
    p.tokens_per_s = 1e3 * static_cast<double>(job_.concurrency) / p.step.ms;
    p.prompt_tokens_per_s = 1e3 * static_cast<double>(job_.prompt) / p.prefill.ms;
    const double usd_per_s = job_.price * job_.tp * job_.pp / 3600;
    p.usd_per_million_tokens = 1e6 * usd_per_s / p.tokens_per_s;
    p.usd_per_million_prompt = 1e6 * usd_per_s / p.prompt_tokens_per_s;
    p.kernels = kernels();
    if (job_.tp * job_.pp == 1) p.expected_step_ms = expected(p);
    return p;
  }

 private:
  int64_t active_parameters() const {
    double n = static_cast<double>(whole_.vocab * whole_.hidden);  // the head; of the embedding a row is looked up
    for (int64_t layer = 0; layer < whole_.layers; ++layer)
      for (const BlockOp& op : whole_.block(layer)) {
        const auto* moe = std::get_if<Moe>(&op);
        const double share = moe ? static_cast<double>(moe->top_k) / moe->experts : 1;
        for (const LinearDef& l : linears_of(op)) n += share * static_cast<double>(l.out_features * l.in_features);
        for (const SmallTensor& t : small_tensors_of(op)) n += static_cast<double>(t.shape.numel());
      }
    return static_cast<int64_t>(n);
  }

  // Of one GPU that has it all.
  int64_t active_bytes() const {
    ServingJob alone = job_;
    alone.tp = alone.pp = 1;
    const ServedBytes whole = bytes_of(m_, alone);
    int64_t n = whole.head + whole.norm;
    for (int64_t layer = 0; layer < whole_.layers; ++layer)
      n += weight_bytes(whole_.block(layer), whole.loaded[static_cast<size_t>(layer)], 1);
    return n;
  }

  void fill_memory(ServingPlan& p) const {
    p.most_sequences = INT64_MAX;
    for (int stage = 0; stage < job_.pp; ++stage) {
      const ServingMemory m = stage_memory(bytes_, job_, stage);
      if (m.total() > p.memory.total() || stage == 0) p.memory = m;
      const int64_t each = m.cache / job_.concurrency, left = m.capacity - m.total() + m.cache;
      p.most_sequences = std::min(p.most_sequences, left < 0 ? 0 : each > 0 ? left / each : INT64_MAX);
    }
    p.fits = p.memory.total() <= p.memory.capacity;
  }

  // Operations of the linears of `layers` by what they multiply; the rest of a pass is bf16.
  std::pair<double, double> narrow_flop(LayerRange layers, int64_t rows) const {
    double fp8 = 0, int8 = 0;
    for (int64_t layer = layers.begin; layer < layers.end; ++layer)
      for (const BlockOp& op : bytes_.rank.block(layer)) {
        const auto* moe = std::get_if<Moe>(&op);
        const double share = moe ? static_cast<double>(moe->top_k) / moe->experts : 1;
        for (const LinearDef& l : linears_of(op)) {
          const LinearForm form =
              place(m_.linears.at(whole_.prefix(layer) + l.name), l.out_features, l.in_features, job_.tp).form;
          const double flop = 2 * share * static_cast<double>(rows * l.out_features * l.in_features);
          if (form.input == DType::f8_e4m3) fp8 += flop;
          if (form.input == DType::i8) int8 += flop;
        }
      }
    return {fp8, int8};
  }

  double sums_ms(LayerRange layers, int64_t rows) const {
    double ms = 0;
    const auto add = [&](int64_t features) {
      ms += all_reduce_ms(gpu_, job_.tp, 4. * static_cast<double>(rows * features));
    };
    for (int64_t layer = layers.begin; layer < layers.end && job_.tp > 1; ++layer)
      for (const BlockOp& op : bytes_.rank.block(layer)) {
        if (const auto* l = std::get_if<Linears>(&op); l && l->summed)
          for (const LinearDef& item : l->items) add(item.out_features);
        if (const auto* m = std::get_if<Moe>(&op); m && !m->all_own()) add(m->hidden);
      }
    return ms;
  }

  PassCost cost(int stage, int pp, const Pass& pass, const std::vector<BlockBytes>& blocks, int64_t head) const {
    const LayerRange layers = stage_layers(bytes_.rank, stage, pp);
    const bool last = stage == pp - 1;
    PassCost c;
    for (int64_t layer = layers.begin; layer < layers.end; ++layer)
      c.weights +=
          static_cast<double>(weight_bytes(bytes_.rank.block(layer), blocks[static_cast<size_t>(layer)], pass.rows()));
    if (last) c.weights += static_cast<double>(head + bytes_.norm);
    c.cache = static_cast<double>(
        pass.seqs * cache_bytes(bytes_.rank, layers, job_.kv_cache, DType::bf16, pass.past + pass.tokens, true));
    c.flop = pass_flop(layers_of(bytes_.rank, layers), pass.seqs, pass.past, pass.tokens);
    if (!last || !pass.ends) c.flop -= 2. * static_cast<double>(pass.seqs * whole_.vocab * whole_.hidden);
    const auto [fp8, int8] = narrow_flop(layers, pass.rows());
    const auto rate = [&](double tera) { return (tera > 0 ? tera : gpu_.bf16_tflops) * 1e9; };
    c.product_ms = (c.flop - fp8 - int8) / rate(0) + fp8 / rate(gpu_.fp8_tflops) + int8 / rate(gpu_.int8_tops);
    c.read_ms = (c.weights + c.cache) / gpu_.read_gbs / 1e6;
    c.all_reduce_ms = sums_ms(layers, pass.rows());
    return c;
  }

  double hop(int64_t rows) const {
    return kBaseMs + step_ms(gpu_) + link_ms(gpu_, 2. * static_cast<double>(rows * whole_.width()));
  }

  static void add(const PassCost& c, ServingFloor& f) {
    f.weight_bytes += c.weights, f.cache_bytes += c.cache, f.flop += c.flop;
    f.read_ms += c.read_ms, f.product_ms += c.product_ms, f.all_reduce_ms += c.all_reduce_ms;
  }

  // The sequences go through the stages in as many groups as there are stages, if they suffice: then no stage waits.
  ServingFloor step_of(int pp, int64_t seqs, const std::vector<BlockBytes>& blocks, int64_t head) const {
    const int64_t groups = std::min<int64_t>(pp, seqs), each = (seqs + groups - 1) / groups;
    ServingFloor f;
    double through = 0, longest = 0;
    for (int stage = 0; stage < pp; ++stage) {
      const PassCost c = cost(stage, pp, {.seqs = each, .past = job_.context - 1}, blocks, head);
      add(c, f);
      through += c.ms(), longest = std::max(longest, c.ms());
    }
    f.hop_ms = pp > 1 ? (pp - 1) * hop(each) : 0;
    f.ms = std::max(through + f.hop_ms, static_cast<double>(groups) * longest);
    f.idle = 1 - static_cast<double>(groups) * through / pp / f.ms;
    return f;
  }

  // One prompt in chunks that follow each other through the stages.
  ServingFloor prefill() const {
    ServingFloor f;
    double busy = 0;
    for (int64_t past = 0; past < job_.prompt; past += kPrefillChunk) {
      const int64_t tokens = std::min(kPrefillChunk, job_.prompt - past);
      double through = 0, longest = 0;
      for (int stage = 0; stage < job_.pp; ++stage) {
        const PassCost c =
            cost(stage, job_.pp, {.seqs = 1, .past = past, .tokens = tokens, .ends = past + tokens == job_.prompt},
                 bytes_.loaded, bytes_.head);
        add(c, f);
        through += c.ms(), longest = std::max(longest, c.ms());
      }
      busy += through;
      f.ms += past == 0 ? through : longest;
      if (past == 0 && job_.pp > 1) f.hop_ms = (job_.pp - 1) * hop(tokens);
    }
    f.ms += f.hop_ms;
    f.idle = 1 - busy / job_.pp / f.ms;
    return f;
  }

  double expected(const ServingPlan& p) const {
    const bool packed = std::ranges::all_of(p.kernels, [](const ServedKernel& k) { return k.form != "dense"; });
    const bool together = job_.concurrency == 1 && packed && whole_.kinds.size() == 1;
    return p.step.read_ms / kReadShare + p.step.product_ms +
           static_cast<double>(whole_.layers) * (together ? kLayerMs : kLayerMsOpByOp);
  }

  GpuTraits traits() const {
    GpuTraits traits = known_gpus().front().traits;
    for (const KnownGpu& g : known_gpus())
      if (g.traits.capability <= gpu_.capability) traits = g.traits;
    traits.capability = gpu_.capability;
    return traits;
  }

  std::vector<ServedKernel> kernels() const {
    std::vector<ServedKernel> all;
    const GpuTraits gpu = traits();
    for (int64_t layer = 0; layer < whole_.layers; ++layer)
      for (const BlockOp& op : bytes_.rank.block(layer))
        for (const LinearDef& l : linears_of(op)) {
          const ServedLinear& s = m_.linears.at(whole_.prefix(layer) + l.name);
          ServedKernel k = kernel_of(place(s, l.out_features, l.in_features, job_.tp), l, gpu);
          if (s.codes) k.spec = s.codes->str();
          const auto same = std::ranges::find_if(all, [&](const ServedKernel& a) {
            return std::tie(a.form, a.spec, a.step, a.prompt, a.why) ==
                   std::tie(k.form, k.spec, k.step, k.prompt, k.why);
          });
          if (same == all.end())
            all.push_back(std::move(k)), all.back().linears = 1;
          else
            ++same->linears;
        }
    return all;
  }

  ServedKernel kernel_of(const PlacedLinear& p, const LinearDef& l, const GpuTraits& gpu) const {
    KernelProblem problem{.in = l.in_features, .out = l.out_features};
    ServedKernel k{.why = p.form.why};
    switch (p.form.kind) {
      case LinearForm::Kind::marlin:
        k.form = p.spec.bits == 4 ? "marlin4" : "marlin8";
        problem.op = ChoiceOp::packed, problem.bits = p.spec.bits, problem.zeros = !p.spec.symmetric;
        problem.group = p.spec.group == -1 ? 0 : p.spec.group;
        break;
      case LinearForm::Kind::bytes:
        k.form = p.form.input == DType::i8 ? "int8" : p.form.input == DType::f16 ? "fp8a16" : "fp8";
        problem.op = ChoiceOp::bytes, problem.codes = p.form.input;
        problem.weight = p.form.input == DType::i8 ? DType::i8 : DType::f8_e4m3;
        break;
      case LinearForm::Kind::fp4:  // of more tokens than few_experts() takes: as dense
        k.form = "mxfp4";
        problem.op = ChoiceOp::dense;
        break;
      case LinearForm::Kind::dense:
      case LinearForm::Kind::rows:
        k.form = "dense";
        problem.op = ChoiceOp::dense, problem.weight = p.form.values, problem.x = p.form.input;
        break;
    }
    const auto named = [&](int64_t rows) {
      problem.rows = rows;
      return std::string(choose_kernel(problem, gpu).name);
    };
    k.step = named((job_.concurrency + job_.pp - 1) / job_.pp);
    k.prompt = named(std::min(job_.prompt, kPrefillChunk));
    return k;
  }

  const ServedModel& m_;
  const ServingJob& job_;
  const GpuModel& gpu_;
  const ModelSpec& whole_;
  const ServedBytes bytes_;
};

}  // namespace

ServingPlan plan_serving(const ServedModel& m, const ServingJob& job) {
  const ModelSpec& spec = m.checkpoint->spec;
  for (const auto& [what, n] : {std::pair{"--context", job.context}, {"--prompt-tokens", job.prompt}})
    if (n > spec.max_positions)
      fail(ErrorKind::usage,
           fmt::format("{}: expected at most the model's {} positions, found {}", what, spec.max_positions, n));
  if (job.pp > spec.layers)
    fail(ErrorKind::usage, fmt::format("--pp: expected at most the model's {} layers, found {}", spec.layers, job.pp));
  std::vector<std::string> refused = refuses_ranks(*m.checkpoint, job.tp);
  if (job.pp > 1 && keeps_slots(spec)) refused.emplace_back("--pp: layers read keys and values of earlier ones");
  if (!refused.empty())
    fail(ErrorKind::unsupported, fmt::format("{} on {} x {} GPUs: {}", spec.arch, job.tp, job.pp, join(refused, "; ")));
  check_cache_type(spec, job.kv_cache);
  return Planner(m, job).plan();
}

}  // namespace fewbit
