// Multiple choice: the shapes of the files, the scores against sums of losses, flips by hand.
#include "src/eval/tasks.h"

#include <cmath>
#include <fstream>

#include "src/text/corpus.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

class Tasks : public ::testing::Test {
 protected:
  std::vector<TaskItem> read(const std::string& lines) {
    std::ofstream(dir / "t.jsonl") << lines;
    return read_tasks(dir / "t.jsonl");
  }
  TaskItem one(const std::string& line) { return read(line).at(0); }
  TempDir dir;
};

TEST_F(Tasks, EveryShape) {
  const TaskItem arc =
      one(R"({"question": "Q?", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"})");
  EXPECT_EQ(arc.contexts[0], "Question: Q?\nAnswer:");
  EXPECT_EQ(arc.continuations, (std::vector<std::string>{" a", " b"}));
  EXPECT_EQ(arc.gold, 1u) << "a label, not a number from 0";
  EXPECT_EQ(one(R"({"question": {"stem": "Q?", "choices": [{"text": "a", "label": "A"}, )"
                R"({"text": "b", "label": "B"}]}, "answerKey": "A"})")
                .gold,
            0u);
  const TaskItem letters = one(R"({"subject": "s", "question": "Q?", "choices": ["a", "b", "c"], "answer": 2})");
  EXPECT_EQ(letters.contexts[0], "Q?\nA. a\nB. b\nC. c\nAnswer:");
  EXPECT_EQ(letters.continuations[2], " C");
  EXPECT_EQ(letters.gold, 2u);
  EXPECT_EQ(one(R"({"ctx": "x", "endings": ["a", "b"], "label": "1", "activity_label": "L"})").contexts[0], "L: x");
  EXPECT_EQ(one(R"({"goal": "g", "sol1": "a", "sol2": "b", "label": 1})").gold, 1u);
  const TaskItem cloze = one(R"({"sentence": "The _ ran.", "option1": "dog", "option2": "cat", "answer": "2"})");
  EXPECT_EQ(cloze.contexts, (std::vector<std::string>{"The dog", "The cat"}));
  EXPECT_EQ(cloze.continuations, (std::vector<std::string>{" ran.", " ran."}));
  EXPECT_EQ(cloze.gold, 1u);
  EXPECT_EQ(one(R"({"passage": "p", "question": "q", "answer": true})").gold, 1u);
  EXPECT_EQ(one(R"({"context": "c", "choices": ["a", "b"], "gold": "b"})").gold, 1u);
}

TEST_F(Tasks, BrokenLinesAreNamed) {
  const std::string good = R"({"context": "c", "choices": ["a", "b"], "gold": 0})";
  struct Case {
    const char *line, *word;
  };
  for (const Case& c : {Case{R"({"context": "c", "choices": ["a", "b"]})", "no answer"},
                        Case{R"({"context": "c", "choices": ["a", "b"], "gold": 2})", "none of the 2 choices"},
                        Case{R"({"context": "c", "choices": ["a"], "gold": 0})", "fewer than two"},
                        Case{R"({"story": "c"})", "no shape"}, Case{"[3]", "not a JSON object"},
                        Case{R"({"sentence": "no blank", "option1": "a", "option2": "b", "answer": "1"})", "blank"}}) {
    std::string what;
    EXPECT_EQ(error_of([&] { read(good + "\n" + c.line); }, &what), ErrorKind::checkpoint);
    EXPECT_NE(what.find(c.word), std::string::npos) << what;
    EXPECT_NE(what.find("line 2"), std::string::npos) << what;
  }
  EXPECT_THROW(read("\n\n"), Error);
}

FEWBIT_DEVICE_TEST(TaskScores, AreSumsOfLosses) {
  const Checkpoint c = Checkpoint::open(builtin_model_dir());
  const Tokenizer tokenizer = Tokenizer::open(c.dir);
  const std::vector<TaskItem> items = read_tasks(builtin_data_dir() / "tasks/sample.jsonl");
  EXPECT_EQ(items.size(), 32u);
  Runner runner(ex, c, {.dtype = DType::f32});
  const std::vector<TaskAnswer> answers = answer_tasks(runner, tokenizer, items, {.few_shot = 1, .batch_tokens = 500});
  // The last item by itself; its example is the first one.
  const TaskItem &item = items.back(), &example = items.front();
  const std::string context =
      example.contexts[example.gold] + example.continuations[example.gold] + "\n\n" + item.contexts[0];
  for (size_t choice = 0; choice < item.continuations.size(); ++choice) {
    const std::vector<int32_t> head = tokenizer.encode(context),
                               ids = tokenizer.encode(context + item.continuations[choice]);
    double sum = 0;
    for (const float loss : runner.nll(ids, 1, static_cast<int64_t>(head.size()))) sum -= loss;
    EXPECT_NEAR(answers.back().logprob[choice], sum, std::fabs(sum) * tol::kLogitsF32) << "choice " << choice;
  }
  const Accuracy a = accuracy(items, answers, false);
  EXPECT_NEAR(a.stderr_, std::sqrt(a.value * (1 - a.value) / 31), 1e-12);
  EXPECT_THROW(answer_tasks(runner, tokenizer, items, {.few_shot = 32}), Error);
}

TEST_F(Tasks, FlipsByHand) {
  const std::string line = R"({"context": "c", "choices": ["a", "b", "c"], "gold": 0})";
  const auto items = read(line + "\n" + line + "\n" + line + "\n" + line);
  const auto answers = [](std::initializer_list<size_t> raw) {
    std::vector<TaskAnswer> out;
    for (const size_t r : raw) out.push_back({{}, r, 0});
    return out;
  };
  const Flips f = flips(items, answers({0, 0, 1, 1}), answers({0, 1, 0, 2}), false);
  EXPECT_EQ(f.lost, 1);
  EXPECT_EQ(f.won, 1);
  EXPECT_EQ(f.changed, 3);
  EXPECT_EQ(f.difference, 0);
  EXPECT_NEAR(f.stderr_, std::sqrt(0.5 / 3), 1e-12);
  EXPECT_EQ(flips(items, answers({0, 0, 1, 1}), answers({0, 1, 0, 2}), true).changed, 0);
}

}  // namespace
}  // namespace fewbit::test
