#pragma once
// The disk of a run, before anything is computed: what it takes at its most on each file system that it writes to,
// and what is free there.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

struct QuantPlan;

struct DiskJob {
  std::filesystem::path out{}, partial{};  // of OUT.partial, what is there already is counted as taken
  std::filesystem::path scratch{};         // of the states that fit no memory; "" = in OUT.partial
  int64_t shard_bytes = 0;                 // of OUT's files at most
  int64_t companions = 0;                  // bytes of tokenizer and other files that travel along
  bool routers = false;                    // the model has mixtures of experts
};

// Of one file system.
struct DiskNeed {
  std::filesystem::path folder{};  // that is there: the nearest one around what will be written
  std::string what{};              // "OUT", "scratch", "OUT and scratch"
  int64_t bytes = 0, free = 0;     // still to be written at the most; free for this user
};

struct DiskPlan {
  std::vector<DiskNeed> needs{};
  std::string refusal{};       // one line where something does not fit; "" otherwise
  bool blocks_in_out = false;  // sealed blocks are written once, into OUT's files
};

// Whether sealed blocks are written into the files of OUT at once. They are not where these files are made of them at
// the end (.gguf), where experts are stacked, or where a transform may write routers in another type than the model's,
// so that a file turns out otherwise than foreseen.
bool blocks_lie_in_out(const QuantPlan&, bool routers);

// Bytes of OUT.partial at their most, states aside: OUT and, unless blocks are written into it, those that wait until
// the shard which they are in is written; all of them for a single .gguf file.
int64_t peak_out_bytes(const QuantPlan&, const DiskJob&);

// Asks the system what is free.
DiskPlan plan_disk(const QuantPlan&, const DiskJob&);

// Lines for people: what is needed where, and the refusal.
std::string disk_lines(const DiskPlan&);

}  // namespace fewbit
