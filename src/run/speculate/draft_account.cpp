#include "src/run/speculate/draft_account.h"

#include <algorithm>
#include <cmath>

namespace fewbit {
namespace {

constexpr double kGrowth = 1.01;     // of a shortest pass that is not reached again
constexpr int64_t kFullWeight = 16;  // passes of a number of rows, beyond which it weighs no more

}  // namespace

void PassTimes::add(int64_t rows, double seconds, bool drafted) {
  Passes& p = by_rows_[rows];
  p.least = p.count++ == 0 ? seconds : std::min(seconds, p.least * kGrowth);
  plain_ = drafted ? 0 : plain_ < 0 ? -1 : plain_ + 1;
}

double PassTimes::cost(int64_t rows, int64_t further) const {
  const auto r = static_cast<double>(rows), more = static_cast<double>(further);
  // A pass takes a + b rows; b / (a + b) is kRowUnseen.
  const double unseen = more * kRowUnseen * r / (1 - kRowUnseen + kRowUnseen * r);
  if (plain_ < 0 || by_rows_.size() < 2) return unseen;
  double weight = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [n, p] : by_rows_) {
    const auto w = static_cast<double>(std::min(p.count, kFullWeight)), at = static_cast<double>(n);
    weight += w, x += w * at, y += w * p.least, xx += w * at * at, xy += w * at * p.least;
  }
  const double slope = std::max(0., (weight * xy - x * y) / (weight * xx - x * x));
  const auto seen = by_rows_.find(rows);
  const double line = y / weight + slope * (r - x / weight);
  // A pass is never shorter than its rows' share of the longest one seen.
  const double pass = seen != by_rows_.end() ? seen->second.least : std::max(line, slope * r);
  const double measured = more * slope * r / pass;
  return std::max(std::min(measured, unseen), measured * std::pow(kForgotten, static_cast<double>(plain_)));
}

void DraftAccount::settle(int64_t accepted, double cost) {
  credit_ = std::min(
      kMostCredit, credit_ + static_cast<double>(accepted) - cost + kCreditOfToken * static_cast<double>(1 + accepted));
}

}  // namespace fewbit
