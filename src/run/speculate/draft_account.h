#pragma once
// Which drafts are worth their rows: what a pass takes by its rows, and what a sequence has won and lost by drafts.
#include <cstdint>
#include <map>

namespace fewbit {

// What a row is taken to add to a pass of one row, while no draft has been seen.
inline constexpr double kRowUnseen = .25;
// By how much a measured cost beyond that is believed less with each pass without a draft: one that was disturbed must
// not end drafts for good.
inline constexpr double kForgotten = .98;
// Passes that a sequence may lose by drafts before any has won: by n-grams, which mostly repeat themselves at once or
// not at all, and by a layer or a model, whose first draft says little. What each token adds: with the credit of
// n-grams less than 1 % of a text of 150 tokens or more, and still of 400 where a row costs twice kRowUnseen.
inline constexpr double kNgramCredit = .75, kModelCredit = 4, kCreditOfToken = .0025;
// What was won beyond is not kept: where a text stops repeating itself no more is lost again.
inline constexpr double kMostCredit = 4;

// Seconds of passes, by their rows; of the processor, so that what else the machine does is hardly in them.
class PassTimes {
 public:
  struct Passes {
    int64_t count = 0;
    // Seconds of the shortest one, for whatever else the machine does only adds; it grows by a hundredth with each
    // pass, since passes do with the context.
    double least = 0;
  };
  void add(int64_t rows, double seconds, bool drafted);
  const std::map<int64_t, Passes>& by_rows() const { return by_rows_; }
  // What `further` rows add to a pass of `rows` rows that yields a token of each, in tokens: by the line through what
  // was seen, and by kRowUnseen.
  double cost(int64_t rows, int64_t further) const;

 private:
  std::map<int64_t, Passes> by_rows_;
  int64_t plain_ = -1;  // passes since the last one with a draft; -1: there was none
};

// Of one sequence, in tokens. A draft is made where the credit pays for it even if all of it is rejected; so, as far as
// costs are known, a sequence loses no more than what it began with and kCreditOfToken of each of its tokens, drafts
// that win go on, and where they lose a short one is tried now and then.
class DraftAccount {
 public:
  explicit DraftAccount(double credit) : credit_(credit) {}
  double credit() const { return credit_; }
  // A pass that gave `accepted` tokens more than one, for which drafts of so much `cost` were made.
  void settle(int64_t accepted, double cost);

 private:
  double credit_;
};

}  // namespace fewbit
