#pragma once
// The plan says what will be done to every linear, or why not (all refusals at once), before anything is computed. It
// is a pure function of the checkpoint, the rules and the registries.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/model/checkpoint.h"
#include "src/quant/plan/memory_plan.h"
#include "src/quant/plan/recipe.h"

namespace fewbit {

// --set GLOB=RECIPE: ordered, the last match wins; GLOB is matched against the full name of a linear and against its
// name inside the block ("self_attn.q_proj"). Embedding and head ("model.embed_tokens", "lm_head") are meant only by
// exactly their name.
struct Rule {
  std::string glob;
  Recipe recipe;
};

struct PlanOptions {
  Recipe base{};
  std::vector<Rule> rules{};
  std::map<std::string, Recipe> chosen{};  // by full name, on top of base; a matching rule wins over it
  int64_t tokens = 0;                      // calibration tokens, for the memory estimate
  int64_t seq_len = 0;                     // of them in a window
  DType dtype = DType::f32;                // compute dtype of the calibration
  bool on_gpu = false;
  MemoryLimits limits{};
  std::string engine{};  // --for: what this engine would not load is refused (engines.h); "" = nobody is asked
  int64_t tp = 1;        // on so many GPUs in tensor parallel
  double minutes = 0;    // that a run may take, if learned rounding can make it so; 0 = as long as it needs
  int ranks = 1;         // processes that share the calibration; the memory is that of one of them
};

struct PlannedLinear {
  NamedLinear linear{};
  bool keep = false;
  // The codes of the model go through unchanged, under scales on recipe.spec that say the same values; no method
  // touches them. `global_scale`: above them, where the model has none; else 0.
  bool lossless = false;
  double global_scale = 0;
  bool calibrates_input = false;     // a lossless one whose inputs get a static scale that the model does not have
  FullRecipe recipe{};               // unless keep
  const Packing* packing = nullptr;  // unless keep, or blocks
  const gguf::BlockType* blocks = nullptr;  // an encoder of the format fills these in place of the method
  std::string note{};                       // "the published Marlin kernel would refuse: …"
  int64_t source_bytes = 0, out_bytes = 0;

  std::string recipe_str() const;  // "keep", "lossless mxfp4", or that of the recipe; "-" where it is refused
  // Name of the bytes that are written: "marlin", "q4_k"; "" where nothing is.
  std::string_view layout() const { return packing ? packing->name : blocks ? blocks->name : ""; }
};

// What the plan says of the job of its method; the rest is the run's.
LinearJob job_of(const PlannedLinear&, ConstTensorView weight, const InputStats*);

struct Refusal {
  std::string name, reason;
};

// Matrices that stay as they are without a word of the user, for one reason.
struct KeptGroup {
  std::string first{};  // by name
  int64_t matrices = 0, bytes = 0;
  std::string reason{};
};

// How long a run will take, where its rates were measured (rates.h). Seconds by the phases of the report.
struct TimePlan {
  std::map<std::string, double> phases{};
  double seconds = 0;    // of the whole run, without the measurement
  double measuring = 0;  // that the measurement took
};

struct QuantPlan {
  const CheckpointFormat* format = nullptr;
  std::vector<PlannedLinear> linears;  // by add(), in model order; then the ends that a rule names
  std::vector<Refusal> refusals;
  std::vector<KeptGroup> kept{};            // beside the linears
  int64_t source_bytes = 0, out_bytes = 0;  // tensor bytes of the whole checkpoint
  MemoryPlan memory{};  // where calibration lies and what it computes again; the bits do not depend on it
  std::optional<TimePlan> time{};
  double bits_per_weight = 0;  // over the quantized linears, scales and zeros included
  Needs needs = Needs::nothing;
  // targets=half: the unquantized stream runs and is compared with the other in half of the chunks (Chunks::in_half).
  bool by_half = false;
  bool solves = false;                         // some method, or the shift of its targets, solves by the sums of inputs
  std::vector<const Transform*> transforms{};  // applied to every block, in order
  Migration migration{};
  bool fp8_kv_cache = false;  // scales for one are calibrated and written
  std::string engine{};       // that was asked on `tp` GPUs; "" = none was
  std::string engine_note{};  // what it makes of the family; "" = nothing to say
  int64_t tp = 1;
  double minutes = 0;  // PlanOptions::minutes

  bool calibrates() const { return needs != Needs::nothing || fp8_kv_cache; }
  // Of how many of the calibration's tokens the sums are that linears are coded by: of all where a method solves by
  // them. Transforms have their own, and experts, which see a share of the tokens, sums of all of theirs.
  int64_t summed(int64_t tokens) const { return solves ? tokens : std::min(tokens, kWeighingTokens); }

  // Unquantized streams that run beside the quantized one: none, one, or the share of one that half of the chunks make.
  double full_streams(const Chunks&) const;

  void add(PlannedLinear);  // behind the others
  const PlannedLinear& of(const std::string& linear) const;
  // Null where the plan leaves the matrix alone.
  const PlannedLinear* find(const std::string& linear) const;

 private:
  // Of `linears` by name: mixtures have tens of thousands, and every block asks for each of its own many times.
  std::unordered_map<std::string, size_t> places_{};
};

// True where some linear of the layer learns its rounding and its block has a way back (block_tape.h).
bool learns_rounding(const QuantPlan&, const ModelSpec&, int64_t layer);
// True where the outputs of some linear of the layer, or of any, are weighed (src/quant/output_curvature.h).
bool weighs_outputs(const QuantPlan&, std::optional<int64_t> layer = {});

// Never throws for what a linear cannot do: that is a refusal. Error{usage} for unusable recipes, and for a limit in
// minutes where nothing is learned.
QuantPlan make_plan(const Checkpoint&, const PlanOptions&);

// What the config of the checkpoint will say: every linear that gets a packing, and those that stay dense.
QuantizationSummary summary_of(const Checkpoint&, const QuantPlan&);

}  // namespace fewbit
