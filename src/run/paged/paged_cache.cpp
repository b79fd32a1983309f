// Who holds which page. Pages are taken from the back of a list that begins in order, so that the same calls give the
// same pages.
#include "src/run/paged/paged_cache.h"

#include <algorithm>
#include <utility>

namespace fewbit {
namespace {

size_t at_index(int64_t i) { return static_cast<size_t>(i); }

// Page `page` of a tensor [pages, …].
TensorView page_of(const Tensor& t, int32_t page) { return t.view().row_range(page, page + 1); }

}  // namespace

PagedCache::PagedCache(Exec& ex, const ModelSpec& spec, const PagedCacheOptions& o) : ex_(ex) {
  make_groups(spec, o);
  sequences_.resize(at_index(o.sequences));
  allocate(spec, o);
}

// Group 0 sees all positions, and exists where no layer does; a window's group has the pages that its sequences can
// hold at one time, with those that are being filled.
void PagedCache::make_groups(const ModelSpec& spec, const PagedCacheOptions& o) {
  const auto add = [&](int64_t sight, bool chunks) {
    for (size_t g = 0; g < groups_.size(); ++g)
      if (groups_[g].sight == sight && groups_[g].chunks == chunks) return g;
    Group group{.sight = sight, .chunks = chunks, .holders = {}, .free = {}};
    const int64_t own = sight == 0 ? o.pages : std::min(o.pages, o.sequences * (pages_for(sight + o.pass) + 2));
    group.holders.assign(at_index(own), 0);
    for (int64_t p = own - 1; p >= 0; --p) group.free.push_back(static_cast<int32_t>(p));
    groups_.push_back(std::move(group));
    return groups_.size() - 1;
  };
  add(0, false);
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const Attention* a = attention_of(spec.block(keys_layer(spec, layer)));
    layer_group_.push_back(!a ? 0 : a->chunk > 0 ? add(a->chunk, true) : add(a->window, false));
  }
}

void PagedCache::allocate(const ModelSpec& spec, const PagedCacheOptions& o) {
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::vector<BlockOp>& block = spec.block(layer);
    const Attention* a = own_attention_of(block);
    const int64_t own_pages = pages(group_of(layer));
    kv_.push_back(a ? alloc_kv(ex_, *a, o.type, o.compute, own_pages, kPagePositions) : KvStorage{});
    latents_.push_back(alloc_latent(ex_, block, o.type, o.compute, own_pages, kPagePositions));
    position_bytes_ += (a ? kv_bytes(*a, o.type, o.compute) : 0) + latent_bytes(block, o.type, o.compute);
    std::vector<RecurrentState>& states = states_.emplace_back();
    for (int64_t s = 0; s < o.sequences; ++s) states.push_back(alloc_recurrent(ex_, block, o.compute, 1));
    has_states_ = has_states_ || !states.front().empty();
  }
}

const PagedCache::Sequence& PagedCache::at(int sequence) const {
  FEWBIT_ASSERT(sequence >= 0 && sequence < std::ssize(sequences_) && sequences_[at_index(sequence)].live);
  return sequences_[at_index(sequence)];
}

int PagedCache::begin() {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].live) continue;
    sequences_[i] = {.live = true, .length = 0, .tables = std::vector<std::vector<int32_t>>(groups_.size())};
    for (const std::vector<RecurrentState>& layer : states_)
      for (const auto& [name, state] : layer[i]) ex_.zero(state);
    return static_cast<int>(i);
  }
  return -1;
}

void PagedCache::end(int sequence) {
  Sequence& s = at(sequence);
  for (size_t g = 0; g < groups_.size(); ++g)
    for (const int32_t page : s.tables[g])
      if (page >= 0) let_go(g, page);
  s = {};
}

int PagedCache::fork(int sequence) {
  const int child = begin();
  if (child < 0) return -1;
  const Sequence& parent = at(sequence);
  at(child).length = parent.length;
  at(child).tables = parent.tables;
  for (size_t g = 0; g < groups_.size(); ++g)
    for (const int32_t page : parent.tables[g])
      if (page >= 0) ++groups_[g].holders[at_index(page)];
  for (const std::vector<RecurrentState>& layer : states_)
    for (const auto& [name, state] : layer[at_index(sequence)]) ex_.copy(state, layer[at_index(child)].at(name));
  return child;
}

// The first position that a query at `position` sees.
int64_t PagedCache::first_seen(const Group& g, int64_t position) const {
  if (g.sight == 0) return 0;
  return g.chunks ? position / g.sight * g.sight : std::max<int64_t>(0, position - g.sight + 1);
}

// Pages to be taken so that positions [s.length, length) can be written: new ones, and copies of those that others
// hold.
int64_t PagedCache::missing(const Sequence& s, size_t group, int64_t length) const {
  int64_t n = 0;
  const std::vector<int32_t>& table = s.tables[group];
  for (int64_t b = s.length / kPagePositions; b < pages_for(length); ++b)
    if (b >= std::ssize(table) || table[at_index(b)] < 0 || groups_[group].holders[at_index(table[at_index(b)])] > 1)
      ++n;
  return n;
}

bool PagedCache::grow(int sequence, int64_t length) {
  Sequence& s = at(sequence);
  for (size_t g = 0; g < groups_.size(); ++g)
    while (std::ssize(groups_[g].free) < missing(s, g, length))
      if (!reclaim_ || !reclaim_(g)) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<int32_t>& table = s.tables[g];
    table.resize(std::max(table.size(), at_index(pages_for(length))), -1);
    for (int64_t b = s.length / kPagePositions; b < pages_for(length); ++b) {
      int32_t& page = table[at_index(b)];
      if (page < 0) {
        page = take(g);
      } else if (groups_[g].holders[at_index(page)] > 1) {
        const int32_t own = take(g);
        copy_page(g, page, own);
        let_go(g, page);
        page = own;
      }
    }
  }
  return true;
}

void PagedCache::trim(int sequence, int64_t length) {
  for (size_t g = 0; g < groups_.size(); ++g)
    for (std::vector<int32_t>& table = at(sequence).tables[g]; std::ssize(table) > pages_for(length); table.pop_back())
      if (table.back() >= 0) let_go(g, table.back());
}

void PagedCache::set_length(int sequence, int64_t length) {
  for (const std::vector<int32_t>& table : at(sequence).tables) FEWBIT_ASSERT(pages_for(length) <= std::ssize(table));
  at(sequence).length = length;
}

void PagedCache::forget(int sequence) {
  Sequence& s = at(sequence);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t whole = std::min(first_seen(groups_[g], s.length) / kPagePositions, std::ssize(s.tables[g]));
    // What lies before a block that is gone is gone already.
    for (int64_t b = whole - 1; b >= 0 && s.tables[g][at_index(b)] >= 0; --b) {
      let_go(g, s.tables[g][at_index(b)]);
      s.tables[g][at_index(b)] = -1;
    }
  }
}

int64_t PagedCache::most_positions() const { return pages(0) * kPagePositions; }

int32_t PagedCache::take(size_t group) {
  Group& g = groups_[group];
  FEWBIT_ASSERT(!g.free.empty());
  const int32_t page = g.free.back();
  g.free.pop_back();
  FEWBIT_ASSERT(g.holders[at_index(page)] == 0);
  g.holders[at_index(page)] = 1;
  return page;
}

void PagedCache::let_go(size_t group, int32_t page) {
  Group& g = groups_[group];
  FEWBIT_ASSERT(g.holders[at_index(page)] > 0);
  if (--g.holders[at_index(page)] == 0) g.free.push_back(page);
}

void PagedCache::copy_page(size_t group, int32_t from, int32_t to) {
  const auto copy = [&](const Tensor& t) {
    if (!t.empty()) ex_.copy(page_of(t, from), page_of(t, to));
  };
  for (size_t layer = 0; layer < kv_.size(); ++layer) {
    if (layer_group_[layer] != group) continue;
    const KvStorage& kv = kv_[layer];
    const LatentStorage& l = latents_[layer];
    for (const Tensor* t :
         {&kv.k, &kv.v, &kv.k_scales, &kv.v_scales, &l.latent, &l.scales, &l.k_rope, &l.index, &l.keys, &l.far})
      copy(*t);
  }
}

PagedCache::Block PagedCache::share(int sequence, int64_t block) {
  Block pages;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t page = at(sequence).tables[g][at_index(block)];
    if (page >= 0) ++groups_[g].holders[at_index(page)];
    pages.push_back(page);
  }
  return pages;
}

void PagedCache::drop(const Block& block) {
  for (size_t g = 0; g < groups_.size(); ++g)
    if (block[g] >= 0) let_go(g, block[g]);
}

void PagedCache::drop(Block& block, size_t group) {
  if (block[group] >= 0) let_go(group, std::exchange(block[group], -1));
}

bool PagedCache::only_held_here(const Block& block, size_t group) const {
  return block[group] >= 0 && groups_[group].holders[at_index(block[group])] == 1;
}

bool PagedCache::only_held_here(const Block& block) const {
  for (size_t g = 0; g < groups_.size(); ++g)
    if (block[g] >= 0 && !only_held_here(block, g)) return false;
  return true;
}

bool PagedCache::complete(std::span<const Block* const> blocks) const {
  const int64_t position = std::ssize(blocks) * kPagePositions;
  for (size_t g = 0; g < groups_.size(); ++g)
    for (int64_t b = first_seen(groups_[g], position) / kPagePositions; b < std::ssize(blocks); ++b)
      if ((*blocks[at_index(b)])[g] < 0) return false;
  return true;
}

void PagedCache::adopt(int sequence, std::span<const Block* const> blocks) {
  Sequence& s = at(sequence);
  FEWBIT_ASSERT(s.length == 0 && s.tables[0].empty() && !has_states_);
  for (const Block* block : blocks)
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int32_t page = (*block)[g];
      if (page >= 0) ++groups_[g].holders[at_index(page)];
      s.tables[g].push_back(page);
    }
  s.length = std::ssize(blocks) * kPagePositions;
}

int64_t PagedCache::pages_held_in_all() const {
  int64_t n = 0;
  for (size_t g = 0; g < groups_.size(); ++g) n += pages_held(g);
  return n;
}

int64_t PagedCache::pages_in_all() const {
  int64_t n = 0;
  for (size_t g = 0; g < groups_.size(); ++g) n += pages(g);
  return n;
}

int64_t PagedCache::pages_of_sequences() const {
  int64_t n = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<bool> held(static_cast<size_t>(pages(g)));
    for (const Sequence& s : sequences_)
      if (s.live)
        for (const int32_t page : s.tables[g])
          if (page >= 0) held[static_cast<size_t>(page)] = true;
    n += std::ranges::count(held, true);
  }
  return n;
}

int64_t PagedCache::bytes() const {
  int64_t n = 0;
  const auto add = [&](std::initializer_list<const Tensor*> tensors) {
    for (const Tensor* t : tensors) n += t->empty() ? 0 : t->bytes();  // an empty one has an element by its shape
  };
  for (const KvStorage& kv : kv_) add({&kv.k, &kv.v, &kv.k_scales, &kv.v_scales});
  for (const LatentStorage& l : latents_) add({&l.latent, &l.scales, &l.k_rope, &l.index, &l.keys, &l.far});
  return n;
}

}  // namespace fewbit
