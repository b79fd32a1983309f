#pragma once
// Byte-pair encoding of one word: pairs of neighbours are merged, the pair of the lowest rank first and of
// equal ranks the leftmost, until no pair has a rank. A heap over a linked list: n log n in the length of the
// word.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fewbit {

// Looks strings up by view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// (left id, right id) -> rank and id of the merged token; open addressing.
class MergeTable {
 public:
  struct Entry {
    uint64_t pair = ~uint64_t{0};
    uint32_t rank = 0;
    int32_t id = -1;
  };
  explicit MergeTable(size_t count = 0);
  void insert(int32_t left, int32_t right, uint32_t rank, int32_t id);  // a later pair of the same ids wins
  const Entry* find(int32_t left, int32_t right) const;                 // nullptr = no such pair

 private:
  size_t slot(uint64_t pair) const;
  std::vector<Entry> entries_{};  // a power of two, at most half full
};

struct BpeModel {
  Vocabulary vocab{};
  MergeTable merges{};
  std::optional<int32_t> unk{};                 // for a character that is not in the vocabulary; without it, dropped
  std::optional<std::vector<int32_t>> bytes{};  // byte fallback: the ids of <0x00> … <0xFF>, -1 where absent
  bool fuse_unk = false;                        // consecutive unknown characters give one token
  bool ignore_merges = false;                   // a word that is in the vocabulary is one token
};

// Appends the ids of words; keeps its working memory between them. The model must outlive it.
class BpeEncoder {
 public:
  explicit BpeEncoder(const BpeModel& model);
  void encode(std::string_view word, std::vector<int32_t>& ids);

 private:
  struct Symbol {
    int32_t id = 0, previous = 0, next = 0;  // -1 = none; id -1 = merged into its left neighbour
  };
  struct Candidate {
    uint64_t order = 0;  // rank, then position of the left symbol: the least goes first
    int32_t id = 0;
    bool operator<(const Candidate& o) const { return order > o.order; }
  };
  void split_characters(std::string_view word);
  bool add_bytes(std::string_view character);
  void add(int32_t id);
  void merge();
  void offer(int32_t left);
  int32_t id_of(std::string_view character) const;

  const BpeModel& model_;
  std::vector<int32_t> one_char_{};  // ids of the characters below U+3000, -1 = none: spares the hash
  std::vector<Symbol> symbols_{};
  std::vector<Candidate> heap_{};
};

}  // namespace fewbit
