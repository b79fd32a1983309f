#pragma once
// What `--speculate` asks for, how a draft is judged, and what came of it.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/tensor.h"
#include "src/run/sampler.h"
#include "src/run/speculate/draft_account.h"

namespace fewbit {

// With the token that is fed, 8 rows: the number up to which a pass of any model reads the weights once
// (kRowsAlike of src/run/paged/rows_alike.h).
inline constexpr int64_t kDraftTokens = 7;
// Of a draft model, which takes a pass of its own for each: the later ones are reached seldom.
inline constexpr int64_t kModelDraftTokens = 4;
// Of a layer that was trained to predict one token further: what it says beyond is of its own guesses.
inline constexpr int64_t kMtpDraftTokens = 2;
inline constexpr int64_t kMostDraftTokens = 31;
// Passes of one row before the first draft, which say what a pass without one takes.
inline constexpr int64_t kPlainPasses = 2;

enum class DraftKind : uint8_t { off, ngram, model, mtp };
std::string_view name_of(DraftKind);  // "off", "ngram", "draft", "mtp"

struct SpeculateOptions {
  DraftKind kind = DraftKind::off;
  int64_t k = 0;        // tokens of a draft at most; 0: no speculation
  bool sparing = true;  // drafts are held back where they lose (src/run/speculate/draft_account.h)
};

// Of a DraftAccount.
inline double first_credit(const SpeculateOptions& o) {
  return o.kind == DraftKind::ngram ? kNgramCredit : kModelCredit;
}

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
  // Sees the states behind the final norm of what the model is fed, from position `first` on. May be empty.
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

// What became of drafts. alpha is P(accepted | all before it accepted). NaN where nothing was seen that could say it.
struct Acceptance {
  int64_t drafts = 0, drafted = 0;  // drafts judged, and their tokens
  int64_t tokens = 0;               // that the passes of drafts gave
  // By position in the draft: how often it was reached, all before it being accepted, and how often accepted then; how
  // many drafts ended there.
  std::vector<int64_t> reached, accepted, ended;

  void add(int64_t draft, int64_t kept);  // a draft of so many tokens, of whose pass so many were kept
  int64_t accepted_in_all() const;
  double alpha() const;
  double alpha(size_t position) const;
  double tokens_of_each() const;
  // (1 - alpha^(k+1)) / (1 - alpha) with the k of each draft: tokens of its pass, were alpha the same at every position
  // (Leviathan et al. 2023, equation 1).
  double predicted_tokens() const;
};

// Sums over the passes behind the prompt's.
struct SpeculationReport {
  DraftKind kind = DraftKind::off;
  int64_t k = 0;
  int64_t tokens = 0;  // that passes gave
  Acceptance drafts;
  PassTimes passes;          // by their rows: 1 without a draft, else the draft's tokens and one
  int64_t held_back = 0;     // passes without a draft, or with a shorter one, since a longer one might have lost
  double seconds = 0;        // of the processor, for all passes, drafts included
  double draft_seconds = 0;  // of these, for making the drafts

  // A pass over a draft of so many tokens (0: none) that gave `kept` tokens, in so much time with the making of it.
  void add(int64_t draft, int64_t kept, double seconds);
  int64_t steps() const;
  double tokens_per_step() const;
  double cost() const;      // a pass with a draft over one without
  double speed_up() const;  // one-row passes for the same tokens over the passes made, by the least times of both
};

}  // namespace fewbit
