#include "src/run/paged/prefix_cache.h"

#include <algorithm>

#include "src/core/hash.h"

namespace fewbit {

PrefixCache::PrefixCache(PagedCache& cache) : cache_(cache) {
  cache.on_shortage([this](size_t group) { return evict(group); });
}

PrefixCache::~PrefixCache() {
  cache_.on_shortage({});
  clear();
}

std::vector<uint64_t> PrefixCache::hashes(std::span<const int32_t> tokens) {
  std::vector<uint64_t> out;
  uint64_t before = 0;
  for (size_t at = 0; at + kPagePositions <= tokens.size(); at += kPagePositions) {
    Hasher h;
    h.add(&before, sizeof before);
    h.add(tokens.data() + at, kPagePositions * sizeof(int32_t));
    out.push_back(before = h.value());
  }
  return out;
}

bool PrefixCache::same(const Entry& e, std::span<const int32_t> tokens, std::span<const uint64_t> hashes,
                       int64_t block) const {
  const auto b = static_cast<size_t>(block);
  return e.before == (b == 0 ? 0 : hashes[b - 1]) &&
         std::ranges::equal(e.tokens, tokens.subspan(b * kPagePositions, kPagePositions));
}

void PrefixCache::touch(std::span<const uint64_t> hashes) {
  ++clock_;
  for (const uint64_t hash : hashes) {
    const auto found = entries_.find(hash);
    if (found == entries_.end()) return;
    Entry& e = found->second;
    by_use_.erase({e.used, e.block, hash});
    by_use_.insert({e.used = clock_, e.block, hash});
  }
}

int64_t PrefixCache::adopt(int sequence, std::span<const int32_t> tokens, std::span<const uint64_t> hashes,
                           int64_t most) {
  std::vector<const PagedCache::Block*> blocks;
  while (std::ssize(blocks) < std::min<int64_t>(std::ssize(hashes), most / kPagePositions)) {
    const auto found = entries_.find(hashes[blocks.size()]);
    if (found == entries_.end() || !same(found->second, tokens, hashes, std::ssize(blocks))) break;
    blocks.push_back(&found->second.pages);
  }
  while (!cache_.complete(blocks)) blocks.pop_back();
  touch(hashes.subspan(0, blocks.size()));
  cache_.adopt(sequence, blocks);
  return std::ssize(blocks) * kPagePositions;
}

void PrefixCache::add(int sequence, std::span<const int32_t> tokens, std::span<const uint64_t> hashes, int64_t block) {
  const auto b = static_cast<size_t>(block);
  if (entries_.contains(hashes[b])) return;
  if (b > 0 && !entries_.contains(hashes[b - 1])) return;  // its beginning went: nobody would find it
  const auto own = tokens.subspan(b * kPagePositions, kPagePositions);
  // Behind the block before it, wherever that stands: the sequence holds its pages, and touches them when it ends.
  const uint64_t used = b == 0 ? ++clock_ : entries_.at(hashes[b - 1]).used;
  entries_.emplace(hashes[b], Entry{.before = b == 0 ? 0 : hashes[b - 1],
                                    .tokens = {own.begin(), own.end()},
                                    .pages = cache_.share(sequence, block),
                                    .used = used,
                                    .block = block});
  by_use_.insert({used, block, hashes[b]});
}

void PrefixCache::remove(uint64_t hash) {
  const auto found = entries_.find(hash);
  cache_.drop(found->second.pages);
  by_use_.erase({found->second.used, found->second.block, hash});
  entries_.erase(found);
}

// Where a sequence still holds a block but its window has gone on, only the window's page goes.
// What sequences hold is in use, and goes to the back: the next search does not meet it again.
bool PrefixCache::evict(size_t group) {
  const uint64_t before = clock_;
  for (auto use = by_use_.begin(); use != by_use_.end() && use->used <= before;) {
    const auto [used, block, hash] = *use;
    Entry& e = entries_.at(hash);
    if (!cache_.only_held_here(e.pages, group)) {
      use = by_use_.erase(use);
      by_use_.insert({e.used = ++clock_, block, hash});
      continue;
    }
    ++evicted_;
    cache_.only_held_here(e.pages) ? remove(hash) : cache_.drop(e.pages, group);
    return true;
  }
  return false;
}

void PrefixCache::clear() {
  while (!by_use_.empty()) remove(by_use_.begin()->hash);
}

}  // namespace fewbit
