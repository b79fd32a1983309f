#pragma once
// Keys and values of many sequences in pages: which sequence holds which pages, and the memory behind them.
//
// Layers that see equally far back form a group, which has pages of its own: a page of a group holds kPagePositions
// positions of one sequence for every layer of the group. A layer with a sliding window (or chunks) lets go of the
// pages that no later query sees. Several sequences, and the prefix cache, may hold a page; who appends to a page that
// others hold too gets a copy of it. Recurrent layers have a state for each sequence.
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/paged_attention.h"
#include "src/run/kv_cache.h"

namespace fewbit {

struct PagedCacheOptions {
  KvType type = KvType::plain;
  DType compute = DType::bf16;
  int64_t pages = 256;     // of a group that sees all positions; window groups have no more than they can need
  int64_t sequences = 32;  // that hold pages or states at one time
  int64_t pass = 512;      // new positions of a sequence at one time, which a window's pages must hold too
};

class PagedCache {
 public:
  PagedCache(Exec&, const ModelSpec&, const PagedCacheOptions&);

  // A sequence without positions; -1 where `sequences` exist already.
  int begin();
  void end(int sequence);
  // A sequence with the same positions, whose pages are shared and whose states are copied; -1 as begin().
  int fork(int sequence);
  int64_t length(int sequence) const { return at(sequence).length; }

  // Pages for positions up to `length`, those to be written being the sequence's alone. False where they are not to be
  // had, after reclaim() was asked for every one that is missing; nothing has changed then.
  bool grow(int sequence, int64_t length);
  void trim(int sequence, int64_t length);        // pages behind those of `length` positions go
  void set_length(int sequence, int64_t length);  // after a pass, or back to before it; states do not go back
  // Pages that no query at set_length() or behind it sees go.
  void forget(int sequence);
  // The most positions that one sequence alone may have, windows at work.
  int64_t most_positions() const;

  // Pages of one block of positions, one of each group, held by something that is no sequence.
  using Block = std::vector<int32_t>;
  Block share(int sequence, int64_t block);  // -1 in a group that has let go of it already
  void drop(const Block&);
  void drop(Block&, size_t group);  // the page of one group alone
  // By whoever shared it: in one group, in all.
  bool only_held_here(const Block&, size_t group) const;
  bool only_held_here(const Block&) const;
  // Whether a query behind these first blocks of a sequence finds all that it sees.
  bool complete(std::span<const Block* const> blocks) const;
  void adopt(int sequence, std::span<const Block* const> blocks);  // the first ones of an empty sequence
  // Gives a page of the group back; false where there is none to give.
  void on_shortage(std::function<bool(size_t group)> reclaim) { reclaim_ = std::move(reclaim); }

  int64_t pages(size_t group = 0) const { return std::ssize(groups_[group].holders); }
  int64_t pages_held(size_t group = 0) const { return pages(group) - std::ssize(groups_[group].free); }
  int64_t pages_held_in_all() const;
  int64_t pages_in_all() const;
  int64_t pages_of_sequences() const;  // of all groups: held by sequences, each page once; the prefix cache holds more
  size_t groups() const { return groups_.size(); }
  int64_t bytes() const;
  int64_t bytes_per_position() const { return position_bytes_; }  // of one sequence, within all windows
  bool has_states() const { return has_states_; }

  // For a pass. The group of a layer; the page of a block in a group (-1: none); the layer's memory; the state of a
  // sequence in a layer.
  size_t group_of(int64_t layer) const { return layer_group_[static_cast<size_t>(layer)]; }
  std::span<const int32_t> table(int sequence, size_t group) const { return at(sequence).tables[group]; }
  const KvStorage& storage(int64_t layer) const { return kv_[static_cast<size_t>(layer)]; }
  const LatentStorage& latents(int64_t layer) const { return latents_[static_cast<size_t>(layer)]; }
  const RecurrentState& state(int64_t layer, int sequence) const {
    return states_[static_cast<size_t>(layer)][static_cast<size_t>(sequence)];
  }

 private:
  struct Group {
    int64_t sight = 0;             // positions that a query sees; 0: all
    bool chunks = false;           // it sees from a multiple of `sight` on
    std::vector<int32_t> holders;  // of each page
    std::vector<int32_t> free;
  };
  struct Sequence {
    bool live = false;
    int64_t length = 0;
    std::vector<std::vector<int32_t>> tables;  // by group
  };
  const Sequence& at(int sequence) const;
  Sequence& at(int sequence) { return const_cast<Sequence&>(std::as_const(*this).at(sequence)); }
  int64_t first_seen(const Group&, int64_t position) const;
  int64_t missing(const Sequence&, size_t group, int64_t length) const;
  int32_t take(size_t group);
  void let_go(size_t group, int32_t page);
  void copy_page(size_t group, int32_t from, int32_t to);
  void make_groups(const ModelSpec&, const PagedCacheOptions&);
  void allocate(const ModelSpec&, const PagedCacheOptions&);

  Exec& ex_;
  std::vector<Group> groups_;
  std::vector<size_t> layer_group_;
  std::vector<Sequence> sequences_;
  std::vector<KvStorage> kv_;                        // by layer, [pages, …]
  std::vector<LatentStorage> latents_;               // by layer, [pages, kPagePositions, …]
  std::vector<std::vector<RecurrentState>> states_;  // by layer and sequence, of one sequence each
  std::function<bool(size_t)> reclaim_;
  int64_t position_bytes_ = 0;
  bool has_states_ = false;
};

}  // namespace fewbit
