#include "tools/cli/runner/speculation_args.h"

#include <fmt/format.h>

namespace fewbit::cli {
namespace {

// Letters, digits, spaces and scripts that pre-tokenizers cut in different places.
constexpr const char* kProbe =
    "The 12345th  word's end, über naïve 東京 и далее: {\"x\": [0.5, -7e3]};\n\tif (a != b) return \xf0\x9f\x99\x82;\n";

// Why drafts of one tokenizer's ids are not of the other's; "" where they are.
std::string difference(const Tokenizer& model, const Tokenizer& draft) {
  if (model.vocab_size() != draft.vocab_size())
    return fmt::format("has {} tokens, the model's {}", draft.vocab_size(), model.vocab_size());
  for (int64_t i = 0; i < model.vocab_size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (model.token(id) != draft.token(id))
      return fmt::format("has \"{}\" as token {}, the model's \"{}\"", draft.token(id), id, model.token(id));
  }
  if (model.encode(kProbe, Special::none) != draft.encode(kProbe, Special::none))
    return "has the tokens of the model's, but cuts a text in other places";
  return "";
}

}  // namespace

std::vector<CLI::Option*> add_speculation(CLI::App& app, SpeculationArgs& a) {
  CLI::Option* speculate =
      app.add_option(
             "--speculate", a.speculate,
             "Drafts that the model checks in one pass, on the CPU. ngram: up to K tokens (7 if left out) that "
             "followed when the text last ended as it does now; draft: K tokens (4) of the model of --draft; mtp: K "
             "tokens (2) of the layer that the checkpoint has for it. Greedy tokens stay the same, sampled ones "
             "keep their distribution; where drafts cost time they are held back")
          ->type_name("off|ngram[:K]|draft[:K]|mtp[:K]")
          ->capture_default_str();
  CLI::Option* draft =
      app.add_option(
             "--draft", a.draft,
             "A smaller or coarser MODEL with the same tokenizer, which drafts; alone it means --speculate draft")
          ->type_name("MODEL");
  return {speculate, draft};
}

SpeculateOptions speculation_of(const SpeculationArgs& a) {
  const SpeculateOptions o = speculate_from(a.draft.empty() || a.speculate != "off" ? a.speculate : "draft");
  if ((o.kind == DraftKind::model) == a.draft.empty())
    fail(ErrorKind::usage, a.draft.empty()
                               ? "--speculate draft: give the draft model with --draft MODEL"
                               : "--draft: goes with --speculate draft or draft:K, not with " + a.speculate);
  return o;
}

SpeculateOptions batch_speculation_of(const SpeculationArgs& a) {
  const SpeculateOptions o = speculation_of(a);
  if (o.kind == DraftKind::mtp)
    fail(ErrorKind::usage,
         "--speculate mtp: drafts of the MTP layer are of one sequence; take ngram or a --draft model, "
         "or `runner generate`");
  return o;
}

Checkpoint draft_model(const std::string& name, const Checkpoint& model, const Tokenizer& tokenizer, int64_t length) {
  Checkpoint draft = Checkpoint::open(name);
  if (const std::string why = difference(tokenizer, Tokenizer::open(draft.dir)); !why.empty())
    fail(ErrorKind::usage, fmt::format("--draft {}: its tokenizer {} ({}); expected one that is the same", name, why,
                                       model.dir.string()));
  if (length > draft.spec.max_positions)
    fail(ErrorKind::usage, fmt::format("--draft {}: has {} positions, {} of prompt and new tokens are asked for", name,
                                       draft.spec.max_positions, length));
  return draft;
}

}  // namespace fewbit::cli
