#include "src/text/files/offset_draw.h"

#include <algorithm>
#include <map>

#include "src/core/parallel.h"
#include "src/core/rng.h"

namespace fewbit {
namespace {

constexpr int64_t kMargin = 16;      // tokens behind a window: its last ones must not depend on where reading stopped
constexpr int64_t kMostBytes = 256;  // a token; a text of longer ones gives no window
constexpr int64_t kWindowsAtOnce = 64;  // tokenized side by side

// A shuffle of 0 … n - 1 of which only the places that were touched are kept.
class Shuffle {
 public:
  Shuffle(int64_t n, Rng rng) : n_(n), rng_(rng) {}
  bool done() const { return next_ == n_; }
  int64_t next() {
    const int64_t i = next_++, j = i + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(n_ - i)));
    const int64_t picked = at(j);
    moved_[j] = at(i);
    return picked;
  }

 private:
  int64_t at(int64_t i) const {
    const auto it = moved_.find(i);
    return it == moved_.end() ? i : it->second;
  }
  int64_t n_, next_ = 0;
  Rng rng_;
  std::map<int64_t, int64_t> moved_;
};

// The window that begins in the cell; empty where there is too little text.
std::vector<int32_t> window_in(const Tokenizer& tokenizer, const TextFile& file, int64_t cell, int64_t length) {
  const int64_t start = file.start_from(cell * kCellBytes * length, kCellBytes * length / 4);
  const auto bos = tokenizer.bos();
  for (int64_t bytes = kCellBytes * length;; bytes *= 2) {
    const std::string text = file.read(start, bytes);
    const bool to_the_end = start + bytes >= file.size();
    std::vector<int32_t> ids = tokenizer.encode(text, Special::none);
    if (bos) ids.insert(ids.begin(), *bos);
    const auto found = static_cast<int64_t>(ids.size());
    if (found >= length + kMargin || (to_the_end && found >= length)) {
      ids.resize(static_cast<size_t>(length));
      return ids;
    }
    if (to_the_end || bytes >= kMostBytes * length) return {};
  }
}

}  // namespace

int64_t offset_windows(const TextFile& file, int64_t length) { return file.size() / (kCellBytes * length); }

int64_t draw_by_offsets(const Tokenizer& tokenizer, const TextFile& file, uint64_t seed, int64_t wanted, Windows& out) {
  Shuffle cells(offset_windows(file, out.length), Rng(seed, file.digest()));
  int64_t taken = 0;
  while (taken < wanted && !cells.done()) {
    std::vector<int64_t> picked;
    while (static_cast<int64_t>(picked.size()) < std::min(wanted - taken, kWindowsAtOnce) && !cells.done())
      picked.push_back(cells.next());
    std::vector<std::vector<int32_t>> windows(picked.size());
    parallel_for(static_cast<int64_t>(picked.size()), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        windows[i] = window_in(tokenizer, file, picked[i], out.length);
    });
    for (const std::vector<int32_t>& ids : windows) {
      if (ids.empty()) continue;
      out.ids.insert(out.ids.end(), ids.begin(), ids.end());
      ++taken;
    }
  }
  out.count += taken;
  return taken;
}

}  // namespace fewbit
