#pragma once
// Recipe: the one grammar behind RECIPE, --set, --spec, the plan and the report:
//   awq+gptq int4 g128 sym act=off scale=f16 damp=0.01 effort=default kv=fp8 format=marlin
//   smoothquant+gptq alpha=0.5   (W8A8 by default)
//   gptq w8a8          = gptq int8 gch sym acts=token: 8-bit weights and inputs
//   fp8 block128       = E4M3 with a scale per 128 x 128 weights (any blockN); gch: per output, tensor: one of all
//   gptq fp8 acts=off  = error feedback on the E4M3 grid, inputs left alone
//   rtn format=gguf:q4_k
//   rotate+gptq int4 acts=token4 = the model turned first; inputs in int4 with a scale per token
//   gptq int4 acts=token4 clip=0.8 = whose levels reach 0.8 of a row's largest magnitude (of turned inputs the default)
//   auto target-bits=4.25 schemes=int3,int4,nvfp4,fp8,bf16 = a scheme for every linear, chosen by measurement
//   gptq targets=off   = aims at the weights themselves: calibration runs one stream instead of two
//   gptq curvature=on  = errors of outputs weighed by what the model makes of them
//   gptq int4 sparse=2:4 = of every four inputs of a row two weights stay (symmetric int4)
//   fp8 bits=8         = so many bits on whatever grid the rest says (the flag --bits); int8 says the grid too
// Every word but the methods is optional, and in an override (--set GLOB=RECIPE) the methods too; "keep"
// leaves a linear as it is, "source" those that are low-bit in the model.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf/block_type.h"
#include "src/quant/method.h"
#include "src/quant/transform.h"

namespace fewbit {

inline constexpr int64_t kAllOutputs = 0;  // in recipes; the plan puts a linear's own outputs in its place

// What `auto` has to stay within.
struct Budget {
  enum class Of : uint8_t {
    all,     // target_bits, of all weights that are chosen for
    active,  // target_bits, of those that a token reads: an expert counts by its share of the tokens
    size,    // bytes of all tensors of OUT
    step,    // the floor of a decode step of one sequence on a GPU, as `runner plan` counts it
  } of = Of::all;
  int64_t bytes = 0;
  double step_ms = 0;
  std::string gpu{};  // of gpu_models()
};

struct Recipe {
  bool keep = false;
  bool source_grid = false;          // a linear that the model has in low bits keeps its grid; others pass this by
  std::vector<std::string> chain{};  // "awq", "gptq": transforms, then one method; empty in an override
  std::optional<Grid> grid{};        // "nvfp4" and "mxfp4" state the whole spec
  std::optional<int> bits{};
  std::optional<int64_t> group{};      // -1 = one per row
  std::optional<int64_t> out_group{};  // outputs that share a scale; kAllOutputs: one scale of all
  std::optional<bool> symmetric{};
  std::optional<ActQuant> activations{};
  std::optional<int> act_bits{};      // acts=token4
  bool rotates = false;               // "rotate+…": the whole model is turned first (src/model/rotation/rotation.h)
  std::optional<uint8_t> act_clip{};  // clip=0.8, for acts=token4: QuantSpec::act_clip
  std::optional<uint64_t> rotation_seed{};  // rotation=7
  std::optional<bool> turns_inputs{};       // online=on | off: linears that read no norm turn their input
  std::optional<float> percentile{};        // of the inputs' magnitudes, for acts=tensor
  std::optional<ActOrder> act_order{};
  std::optional<bool> two_of_four{};  // sparse=2:4 | off
  std::optional<Effort> effort{};
  std::optional<DType> scale{};
  std::optional<float> damp{};
  std::optional<Targets> targets{};      // targets=on | inputs | half | off
  std::optional<bool> weighs_outputs{};  // curvature=on | off
  std::optional<bool> fp8_kv_cache{};    // kv=fp8 | kv=bf16: calibrate the scales of an FP8 key/value cache
  std::optional<Migration> migration{};  // alpha=0.5, alpha=search
  std::optional<double> target_bits{};   // of `auto`: bits per weight, scales and zeros included
  std::vector<std::string> schemes{};    // of `auto`: schemes=int4,nvfp4,bf16 (src/quant/search/schemes.h)
  std::optional<Budget> budget{};        // of `auto`; left out: target_bits over all weights
  std::optional<bool> chooses_ends{};    // of `auto`, ends=on | off: the embedding and the head are chosen for too
  std::string format{};

  std::string chain_str() const;  // "rotate+awq+gptq"
  bool counts_bits() const { return !budget || budget->of == Budget::Of::all || budget->of == Budget::Of::active; }
  bool chooses_precision() const { return chain.size() == 1 && chain.front() == "auto"; }
};

// Error{usage} naming the word and what is accepted.
Recipe parse_recipe(std::string_view text);
// `over` on top of `base`: what `over` states wins. Transforms rewrite whole blocks, so an override may state
// another method but no other transforms: Error{usage}.
Recipe overlay(Recipe base, const Recipe& over);

std::string_view name_of(Effort);
std::string_view name_of(ActOrder);
std::string_view name_of(ActQuant);
std::string_view name_of(Targets);
Effort effort_from(std::string_view);  // Error{usage} listing the names
ActOrder act_order_from(std::string_view);
ActQuant activations_from(std::string_view);
Targets targets_from(std::string_view);
// Where the recipe does not say: `quick` does without the errors of the residual stream, which cost another sum at two
// inputs of a block, and learns the shift of targets from half of the calibration, which takes a quarter off its time
// for 1.5 to 3 % of KL.
constexpr Targets usual_targets(Effort e) { return e == Effort::quick ? Targets::half : Targets::residual; }

// What `auto` aims at where the recipe does not say.
inline constexpr double kDefaultTargetBits = 4.25;

// A recipe with every default filled in.
struct FullRecipe {
  std::vector<const Transform*> transforms{};  // in order; the same for all linears of a run
  const Method* method = nullptr;
  QuantSpec spec{};
  ActOrder act_order = ActOrder::off;
  bool two_of_four = false;  // 2:4 sparsity: of every four inputs of a row two weights at most are not zero
  Effort effort = Effort::standard;
  float damp = 0.01f;
  // All but off: a second, unquantized stream runs beside the quantized one (half: with every second chunk of the
  // calibration, QuantPlan::by_half). Off: one stream, about half of the calibration's time.
  Targets targets = Targets::residual;
  // Weighs errors of a linear's outputs by what the model makes of them (src/quant/output_curvature.h).
  bool weighs_outputs = false;
  // effort=best asks for it and nobody else does: a model without a way back goes without.
  bool weighs_where_it_can = false;
  float percentile = 100;  // of |x| that a static scale of the inputs reaches
  bool fp8_kv_cache = false;
  std::optional<uint64_t> rotation{};  // the seed, where the whole model is turned first
  bool turns_inputs = false;           // and inputs that no norm made, when the model runs
  bool says_clip = false;              // spec.act_clip is what the recipe says, not the plan
  Migration migration{};
  std::string format;                       // "marlin"
  const gguf::BlockType* blocks = nullptr;  // of format gguf: the type, which decides the spec
  std::string str() const;                  // "gptq int4 g128 sym act=full effort=quick"; defaults are left out
  Needs needs() const;                      // the published algorithms know no unquantized stream
  // True where codes are moved once more when their block is complete (src/quant/loop/learn/learned_rounding.h): effort
  // best at 3 bits and below, for methods that know the unquantized stream, on groups of neighbouring columns.
  bool learns_rounding() const;
  // True where a method can weigh outputs: it solves rows one by one on an integer grid, beside the unquantized stream.
  bool can_weigh_outputs() const;
  bool weighs_by_itself() const;  // without being asked: at effort=best
};
// Fills in the contract's defaults; a chain of transforms alone ends in rtn, `auto` is gptq with bits and groups to be
// chosen (src/quant/search/mixed_precision.h). Error{usage} for an empty chain, a method or transform that does not
// exist, a transform behind a method or a combination that makes no sense (group 0, reference with an act-order that
// needs no g_idx …).
FullRecipe resolve(const Recipe&);

}  // namespace fewbit
