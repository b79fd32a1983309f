// The merge loop.
#include "src/text/bpe.h"

#include <algorithm>
#include <limits>

#include "src/core/error.h"
#include "src/core/rng.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t count) {
  size_t size = 16;
  while (size < 2 * count) size *= 2;
  entries_.resize(size);
}

// Where the pair stands, or the free slot where it would.
size_t MergeTable::slot(uint64_t pair) const {
  size_t i = mix64(pair) & (entries_.size() - 1);
  while (entries_[i].id >= 0 && entries_[i].pair != pair) i = (i + 1) & (entries_.size() - 1);
  return i;
}

void MergeTable::insert(int32_t left, int32_t right, uint32_t rank, int32_t id) {
  const uint64_t pair = pair_of(left, right);
  entries_[slot(pair)] = {pair, rank, id};
}

const MergeTable::Entry* MergeTable::find(int32_t left, int32_t right) const {
  const Entry& e = entries_[slot(pair_of(left, right))];
  return e.id >= 0 ? &e : nullptr;
}

BpeEncoder::BpeEncoder(const BpeModel& model) : model_(model) {}

int32_t BpeEncoder::id_of(std::string_view character) const {
  const auto it = model_.vocab.find(character);
  return it == model_.vocab.end() ? -1 : it->second;
}

void BpeEncoder::encode(std::string_view word, std::vector<int32_t>& ids) {
  if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    fail(ErrorKind::unsupported, "tokenizer: a stretch of " + std::to_string(word.size()) +
                                     " bytes without a place to split; give the text in pieces below 2 GiB");
  if (model_.ignore_merges) {
    if (const int32_t id = id_of(word); id >= 0) return ids.push_back(id);
  }
  symbols_.clear();
  split_characters(word);
  merge();
  for (const Symbol& s : symbols_)
    if (s.id >= 0) ids.push_back(s.id);
}

void BpeEncoder::add(int32_t id) {
  const auto n = static_cast<int32_t>(symbols_.size());
  if (n > 0) symbols_.back().next = n;
  symbols_.push_back({id, n - 1, -1});
}

bool BpeEncoder::add_bytes(std::string_view character) {
  if (!model_.bytes) return false;
  for (char c : character)
    if ((*model_.bytes)[static_cast<uint8_t>(c)] < 0) return false;
  for (char c : character) add((*model_.bytes)[static_cast<uint8_t>(c)]);
  return true;
}

void BpeEncoder::split_characters(std::string_view word) {
  constexpr uint32_t kTable = 0x3000;
  if (one_char_.empty()) one_char_.assign(kTable, -2);  // -2 = not looked up yet
  bool unknown = false;  // an unknown character waits: it is added before the next known one
  for (size_t i = 0; i < word.size();) {
    const size_t begin = i;
    const uint32_t code = next_code(word, i);
    const std::string_view character = word.substr(begin, i - begin);
    int32_t id = code < kTable ? one_char_[code] : id_of(character);
    if (id == -2) id = one_char_[code] = id_of(character);
    if (id < 0 && add_bytes(character)) continue;
    if (unknown && (id >= 0 || !model_.fuse_unk)) add(*model_.unk);
    unknown = id < 0 && model_.unk;
    if (id >= 0) add(id);
  }
  if (unknown) add(*model_.unk);
}

// Queues the merge of symbol `left` with its right neighbour, where there is one.
void BpeEncoder::offer(int32_t left) {
  const Symbol& s = symbols_[static_cast<size_t>(left)];
  if (s.next < 0) return;
  const MergeTable::Entry* e = model_.merges.find(s.id, symbols_[static_cast<size_t>(s.next)].id);
  if (e) heap_.push_back({static_cast<uint64_t>(e->rank) << 32 | static_cast<uint32_t>(left), e->id});
}

void BpeEncoder::merge() {
  heap_.clear();
  for (size_t i = 0; i < symbols_.size(); ++i) offer(static_cast<int32_t>(i));
  std::make_heap(heap_.begin(), heap_.end());
  const auto offer_and_sift = [&](int32_t left) {
    const size_t before = heap_.size();
    offer(left);
    if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end());
  };
  while (!heap_.empty()) {
    const Candidate top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    const auto at = static_cast<int32_t>(top.order & 0xFFFFFFFFu);
    Symbol& left = symbols_[static_cast<size_t>(at)];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<size_t>(left.next)];
    const MergeTable::Entry* e = model_.merges.find(left.id, right.id);
    if (!e || e->id != top.id) continue;  // the neighbours have changed since
    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = at;
    if (left.previous >= 0) offer_and_sift(left.previous);
    offer_and_sift(at);
  }
}

}  // namespace fewbit
