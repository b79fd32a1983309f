#include "src/eval/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/error.h"
#include "src/core/text/with_error.h"

namespace fewbit {
namespace {

// One choice of one item, tokenized.
struct Sequence {
  size_t item = 0, choice = 0;
  std::vector<int32_t> ids;
  int64_t begin = 0;  // of the continuation
};

std::string solved(const TaskItem& item) { return item.contexts[item.gold] + item.continuations[item.gold]; }

std::string examples_for(const std::vector<TaskItem>& items, size_t item, int64_t few_shot) {
  std::string text;
  for (int64_t k = 1; k <= few_shot; ++k)
    text += solved(items[(item + static_cast<size_t>(k)) % items.size()]) + "\n\n";
  return text;
}

// Context and continuation are tokenized together; the continuation begins behind as many tokens as the
// context has alone, its trailing blanks taken away (they join the continuation's first token).
Sequence make_sequence(const Tokenizer& tokenizer, const TaskItem& item, size_t choice, const std::string& examples) {
  Sequence s;
  const std::string context = examples + item.contexts[choice];
  const size_t end = context.find_last_not_of(' ');
  const std::string trimmed = end == std::string::npos ? "" : context.substr(0, end + 1);
  s.ids = tokenizer.encode(context + item.continuations[choice], Special::none);
  s.begin = static_cast<int64_t>(tokenizer.encode(trimmed, Special::none).size());
  if (const auto bos = tokenizer.bos()) {
    s.ids.insert(s.ids.begin(), *bos);
    ++s.begin;
  }
  const auto length = static_cast<int64_t>(s.ids.size());
  if (s.begin >= length) s.begin = length - 1;  // the tokenizer merged over the border
  if (s.begin < 1) fail(ErrorKind::usage, item.where + ": the context is empty and the tokenizer adds no BOS");
  return s;
}

std::vector<Sequence> make_sequences(const ModelSpec& spec, const Tokenizer& tokenizer,
                                     const std::vector<TaskItem>& items, int64_t few_shot) {
  if (few_shot >= static_cast<int64_t>(items.size()))
    fail(ErrorKind::usage, fmt::format("--few-shot {}: the file holds {} items, and an item is no example of itself",
                                       few_shot, items.size()));
  std::vector<Sequence> out;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string examples = examples_for(items, i, few_shot);
    for (size_t c = 0; c < items[i].continuations.size(); ++c) {
      out.push_back(make_sequence(tokenizer, items[i], c, examples));
      out.back().item = i;
      out.back().choice = c;
      if (static_cast<int64_t>(out.back().ids.size()) > spec.max_positions)
        fail(ErrorKind::usage,
             fmt::format("{}: {} tokens exceed the model's {} positions; fewer --few-shot examples may help",
                         items[i].where, out.back().ids.size(), spec.max_positions));
    }
  }
  return out;
}

// Sequences of a batch stand in one matrix; what is behind a shorter one is never looked at by causal
// attention.
std::vector<double> logprobs(Runner& runner, std::span<const Sequence> batch) {
  int64_t length = 0, first = batch[0].begin;
  for (const Sequence& s : batch) {
    length = std::max(length, static_cast<int64_t>(s.ids.size()));
    first = std::min(first, s.begin);
  }
  std::vector<int32_t> ids;
  for (const Sequence& s : batch) {
    ids.insert(ids.end(), s.ids.begin(), s.ids.end());
    ids.resize(ids.size() + static_cast<size_t>(length) - s.ids.size(), s.ids.front());
  }
  const std::vector<float> losses = runner.nll(ids, static_cast<int64_t>(batch.size()), first);
  std::vector<double> out;
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto row = losses.begin() + static_cast<int64_t>(i) * (length - first);
    out.push_back(-std::accumulate(row + (batch[i].begin - first),
                                   row + (static_cast<int64_t>(batch[i].ids.size()) - first), 0.0));
  }
  return out;
}

double characters(const std::string& continuation) {
  const size_t begin = std::min(continuation.find_first_not_of(' '), continuation.size());
  return static_cast<double>(std::count_if(continuation.begin() + static_cast<int64_t>(begin), continuation.end(),
                                           [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

template <class Score>
size_t best(size_t choices, Score score) {
  size_t b = 0;
  for (size_t c = 1; c < choices; ++c)
    if (score(c) > score(b)) b = c;
  return b;
}

void choose(const TaskItem& item, TaskAnswer& a) {
  a.raw = best(a.logprob.size(), [&](size_t c) { return a.logprob[c]; });
  a.normalised =
      best(a.logprob.size(), [&](size_t c) { return a.logprob[c] / std::max(1.0, characters(item.continuations[c])); });
}

size_t pick(const TaskAnswer& a, bool normalised) { return normalised ? a.normalised : a.raw; }

}  // namespace

std::vector<TaskAnswer> answer_tasks(Runner& runner, const Tokenizer& tokenizer, const std::vector<TaskItem>& items,
                                     const TaskOptions& o) {
  std::vector<Sequence> sequences = make_sequences(runner.spec(), tokenizer, items, o.few_shot);
  std::stable_sort(sequences.begin(), sequences.end(),
                   [](const Sequence& a, const Sequence& b) { return a.ids.size() > b.ids.size(); });
  std::vector<TaskAnswer> answers(items.size());
  for (size_t i = 0; i < items.size(); ++i) answers[i].logprob.resize(items[i].continuations.size());
  for (size_t begin = 0; begin < sequences.size();) {
    const size_t limit = std::max<size_t>(1, static_cast<size_t>(o.batch_tokens) / sequences[begin].ids.size());
    size_t end = std::min(sequences.size(), begin + limit);
    // A score must not depend on what shares the batch: LongRoPE turns a batch by its length.
    const auto turns_long = [&](size_t i) {
      return fewbit::turns_long(runner.spec(), static_cast<int64_t>(sequences[i].ids.size()));
    };
    while (turns_long(begin) != turns_long(end - 1)) --end;
    const std::span<const Sequence> batch = std::span(sequences).subspan(begin, end - begin);
    const std::vector<double> found = logprobs(runner, batch);
    for (size_t k = 0; k < batch.size(); ++k) answers[batch[k].item].logprob[batch[k].choice] = found[k];
    begin = end;
    if (o.progress) o.progress(static_cast<int64_t>(end), static_cast<int64_t>(sequences.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) choose(items[i], answers[i]);
  return answers;
}

Accuracy accuracy(const std::vector<TaskItem>& items, const std::vector<TaskAnswer>& answers, bool normalised) {
  double right = 0;
  for (size_t i = 0; i < items.size(); ++i) right += pick(answers[i], normalised) == items[i].gold;
  const auto n = static_cast<double>(items.size());
  const double p = right / n;
  return {p, n > 1 ? std::sqrt(p * (1 - p) / (n - 1)) : kNoError};
}

Flips flips(const std::vector<TaskItem>& items, const std::vector<TaskAnswer>& base,
            const std::vector<TaskAnswer>& answers, bool normalised) {
  Flips f;
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t before = pick(base[i], normalised), after = pick(answers[i], normalised);
    f.lost += before == items[i].gold && after != items[i].gold;
    f.won += before != items[i].gold && after == items[i].gold;
    f.changed += before != after;
  }
  const auto n = static_cast<double>(items.size());
  f.difference = static_cast<double>(f.won - f.lost) / n;
  const double variance = static_cast<double>(f.won + f.lost) / n - f.difference * f.difference;
  f.stderr_ = n > 1 ? std::sqrt(variance / (n - 1)) : kNoError;
  return f;
}

}  // namespace fewbit
