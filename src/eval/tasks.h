#pragma once
// Multiple choice by log-likelihood: which of the continuations of a context does the model find most likely?
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "src/run/runner.h"
#include "src/text/tokenizer.h"

namespace fewbit {

struct TaskItem {
  std::string where;                       // "FILE: line 3"
  std::vector<std::string> contexts;       // of each choice
  std::vector<std::string> continuations;  // of each choice, with the blank in front
  size_t gold = 0;
};

// Reads a JSONL file; every line has one of the shapes of the common harness tasks (docs/evaluation.md lists
// them). Error{checkpoint} names the line: no known shape, no answer, an answer that is no choice, fewer than
// two choices.
std::vector<TaskItem> read_tasks(const std::filesystem::path& path);

struct TaskAnswer {
  std::vector<double> logprob;  // of each choice
  size_t raw = 0;               // the likeliest choice
  size_t normalised = 0;        // the same of logprob per character of the continuation
};

struct TaskOptions {
  int64_t few_shot = 0;  // solved items in front of each: those that follow it in the file, cyclically
  int64_t batch_tokens = 8192;
  std::function<void(int64_t done, int64_t total)> progress{};
};
// Error{usage} where an item with its examples exceeds the model's positions, or few_shot the other items.
std::vector<TaskAnswer> answer_tasks(Runner&, const Tokenizer&, const std::vector<TaskItem>&, const TaskOptions&);

struct Accuracy {
  double value = 0, stderr_ = 0;  // sqrt(p (1 - p) / (n - 1))
};
Accuracy accuracy(const std::vector<TaskItem>&, const std::vector<TaskAnswer>&, bool normalised);

// Against a baseline's answers to the same items.
struct Flips {
  int64_t lost = 0, won = 0;           // right -> wrong, wrong -> right
  int64_t changed = 0;                 // another choice, whether right or wrong
  double difference = 0, stderr_ = 0;  // of the accuracy, paired
};
Flips flips(const std::vector<TaskItem>&, const std::vector<TaskAnswer>& base, const std::vector<TaskAnswer>&,
            bool normalised);

}  // namespace fewbit
