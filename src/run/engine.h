#pragma once
// The engine: a whole model resident on a device with its key/value cache, for prefill, decode steps and their
// recording as a CUDA graph. It runs the same op list as Runner; only the attention differs.
#include <functional>
#include <optional>
#include <span>

#include "kernels/attention/paged_attention.h"
#include "src/run/decode_stack.h"
#include "src/run/op_watch.h"
#include "src/run/runner.h"
#include "src/run/sampler.h"

namespace fewbit {

struct EngineOptions {
  LoadOptions load{};
  int64_t batch = 1;
  int64_t capacity = 2048;       // positions per sequence
  int64_t prefill_chunk = 2048;  // tokens per prefill pass; over a KIVI cache up to kKiviPass of a sequence
  // Record the decode step (CUDA); of a mixture of experts where notes() say so, on ranks where NCCL links their GPUs.
  bool graph = true;
  bool one_launch = true;  // steps of one sequence take all layers in one launch, or one each, where they can (CUDA)
  // beyond so many positions in sight attention has launches of its own; -1: long_context() of the cache
  int64_t long_context = -1;
  // the experts of up to kFewTokens tokens take a launch for gate and up and one for down, where they can (CUDA)
  bool few_experts = true;
};

// How the layers of a decode step are launched: all of them at once; what lies between two runs of attention at once
// and attention by itself; every op by itself.
enum class StepLaunches { together, attention_apart, op_by_op };
const char* name_of(StepLaunches);  // "one launch", "one launch a layer", "op by op"

// For models that predict further tokens from the states of others (src/run/speculate/mtp_head.h): one sequence.
struct PassHooks {
  // x [rows, hidden] holds the embeddings of positions `first` on, and becomes what the first block takes.
  std::function<void(int64_t first, TensorView x)> join{};
  // All rows of a pass behind the final norm, [rows, hidden].
  std::function<void(int64_t first, ConstTensorView states)> seen{};
};

class Engine {
 public:
  Engine(Exec& ex, const Checkpoint& ckpt, const EngineOptions& options);
  const ModelSpec& spec() const { return spec_; }  // of several ranks, that of this one
  int64_t batch() const { return options_.batch; }

  void reset();  // forgets all sequences
  // The same weights for another number of sequences and positions: new caches and buffers, nothing recorded, no
  // sequences. Error{usage} as the constructor.
  void resize(int64_t batch, int64_t capacity);
  // Fills the cache with `ids` [batch, len] and returns the logits of the last position, f32 [batch, vocab]
  // on the device; valid until the next call. Error{usage} when the capacity would be exceeded.
  ConstTensorView prefill(std::span<const int32_t> ids);
  // One step: feeds `next` [batch] i32 (on the device), returns logits as prefill() does.
  ConstTensorView decode(ConstTensorView next);
  // Further tokens of the one sequence in one pass, each row with the bits of a decode step of its own: logits of all,
  // f32 [ids, vocab], valid until the next call. Of an engine that decodes_each().
  ConstTensorView decode_each(std::span<const int32_t> ids);
  void prepare_each(int64_t tokens);  // memory for as many, so that the first call takes as long as the next
  bool decodes_each() const;  // of one sequence on the CPU, by one rank, over a cache that can let go of tokens again
  // The first `length` positions stay. States do not go back: the caller puts those that belong there.
  void cut(int64_t length);
  const RecurrentState& state(int64_t layer) const { return recurrent_[static_cast<size_t>(layer)]; }
  bool has_states() const;
  void set_hooks(PassHooks);  // of an engine that decodes_each(); {} = none
  int64_t capacity() const { return options_.capacity; }
  // One greedy step that stays on the device: feeds the tokens chosen by the step before (or by
  // greedy_start), writes the next ones. For measuring latency without a host round trip.
  void greedy_start(ConstTensorView logits);
  void greedy_step();
  std::vector<int32_t> greedy_tokens();  // the tokens that the next step would feed, [batch]; waits
  int32_t agreed(int32_t token) const;   // rank 0's choice, where several ranks share the model
  int64_t length() const { return length_; }
  // While set, passes run eagerly and report each launch of theirs as it is issued; {} = no longer.
  void watch(PassWatch watch) { watch_ = std::move(watch); }
  int64_t weight_bytes_per_token() const;  // weights one decode step reads (embedding row excluded, head included)
  int64_t kv_bytes_per_token(int64_t context) const;
  int64_t prefill_bytes(int64_t tokens) const;    // that the prefill of so many a sequence must read: once a chunk
  std::vector<std::string> kernel_table() const;  // "24 x marlin4", "1 x dense head"
  StepLaunches step_launches() const;             // of a decode step at the present length
  const std::string& why_not_together() const { return (far() ? far_ : near_).why; }  // "" where they are
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct StepPlan {                    // how a decode step goes through the layers, and its recording
    std::optional<DecodeStack> stack;  // over kv_; else op by op
    std::string why;                   // it is not all layers in one launch
    RecordedGraph graph;
    bool warm = false, recorded = false;
  };
  // x [batch * len, hidden]; rows: one by one, as decode_each() needs them
  void run_blocks(SlotBuffers& slots, TensorView x, ConstTensorView positions, ConstTensorView ids,
                  const PagedRows* rows = nullptr);
  void join(TensorView x) const;  // by hooks_, where there are any
  void show(ConstTensorView x) const;
  void finish(ConstTensorView rows);    // final norm and head of the last row of each sequence: to logits_
  void choose(ConstTensorView logits);  // the greedy choice, to next_
  void decode_body(const StepPlan&);    // next_ -> logits_, the greedy choice to next_, positions one on
  void step();                          // the recording, or the body where there is none
  void check_peer() const;              // Error{device} where another rank fell silent in a step so far
  void need_room(int64_t tokens) const;
  int64_t pass_weight_bytes(int64_t tokens) const;                // that one pass over so many tokens reads
  void report(std::string_view what, bool begins = false) const;  // to watch_
  void alloc_buffers();         // caches and what has a row per sequence, for options_
  void plan_steps();            // over the caches
  void plan_graph();            // whether steps of options_.batch sequences are recorded
  void note(std::string line);  // once
  bool far() const;             // the next step goes far_

  Exec& ex_;
  ModelSpec spec_;
  EngineOptions options_;
  std::vector<std::string> notes_;
  int64_t asked_chunk_ = 0;  // prefill_chunk before it was fitted to batch and capacity
  bool asked_graph_ = true;  // graph before plan_graph()
  std::string host_routes_;  // why the host reads the routing of few tokens too; "" where it does not
  Ends ends_;
  std::vector<BlockWeights> blocks_;
  RopeTables ropes_;
  std::vector<KvStorage> kv_;              // per layer
  std::vector<KvStaticScales> kv_scales_;  // per layer
  std::vector<RecurrentState> recurrent_;  // per layer
  std::vector<LatentStorage> latents_;     // per layer
  std::vector<int64_t> head_bands_;        // the head's rows of each rank; empty: every rank makes all logits
  // Steps up to long_context positions in sight, and beyond: far_ has a stack only where that is launched differently.
  StepPlan near_, far_;
  SlotBuffers prefill_slots_, decode_slots_;
  // States [tokens, hidden] of both phases; the last row of each sequence of a prefill, and any after the norm [batch,
  // hidden]; logits_ f32 [batch, vocab]; next_ and positions_ i32 [batch].
  Tensor prefill_x_, x_, last_, normed_, logits_, next_, positions_;
  int64_t length_ = 0;
  PassWatch watch_;
  PassHooks hooks_;
  // Of decode_each().
  struct Each {
    int64_t rows;  // of a slice
    SlotBuffers slots;
    Tensor x, normed, logits;
  };
  std::optional<Each> each_;
};

// Generates up to `max_new` tokens after `prompt`; stops at an eos of the spec. `on_token` sees each id as it
// is chosen (may be empty). Greedy when options.temperature == 0.
std::vector<int32_t> generate(Exec&, Engine&, std::span<const int32_t> prompt, int64_t max_new,
                              const SamplerOptions& options, const std::function<void(int32_t)>& on_token = {});

}  // namespace fewbit
