// BlockCoder, several linears at a time: a group's statistics and weights are brought by the thread of the block loop
// in the order of the groups, a lane quantizes and measures its linears, and they are taken in that order again.
#include <algorithm>

#include "src/quant/loop/block_coder.h"
#include "src/quant/loop/linear_exchange.h"

namespace fewbit {

// A group on its way. What a lane reads was allocated by the coder's Exec, and so was what it fills for the quantized
// stream: memory goes back to the Exec that it is of, which must be the last that works on it. The lane's part is over
// when `done` is. Codes are the lane's own; beside it only copies to the host read them, which are over when they go.
struct BlockCoder::Dealt {
  struct Item {
    CodedLinear coded{};
    Tensor weight{}, dense{};           // f32; of the type that runs, empty where nobody wants it
    const InputStats* stats = nullptr;  // of `seen`; null: the run does not calibrate
    DenseLinear made{};
  };
  std::vector<Item> items{};
  std::deque<InputStats> seen{};
  float shared = 0;
  std::future<void> done{};  // not valid where no lane works
  // Of several ranks: the first group of a round, a group of each; this one's linears when they are coded, and what
  // takes their place where a lane made it.
  size_t first = 0;
  std::deque<CodedLinear> own{};
  std::map<std::string, DenseLinear> made{};
  bool by_lane = false;

  // The end of the lane's work: what takes a linear's place where the lane made it, and then the linear.
  template <class Place, class Take>
  void await(Phases& phases, Lanes& lanes, const Place& place, const Take& take) {
    if (items.empty()) return;
    phases.timed("quantize", [&] {
      done.get();
      phases.also_held("quantize", lanes.peak_bytes());
    });
    for (Item& item : items) {
      if (!item.dense.empty()) {
        item.made.weight = std::move(item.dense);
        place(item.coded.name, std::move(item.made));
      }
      take(std::move(item.coded));
    }
  }
  // The same of this rank's group of a round, which is its own then. What was only needed for the work goes.
  void await_own(Phases& phases, Lanes& lanes) {
    if (items.empty()) return;
    await(
        phases, lanes, [&](const std::string& name, DenseLinear d) { made.emplace(name, std::move(d)); },
        [&](CodedLinear coded) { own.push_back(std::move(coded)); });
    items.clear();
    seen.clear();
    by_lane = true;
  }
  ~Dealt() {
    if (done.valid()) done.wait();
  }
};

bool BlockCoder::beside(const std::vector<Group>& groups) const {
  if (!lanes_ || restores() || learning_) return false;
  for (const Group& g : groups)
    for (const LinearDef& def : g.items) {
      const PlannedLinear& p = plan_of(def);
      if (!p.keep && (p.lossless || p.blocks || p.recipe.spec.turn)) return false;
    }
  return true;
}

std::unique_ptr<BlockCoder::Dealt> BlockCoder::deal(const Group& group, const std::map<std::string, Linear>* replaced) {
  auto dealt = std::make_unique<Dealt>();
  dealt->shared = shared_absmax(group.items);
  std::optional<InputRounding> seen;
  for (const LinearDef& def : group.items) {
    const PlannedLinear& p = plan_of(def);
    if (p.keep) continue;
    if (job_.check_stop) job_.check_stop();
    if (const InputRounding rounding = rounding_of(p.recipe.spec, p.recipe.percentile); seen != rounding) {
      if (std::optional<InputStats> stats = group.observed(rounding)) dealt->seen.push_back(*std::move(stats));
      seen = rounding;
    }
    const InputStats* stats = dealt->seen.empty() ? nullptr : &dealt->seen.back();
    if (job_.observed && stats && !stats->gram.empty()) show_squares(p, *stats);
    Dealt::Item& item = dealt->items.emplace_back();
    item.coded = begin_record(def, p, stats);
    item.weight = weight_of(p, group.loaded ? group.loaded(def) : ConstTensorView{});
    item.stats = stats;
    if (replaced && runs_) item.dense = ex_.alloc(job_.dtype, {p.linear.out, p.linear.in});
  }
  if (dealt->items.empty()) return dealt;
  dealt->done = lanes_->give([this, d = dealt.get()](Exec& lane) {
    for (Dealt::Item& item : d->items) {
      const Stopwatch timer;
      code(lane, item.coded, item.weight, item.stats, d->shared, RowShare::none());
      measure_coded(lane, item.coded, item.weight, item.stats, RowShare::none());
      need_finite(item.coded.record);
      item.coded.record.seconds = timer.seconds();
      if (item.dense.empty()) continue;
      item.made = dense_of(lane, item.coded.linear, item.coded.there);
      lane.copy(item.made.weight, item.dense);
    }
  });
  return dealt;
}

void BlockCoder::take(Dealt& dealt, std::map<std::string, Linear>* replaced) {
  dealt.await(
      phases_, *lanes_, [&](const std::string& name, DenseLinear d) { replaced->emplace(name, std::move(d)); },
      [&](CodedLinear coded) { take(std::move(coded), nullptr); });
}

void BlockCoder::quantize_beside(const std::vector<Group>& groups, std::map<std::string, Linear>* replaced) {
  // One waits for each lane while that works.
  const auto most = 2 * static_cast<size_t>(lanes_->count());
  std::deque<std::unique_ptr<Dealt>> on_their_way;
  const auto take_first = [&] {
    const std::unique_ptr<Dealt> first = std::move(on_their_way.front());
    on_their_way.pop_front();
    take(*first, replaced);
  };
  for (const Group& g : groups) {
    while (on_their_way.size() >= most) take_first();
    on_their_way.push_back(deal(g, replaced));
  }
  while (!on_their_way.empty()) take_first();
}

void BlockCoder::quantize_apart(const std::vector<Group>& groups, const std::function<void(size_t first)>& next,
                                std::map<std::string, Linear>* replaced) {
  // Codes of this rank that are handed over together: each message waits for all ranks, while those of an expert are
  // soon sent. So few that they are no matter beside the experts' weights.
  constexpr int64_t kTogether = int64_t{32} << 20;
  const auto ranks = static_cast<size_t>(ranks_.size()), rank = static_cast<size_t>(ranks_.rank());
  const bool by_lanes = replaced && beside(groups);  // alike on all ranks, as their plans are
  const size_t most = by_lanes ? 2 * static_cast<size_t>(lanes_->count()) : 0;
  Rounds on_their_way, made;
  int64_t codes = 0;  // of what is made, and alike on all ranks: of the first group of each round
  const auto hand_over = [&] {
    if (!made.empty()) take(groups, made, replaced);
    made.clear();
    codes = 0;
  };
  const auto await_first = [&] {
    if (by_lanes) on_their_way.front()->await_own(phases_, *lanes_);
    for (const LinearDef& l : groups[on_their_way.front()->first].items) codes += l.out_features * l.in_features;
    made.push_back(std::move(on_their_way.front()));
    on_their_way.pop_front();
    if (codes >= kTogether) hand_over();
  };
  for (size_t first = 0; first < groups.size(); first += ranks) {
    next(first);
    auto round = std::make_unique<Dealt>();
    if (const size_t mine = first + rank; mine < groups.size() && by_lanes) {
      round = deal(groups[mine], replaced);
    } else if (mine < groups.size()) {
      const float shared = shared_absmax(groups[mine].items);
      for_each(groups[mine], [&](const LinearDef& def, const PlannedLinear& p, const InputStats* stats) {
        round->own.push_back(code(def, p, stats, shared, RowShare::none()));
      });
    }
    round->first = first;
    on_their_way.push_back(std::move(round));
    while (on_their_way.size() > most) await_first();
  }
  while (!on_their_way.empty()) await_first();
  hand_over();
}

// Hands the linears of some rounds to all ranks, and takes them in the order of the groups.
void BlockCoder::take(const std::vector<Group>& groups, const Rounds& rounds, std::map<std::string, Linear>* replaced) {
  const auto ranks = static_cast<size_t>(ranks_.size()), rank = static_cast<size_t>(ranks_.rank());
  std::deque<CodedLinear> all;
  std::vector<std::vector<LinearOnItsWay>> of_rank(ranks);
  std::map<std::string, DenseLinear> made;
  bool by_lanes = false;
  for (const std::unique_ptr<Dealt>& round : rounds) {
    for (size_t r = 0; r < ranks && round->first + r < groups.size(); ++r)
      for (const LinearDef& def : groups[round->first + r].items) {
        const PlannedLinear& p = plan_of(def);
        if (p.keep) continue;
        CodedLinear& coded = all.emplace_back(begin_record(def, p, nullptr));
        if (r == rank) coded = std::move(round->own.front()), round->own.pop_front();
        coded.linear.spec = p.recipe.spec;
        of_rank[r].push_back({&coded.linear, &coded.record, &coded.there});
      }
    made.merge(round->made);
    by_lanes |= round->by_lane;
  }
  for (size_t r = 0; r < ranks; ++r) linears_from(ex_, ranks_, static_cast<int>(r), of_rank[r]);
  if (by_lanes) ex_.sync();  // codes of a lane go back to it when they are packed, and are read here until now
  for (CodedLinear& coded : all) {
    const auto at = made.find(coded.name);
    if (at != made.end()) replaced->emplace(coded.name, std::move(at->second));
    take(std::move(coded), at != made.end() ? nullptr : replaced);
  }
}

}  // namespace fewbit
