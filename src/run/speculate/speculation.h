#pragma once
// What `--speculate` asks for, how a draft is judged, and what came of it.
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/tensor.h"
#include "src/run/sampler.h"

namespace fewbit {

// With the token that is fed, 8 rows: the number up to which a pass of any model reads the weights once
// (kRowsAlike of src/run/paged/paged_engine.h).
inline constexpr int64_t kDraftTokens = 7;
// Of a draft model, which takes a pass of its own for each: the later ones are reached seldom.
inline constexpr int64_t kModelDraftTokens = 4;
// Of a layer that was trained to predict one token further: what it says beyond is of its own guesses.
inline constexpr int64_t kMtpDraftTokens = 2;
inline constexpr int64_t kMostDraftTokens = 31;
// Passes of one row before the first draft, which say what a pass without one takes.
inline constexpr int64_t kPlainPasses = 2;
// Passes with a draft before the first verdict: the time of one alone is noise.
inline constexpr int64_t kTrialPasses = 8;
// Passes of one row whose time drafts may lose in all before they end: enough for a few that fail at the start, and
// hardly to be seen in the time of a text.
inline constexpr double kLossAllowed = 4;

enum class DraftKind : uint8_t { off, ngram, model, mtp };
std::string_view name_of(DraftKind);  // "off", "ngram", "draft", "mtp"

struct SpeculateOptions {
  DraftKind kind = DraftKind::off;
  int64_t k = 0;         // tokens of a draft at most; 0: no speculation
  bool may_stop = true;  // where the estimate says that it loses
};

// "off", or "ngram", "draft" or "mtp", with ":K" or without. Error{usage} naming --speculate.
SpeculateOptions speculate_from(std::string_view);

// Tokens that are guessed to come next.
struct Draft {
  std::vector<int32_t> ids{};
  std::vector<Chances> chances{};  // what each was drawn from; empty: each was certain
};
// Draws the token behind `text` from a drafter's logits of it, [vocab] or those of its first tokens, and adds it to
// both. The numbers of the seed are the drafts' own: independent of those that judge() draws at the same positions.
void add_drawn(Draft&, std::vector<int32_t>& text, std::span<const float> logits, const SamplerOptions&);
// Where drafts come from. A greedy run needs no chances; each call may return fewer than k tokens, or none.
struct Drafter {
  std::function<Draft(std::span<const int32_t> text, int64_t k, const SamplerOptions&)> propose{};
  // Called once behind the model's pass over the prompt, which is part of `text`; may be empty.
  std::function<void(std::span<const int32_t> text)> begin{};
  // Sees the states behind the final norm of what the model is fed, from position `first` on; of an engine with
  // PagedOptions::states. May be empty.
  std::function<void(int64_t first, ConstTensorView states)> seen{};
};

// The tokens that a pass yields: logits f32 [draft + 1, vocab] on the host, row i those behind i accepted tokens, which
// then are `position` + i in number. All have the distribution of plain sampling.
//
// A draft that is certain, or greedy choice: every row is sampled as without a draft; the draft's token is accepted
// where it is the one sampled, and the first that is not is kept in its place. These are the tokens of plain sampling
// with the same seed. With chances q, a token x is accepted with min(1, p(x) / q(x)), and what comes instead is drawn
// from the positive part of p - q (Leviathan et al. 2023, algorithm 1; Chen et al. 2023), p and q being what the
// sampler's options leave of either model's logits.
std::vector<int32_t> judge(ConstTensorView logits, const Draft&, const SamplerOptions&, int64_t sequence,
                           int64_t position);

// Sums over the passes behind the prompt's.
struct SpeculationReport {
  struct Passes {
    int64_t count = 0;
    double least = 0;  // seconds of the shortest one: whatever else the machine does only adds
  };
  DraftKind kind = DraftKind::off;
  int64_t k = 0;
  int64_t tokens = 0, drafted_tokens = 0;  // that passes gave, and those with a draft
  int64_t drafted = 0;                     // tokens proposed
  // By position in the draft: how often it was reached, all before it being accepted, and how often accepted then.
  std::vector<int64_t> reached, accepted;
  std::map<int64_t, Passes> passes;  // by their rows: 1 without a draft, else the draft's tokens and one
  int64_t stopped_after = 0;         // passes, where the estimate ended the drafts; 0: it did not
  double seconds = 0;                // of all passes, drafts included
  double draft_seconds = 0;          // of making the drafts

  // A pass over a draft of so many tokens (0: none) that gave `kept` tokens, in so much time with the making of it.
  void add(int64_t draft, int64_t kept, double seconds);
  int64_t steps() const;
  int64_t drafted_steps() const;
  int64_t accepted_in_all() const;
  // P(accepted | all before it accepted), of all positions or of one. This and what follows: NaN where nothing was seen
  // that could say it.
  double alpha() const;
  double alpha(size_t position) const;
  double tokens_per_step() const;
  double tokens_per_drafted_step() const;
  // (1 - alpha^(k+1)) / (1 - alpha) with the k of each draft: tokens of a pass with a draft, were alpha the same at
  // every position (Leviathan et al. 2023, equation 1).
  double predicted_tokens() const;
  double cost() const;      // a pass with a draft over one without
  double speed_up() const;  // one-row passes for the same tokens over the passes made, by the least times of both
  // Whether drafts have cost more than kLossAllowed one-row passes beyond the tokens that they gave; not
  // before kTrialPasses of them.
  bool loses() const;
};

}  // namespace fewbit
