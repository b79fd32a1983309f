#pragma once
// Pages of beginnings that requests share. A block of kPagePositions tokens is known by a hash of its tokens and of the
// block before it (Kwon et al., 2023; vLLM's automatic prefix caching), so that looking up a prompt walks a tree of
// beginnings. The tokens are compared as well: a hash that two blocks share gives no wrong page. Whoever is least
// recently used goes first, the deepest blocks of a beginning before those in front of them.
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "src/run/paged/paged_cache.h"

namespace fewbit {

class PrefixCache {
 public:
  // Gives pages back to `cache`, which must outlive it, when that has none left.
  explicit PrefixCache(PagedCache& cache);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The hashes of the whole blocks of a text, each with all before it.
  static std::vector<uint64_t> hashes(std::span<const int32_t> tokens);
  // The leading blocks of `tokens` that are held, as many as lie within the first `most` positions; their pages go to
  // the empty sequence. Returns the positions.
  int64_t adopt(int sequence, std::span<const int32_t> tokens, std::span<const uint64_t> hashes, int64_t most);
  // Holds block `block` of a sequence, which begins with `tokens` and has computed that block.
  void add(int sequence, std::span<const int32_t> tokens, std::span<const uint64_t> hashes, int64_t block);
  // The blocks of a text, as far as they are held, were used just now.
  void touch(std::span<const uint64_t> hashes);
  bool has(uint64_t hash) const { return entries_.contains(hash); }

  void clear();  // every page that no sequence holds goes
  int64_t blocks() const { return std::ssize(entries_); }
  int64_t evicted() const { return evicted_; }

 private:
  struct Entry {
    uint64_t before = 0;
    std::vector<int32_t> tokens;  // kPagePositions
    PagedCache::Block pages;
    uint64_t used = 0;
    int64_t block = 0;
  };
  // Of the blocks used at the same time the deepest goes first: nobody finds it without those before it.
  struct Use {
    uint64_t used;
    int64_t block;
    uint64_t hash;
    bool operator<(const Use& o) const { return std::tie(used, o.block, hash) < std::tie(o.used, block, o.hash); }
  };
  bool same(const Entry&, std::span<const int32_t> tokens, std::span<const uint64_t> hashes, int64_t block) const;
  void remove(uint64_t hash);
  bool evict(size_t group);

  PagedCache& cache_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::set<Use> by_use_;
  uint64_t clock_ = 0;
  int64_t evicted_ = 0;
};

}  // namespace fewbit
