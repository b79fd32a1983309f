// The engine: every shape of a decode step is fixed when it is built, so that the step can be recorded once
// and replayed while the positions advance on the device. Rows of x are gathered with the embedding op, which
// runs on both devices.
#include "src/run/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/exec/profile_range.h"
#include "kernels/model/embed.h"
#include "kernels/model/norm.h"
#include "kernels/products/gemm.h"
#include "kernels/statistics/nll.h"
#include "src/run/latent.h"
#include "src/run/moe.h"
#include "src/run/paged/ragged.h"
#include "src/run/plan/step_bytes.h"
#include "src/run/rank_sums.h"

namespace fewbit {
namespace {

EngineOptions checked(EngineOptions o) {
  if (o.batch < 1 || o.capacity < 1)
    fail(ErrorKind::usage, fmt::format("batch {} and capacity {} must be at least 1", o.batch, o.capacity));
  if (o.long_context < 0) o.long_context = long_context(o.load.kv_cache);
  if (is_kivi(o.load.kv_cache)) o.prefill_chunk = std::min(o.prefill_chunk, kKiviPass * o.batch);
  o.prefill_chunk = std::clamp<int64_t>(o.prefill_chunk, o.batch, o.batch * o.capacity) / o.batch * o.batch;
  return o;
}

Tensor device_i32(Exec& ex, int64_t n, const std::function<int32_t(int64_t)>& value) {
  Tensor host = Tensor::host(DType::i32, {n});
  for (int64_t i = 0; i < n; ++i) host.as<int32_t>()[i] = value(i);
  return ex.to_device(host);
}

}  // namespace

Engine::Engine(Exec& ex, const Checkpoint& c, const EngineOptions& o)
    : ex_(ex),
      spec_(shared_spec(c, o.load)),
      options_(checked(o)),
      ends_(load_ends(ex, c, o.load, &notes_)),
      ropes_(ex, spec_, o.capacity),
      prefill_slots_(ex, spec_, options_.prefill_chunk, o.load.dtype),
      decode_slots_(ex, spec_, o.batch, o.load.dtype) {
  const ProfileRange range("load");
  asked_chunk_ = o.prefill_chunk;
  asked_graph_ = o.graph;
  check_cache_type(spec_, o.load.kv_cache);
  LinearNotes linears;
  for (int64_t layer = 0; layer < spec_.layers; ++layer) blocks_.push_back(load_block(ex, c, layer, o.load, &linears));
  for (std::string& line : lines_of(linears)) notes_.push_back(std::move(line));
  kv_scales_ = load_kv_scales(ex, c, o.load.kv_cache, &notes_, part_of(o.load));
  if (has_moe(spec_) && ex.on_cuda() && !o.load.ranks)
    host_routes_ = o.few_experts ? prepare_few_experts(ex, spec_, blocks_, o.load.dtype) : "asked for";
  alloc_buffers();
}

void Engine::note(std::string line) {
  if (!line.empty() && std::ranges::count(notes_, line) == 0) notes_.push_back(std::move(line));
}

void Engine::plan_graph() {
  RankSums* const ranks = options_.load.ranks;
  options_.graph = asked_graph_ && (!ranks || (ranks->recordable(ex_) && !has_moe(spec_)));
  if (!has_moe(spec_) || !options_.graph) return;
  std::string why = host_routes_;
  if (why.empty() && options_.batch > kFewTokens) why = fmt::format("more than {} sequences", kFewTokens);
  options_.graph = why.empty() && ex_.on_cuda();
  if (!ex_.on_cuda()) return;
  note(why.empty()
           ? fmt::format("decode steps are recorded: the experts of up to {} tokens take one launch for gate "
                         "and up and one for down",
                         kFewTokens)
           : fmt::format("decode steps are not recorded: the host reads which experts the tokens go to ({})", why));
}

void Engine::alloc_buffers() {
  note(long_rope_line(spec_, options_.capacity));
  plan_graph();
  const DType dtype = options_.load.dtype;
  const int64_t batch = options_.batch;
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    const Attention* attention = own_attention_of(spec_.block(layer));
    kv_.push_back(attention ? alloc_kv(ex_, *attention, options_.load.kv_cache, dtype, batch, options_.capacity)
                            : KvStorage{});
    recurrent_.push_back(alloc_recurrent(ex_, spec_.block(layer), dtype, batch));
    latents_.push_back(alloc_latent(ex_, spec_.block(layer), options_.load.kv_cache, dtype, batch, options_.capacity));
    if (!latents_.back().scales.empty())
      make_latent_rooms(ex_, spec_.block(layer), blocks_[static_cast<size_t>(layer)], batch);
  }
  prefill_x_ = ex_.alloc(dtype, {options_.prefill_chunk, spec_.width()});
  x_ = ex_.alloc(dtype, {batch, spec_.width()});
  last_ = ex_.alloc(dtype, {batch, spec_.width()});
  normed_ = ex_.alloc(dtype, {batch, spec_.hidden});
  logits_ = ex_.alloc(DType::f32, {batch, spec_.vocab});
  next_ = ex_.alloc_zeros(DType::i32, {batch});
  positions_ = ex_.alloc_zeros(DType::i32, {batch});
  head_bands_ = head_bands(ex_, spec_, ends_, batch, options_.load.ranks);
  plan_steps();
}

void Engine::plan_steps() {
  const auto asks_for_ops = [&]() -> std::string {
    if (!options_.one_launch) return "not asked for";
    if (!ex_.on_cuda()) return "the CPU has no such launch";
    if (is_kivi(options_.load.kv_cache)) return "a cache of KIVI's form";
    if (options_.load.dtype != DType::bf16) return "float32 arithmetic";
    return "";
  };
  near_.why = asks_for_ops();
  if (!near_.why.empty()) return;
  RankSums* const ranks = options_.load.ranks;
  const DecodePeer peer = ranks ? ranks->peer(ex_, spec_.width(), spec_.vocab, &near_.why) : DecodePeer{};
  if (!near_.why.empty()) return;
  std::vector<KvCache> caches;
  for (size_t i = 0; i < kv_.size(); ++i) caches.push_back(view_of(kv_[i], kv_scales_[i]));
  const auto make = [&](bool attention_apart, std::string* why) {
    std::optional<DecodeStack> stack = decode_stack(ex_, spec_, blocks_, ropes_, caches, peer,
                                                    turns_keys(options_.load.kv_cache), attention_apart, why);
    if (!ranks || ranks->all_have(stack.has_value())) return stack;
    if (stack) *why = "another rank has no such launch";
    return std::optional<DecodeStack>{};
  };
  near_.stack = make(false, &near_.why);
  if (!near_.stack) return;
  const int64_t window = near_.stack->form.attention.window;
  if (options_.capacity <= options_.long_context || (window > 0 && window <= options_.long_context)) return;
  far_.stack = make(true, &far_.why);
  if (far_.stack) far_.why = fmt::format("more than {} positions in sight", options_.long_context);
}

bool Engine::far() const { return far_.stack && length_ >= options_.long_context; }  // a step sees its own token too

StepLaunches Engine::step_launches() const {
  const std::optional<DecodeStack>& stack = (far() ? far_ : near_).stack;
  if (!stack) return StepLaunches::op_by_op;
  return stack->form.attention_apart ? StepLaunches::attention_apart : StepLaunches::together;
}

const char* name_of(StepLaunches l) {
  switch (l) {
    case StepLaunches::together:
      return "one launch";
    case StepLaunches::attention_apart:
      return "one launch a layer";
    case StepLaunches::op_by_op:
      break;
  }
  return "op by op";
}

void Engine::resize(int64_t batch, int64_t capacity) {
  EngineOptions o = options_;
  o.batch = batch, o.capacity = capacity, o.prefill_chunk = asked_chunk_;
  options_ = checked(o);
  near_ = StepPlan{}, far_ = StepPlan{};
  length_ = 0;
  kv_.clear();
  recurrent_.clear();
  latents_.clear();
  each_.reset();
  ropes_.fit(capacity);
  prefill_slots_ = SlotBuffers(ex_, spec_, options_.prefill_chunk, options_.load.dtype);
  decode_slots_ = SlotBuffers(ex_, spec_, batch, options_.load.dtype);
  alloc_buffers();
}

void Engine::reset() {
  length_ = 0;
  ex_.zero(positions_);
  for (const RecurrentState& layer : recurrent_)
    for (const auto& [name, state] : layer) ex_.zero(state);
}

void Engine::need_room(int64_t tokens) const {
  if (length_ + tokens > options_.capacity)
    fail(ErrorKind::usage,
         fmt::format("{} more tokens after {} exceed the cache's {} positions", tokens, length_, options_.capacity));
}

void Engine::report(std::string_view what, bool begins) const {
  if (watch_) watch_({.what = what, .begins = begins});
}

void Engine::run_blocks(SlotBuffers& slots, TensorView x, ConstTensorView positions, ConstTensorView ids,
                        const PagedRows* rows) {
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    const auto i = static_cast<size_t>(layer), keys = static_cast<size_t>(keys_layer(spec_, layer));
    const bool in_kivi = is_kivi(options_.load.kv_cache);
    const KvCache cache = in_kivi ? KvCache{} : view_of(kv_[keys], kv_scales_[keys]);
    const KiviCache kivi = in_kivi ? kivi_of(kv_[keys], options_.load.kv_cache) : KiviCache{};
    Activations act = slots.bind(x, spec_.kind(layer));
    const auto watch = [&](std::span<const BlockOp> ops) { watch_({.layer = layer, .ops = ops}); };
    const RecurrentState* const state = &recurrent_[i];
    const RaggedLayout ragged{.rows = rows ? *rows : PagedRows{},
                              .cache = &cache,
                              .latents = &latents_[i],
                              .states = {&state, 1},
                              .room = &latents_[i]};
    run_block(ex_, spec_.block(layer), blocks_[i], ropes_,
              {.seqs = options_.batch,
               .positions = positions,
               .cache = in_kivi ? nullptr : &cache,
               .kivi = in_kivi ? &kivi : nullptr,
               .turned_keys = turns_keys(options_.load.kv_cache),
               .turned_values = turns_values(options_.load.kv_cache),
               .ids = ids,
               .state = state,
               .latents = &latents_[i],
               .from_zero = length_ == 0 && &slots == &prefill_slots_,  // a recorded step must not say so
               .ranks = options_.load.ranks,
               .ragged = rows ? &ragged : nullptr},
              act, watch_ ? std::function<void(std::span<const BlockOp>)>(watch) : nullptr);
  }
}

void Engine::finish(ConstTensorView rows) {
  if (head_bands_.empty())
    apply_head_normed(ex_, spec_, ends_, rows, normed_, logits_);
  else
    apply_head_shared(ex_, spec_, ends_, rows, normed_, head_bands_, *options_.load.ranks, logits_);
  if (spec_.logit_softcap > 0) cap_logits(ex_, spec_.logit_softcap, logits_);
  report("final norm, head");
}

ConstTensorView Engine::prefill(std::span<const int32_t> ids) {
  const int64_t batch = options_.batch, len = static_cast<int64_t>(ids.size()) / batch;
  if (len < 1 || static_cast<int64_t>(ids.size()) != batch * len)
    fail(ErrorKind::usage,
         fmt::format("a prompt of {} tokens for {} sequences: expected the same number, at least one, for each",
                     ids.size(), batch));
  check_ids(spec_, ids);
  need_room(len);
  const ProfileRange range("prefill");
  const int64_t per_sequence = options_.prefill_chunk / batch;
  for (int64_t begin = 0; begin < len; begin += per_sequence) {
    const int64_t n = std::min(len - begin, per_sequence);
    const Tensor chunk =
        device_i32(ex_, batch * n, [&](int64_t t) { return ids[static_cast<size_t>(t / n * len + begin + t % n)]; });
    const Tensor positions =
        device_i32(ex_, batch * n, [&](int64_t t) { return static_cast<int32_t>(length_ + t % n); });
    const Tensor last = device_i32(ex_, batch, [&](int64_t b) { return static_cast<int32_t>(b * n + n - 1); });
    const TensorView x = prefill_x_.view().row_range(0, batch * n);
    report("", true);
    embed_streams(ex_, spec_, chunk, ends_, x);
    join(x);
    report("embedding");
    run_blocks(prefill_slots_, x, positions, chunk);
    show(x);
    embed(ex_, last, x, 1.f, last_);
    finish(last_);
    length_ += n;
  }
  ex_.copy(device_i32(ex_, batch, [&](int64_t) { return static_cast<int32_t>(length_); }), positions_);
  return logits_;
}

void Engine::decode_body(const StepPlan& plan) {
  report("", true);
  embed_streams(ex_, spec_, next_, ends_, x_, normed_);
  join(x_);
  report("embedding");
  if (plan.stack) {
    decode_layers(ex_, *plan.stack, positions_, x_);
    report("layers");
  } else {
    run_blocks(decode_slots_, x_, positions_, next_);
  }
  show(x_);
  finish(x_);
  choose(logits_);
  advance(ex_, positions_, 1);
}

void Engine::check_peer() const {
  if (options_.load.ranks) options_.load.ranks->check_peer();
}

void Engine::step() {
  need_room(1);
  check_peer();
  const ProfileRange range("decode step");
  StepPlan& plan = far() ? far_ : near_;
  if (options_.graph && plan.warm && !plan.recorded && !watch_) {
    RankSums* const ranks = options_.load.ranks;
    if (ranks) ranks->time(false);
    plan.graph = ex_.record([&] { decode_body(plan); });
    if (ranks) ranks->time(true);
    plan.recorded = true;
  }
  if (plan.graph.handle && !watch_)
    ex_.replay(plan.graph);
  else
    decode_body(plan);
  plan.warm = true;  // scratch memory of the ops has its size now: the next step may be recorded
  ++length_;
}

ConstTensorView Engine::decode(ConstTensorView next) {
  FEWBIT_ASSERT(next.numel() == options_.batch && next.dtype == DType::i32);
  ex_.copy(next, next_);
  step();
  return logits_;
}

void Engine::choose(ConstTensorView logits) {
  argmax(ex_, logits, next_);
  // Logits that were gathered are the same everywhere.
  if (options_.load.ranks && head_bands_.empty()) options_.load.ranks->agree(ex_, next_);
  report("choice");
}

void Engine::greedy_start(ConstTensorView logits) { choose(logits); }
void Engine::greedy_step() { step(); }

int32_t Engine::agreed(int32_t token) const {
  return options_.load.ranks ? options_.load.ranks->agreed(ex_, token) : token;
}

std::vector<int32_t> Engine::greedy_tokens() {
  const Tensor host = ex_.to_host(next_);
  check_peer();
  return {host.as<int32_t>(), host.as<int32_t>() + host.numel()};
}

int64_t Engine::pass_weight_bytes(int64_t tokens) const {
  const int64_t rows = head_bands_.empty() ? spec_.vocab : head_bands_[1];
  int64_t n = head_bytes(ends_) * rows / spec_.vocab + ends_.final_norm.bytes();
  for (int64_t layer = 0; layer < spec_.layers; ++layer)
    n += weight_bytes(spec_.block(layer), blocks_[static_cast<size_t>(layer)], tokens);
  return n;
}

int64_t Engine::weight_bytes_per_token() const { return pass_weight_bytes(options_.batch); }

int64_t Engine::prefill_bytes(int64_t tokens) const {
  const int64_t chunk = options_.prefill_chunk / options_.batch;
  int64_t n = 0;
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, tokens);
    n += pass_weight_bytes((end - begin) * options_.batch) + kv_bytes_per_token(end);
  }
  return n;
}

int64_t Engine::kv_bytes_per_token(int64_t context) const {
  return options_.batch *
         cache_bytes(spec_, {0, spec_.layers}, options_.load.kv_cache, options_.load.dtype, context, true);
}

std::vector<std::string> Engine::kernel_table() const {
  std::map<std::string_view, int64_t> counts;
  for (const BlockWeights& b : blocks_)
    for (const auto& [name, l] : b.linears) ++counts[kind_of(l)];
  std::vector<std::string> out;
  out.reserve(counts.size() + 1);
  for (const auto& [kind, count] : counts) out.push_back(fmt::format("{} x {}", count, kind));
  out.push_back(fmt::format("1 x {} head", head_kind(ends_)));
  return out;
}

std::vector<int32_t> generate(Exec& ex, Engine& engine, std::span<const int32_t> prompt, int64_t max_new,
                              const SamplerOptions& options, const std::function<void(int32_t)>& on_token) {
  const std::vector<int64_t>& eos = engine.spec().eos;
  std::vector<int32_t> out;
  if (max_new < 1) return out;
  ConstTensorView logits = engine.prefill(prompt);
  const bool greedy = options.temperature == 0;
  if (greedy) engine.greedy_start(logits);
  for (;;) {
    int32_t id = 0;
    if (greedy) {
      id = engine.greedy_tokens().front();
    } else {
      const Tensor row = ex.to_host(logits.row_range(0, 1));
      id = engine.agreed(sample({row.as<float>(), static_cast<size_t>(row.numel())}, options, 0, engine.length()));
    }
    out.push_back(id);
    if (on_token) on_token(id);
    if (static_cast<int64_t>(out.size()) == max_new || std::find(eos.begin(), eos.end(), id) != eos.end()) return out;
    if (greedy)
      engine.greedy_step();
    else
      logits =
          engine.decode(ex.to_device(Tensor::host_from<int32_t>(DType::i32, {1}, std::span<const int32_t>(&id, 1))));
  }
}

}  // namespace fewbit
