#include "tools/cli/quantize/recipe_flags.h"

#include <fmt/format.h>

#include "src/core/error.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

// A flag and the word of the recipe that it stands for, with the flag's value in the place of {}.
struct RecipeFlag {
  enum class Value : uint8_t { none, integer, text };
  const char *flag, *word;
  Value value;
  const char* help;
};
constexpr RecipeFlag kRecipeFlags[] = {
    {"--bits", "bits={}", RecipeFlag::Value::integer, "Bits per weight: 2, 3, 4 or 8 (5, 6, 7 in format marlin)"},
    {"--group-size", "g{}", RecipeFlag::Value::integer, "Weights that share a scale; -1 = one per output row"},
    {"--sym", "sym", RecipeFlag::Value::none, "Symmetric grid (default, but not of awq alone)"},
    {"--asym", "asym", RecipeFlag::Value::none, "Zero points"},
    {"--act-order", "act={}", RecipeFlag::Value::text,
     "Order of the columns: off, static, gar, full (full stores g_idx)"},
    {"--acts", "acts={}", RecipeFlag::Value::text,
     "Inputs of the linears: off (weight-only), token (8 bits, a scale per token), token4 (int4, the same), tensor (8 "
     "bits, a calibrated scale); beside nvfp4 (tensor) and mxfp4 (token) 4 bits with scales of groups"},
    {"--alpha", "alpha={}", RecipeFlag::Value::text,
     "Of smoothquant: the share of an input's range that moves into the weights, 0 to 1, or search (default)"},
    {"--damp", "damp={}", RecipeFlag::Value::text, "Damping, relative to the mean of diag H (default 0.01)"},
    {"--targets", "targets={}", RecipeFlag::Value::text,
     "on (default where the method can): aim at the unquantized model's outputs and, in front of the residual stream, "
     "at "
     "some of the error that it has gathered; inputs: at the outputs alone; half (default of --effort quick): the "
     "same, learned from half of the calibration, in three quarters of the time (mixtures take all of it); off: at the "
     "weights themselves, with one calibration stream in place of two, in about half the time"},
    {"--curvature", "curvature={}", RecipeFlag::Value::text,
     "on: errors of a linear's outputs are weighed by what the model's words make of them, which takes a walk back "
     "through the model in float32 and takes 6 to 9 % off the KL at 4 bits (default of gptq on integers at --effort "
     "best); "
     "off: each output by itself"},
    {"--sparse", "sparse={}", RecipeFlag::Value::text,
     "2:4: of every four inputs of a row two weights stay, chosen with the codes by gptq (SparseGPT) or by magnitude "
     "by "
     "rtn; symmetric int4 in format marlin-24, of 3.1 bits a weight, which engines have dropped; off (default)"},
    {"--target-bits", "target-bits={}", RecipeFlag::Value::text,
     "Of auto: bits per weight to stay within, scales and zeros included (default 4.25)"},
    {"--schemes", "schemes={}", RecipeFlag::Value::text,
     "Of auto: what each linear may get, of int2 int3 int4 int5 int6 int8 nvfp4 mxfp4 fp8 bf16, with commas, or all "
     "(left out: integers); q, k and v, gate and up, and the experts of a layer get one"},
    {"--ends", "ends={}", RecipeFlag::Value::text,
     "Of auto: on: the embedding and the head are chosen for, and counted, too (default beside a --budget of bytes "
     "in formats whose packed embedding can be loaded, marlin and compressed-tensors, without --for); off: they stay "
     "as they are"},
    {"--budget", "budget={}", RecipeFlag::Value::text,
     "Of auto: what it stays within. --target-bits of all weights (all, the default) or of those that a token reads "
     "(active: an expert counts by its share of the tokens); or, without --target-bits, the bytes of OUT (5GiB), or "
     "the "
     "floor of a decode step on a GPU of `runner plan` (2.5ms@rtx4090)"},
    {"--effort", "effort={}", RecipeFlag::Value::text,
     "quick, default, best (the outputs weighed by their curvature, at 3 bits and below the rounding learned too: slow "
     "without a GPU), or reference "
     "(the published algorithm)"},
    {"--kv-cache", "kv={}", RecipeFlag::Value::text, "fp8: calibrate and write the scales of an FP8 key/value cache"},
    {"--format", "format={}", RecipeFlag::Value::text,
     "Checkpoint format (see `quantize list`; default marlin; compressed-tensors for FP8, 8-bit inputs and "
     "--kv-cache); gguf:TYPE chooses GGUF's blocks"},
};

// An option whose value goes into `words` as the flag's word.
template <class Value>
CLI::Option* add_word(CLI::App& app, const RecipeFlag& f, std::string& words) {
  return app.add_option_function<Value>(
      f.flag, [&words, &f](const Value& v) { words += fmt::format(fmt::runtime(std::string(f.word) + ' '), v); },
      f.help);
}

CLI::Option* add_recipe_flag(CLI::App& app, const RecipeFlag& f, std::string& words) {
  switch (f.value) {
    case RecipeFlag::Value::none:
      return app.add_flag_callback(
          f.flag, [&words, &f] { (words += f.word) += ' '; }, f.help);
    case RecipeFlag::Value::integer:
      return add_word<int64_t>(app, f, words);
    case RecipeFlag::Value::text:
      return add_word<std::string>(app, f, words);
  }
  bug("a flag without a kind of value");
}

}  // namespace

void add_recipe_flags(CLI::App& app, std::string& words) {
  for (const RecipeFlag& f : kRecipeFlags) add_recipe_flag(app, f, words)->group(kRecipeGroup);
  app.get_option("--bits")->check(in_range(2, 8));
  app.get_option("--asym")->excludes(app.get_option("--sym"));
}

}  // namespace fewbit::cli
