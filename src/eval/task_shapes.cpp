// The JSONL shapes of the common harness tasks, one function each, and how they become contexts and
// continuations.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/strings.h"
#include "src/eval/tasks.h"
#include "src/text/corpus.h"

namespace fewbit {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  fail(ErrorKind::checkpoint, where + ": " + what);
}

std::string text_of(const Json& j, const char* key, const std::string& where) {
  if (!j.contains(key) || !j[key].is_string()) refuse(where, fmt::format("`{}` is no text", key));
  return j[key];
}

struct Choices {
  std::vector<std::string> texts, labels;  // labels may be empty: then answers count from 0
};

// A list of texts, a list of {text, label}, or {text: […], label: […]}.
Choices choices_of(const Json& j, const std::string& where) {
  Choices c;
  const bool columns = j.is_object() && j.contains("text") && j.contains("label");
  const Json& list = columns ? j["text"] : j;
  if (!list.is_array()) refuse(where, "`choices` is no list");
  for (const Json& item : list) {
    const Json& text = item.is_object() && item.contains("text") ? item["text"] : item;
    if (!text.is_string()) refuse(where, "a choice is no text");
    c.texts.push_back(text);
    if (item.is_object()) c.labels.push_back(item.value("label", ""));
  }
  if (columns)
    for (const Json& label : j["label"])
      c.labels.push_back(label.is_string() ? label.get<std::string>() : label.dump());
  if (!c.labels.empty() && c.labels.size() != c.texts.size())
    refuse(where, "choices and their labels differ in number");
  return c;
}

// The answer: a label, a number counted from 0, a letter, or the text of a choice.
size_t gold_of(const Json& j, const Choices& c, const std::string& where) {
  Json answer;
  for (const char* key : {"gold", "answerKey", "label", "answer"})
    if (answer.is_null() && j.contains(key)) answer = j[key];
  if (answer.is_null() || answer == "") refuse(where, "no answer (one of `gold`, `answerKey`, `label`, `answer`)");
  const std::string text = answer.is_string() ? answer.get<std::string>() : answer.dump();
  const size_t n = c.texts.size();
  const auto place_in = [&](const std::vector<std::string>& names) {  // n where it is not among them
    return names.empty() ? n : static_cast<size_t>(std::find(names.begin(), names.end(), text) - names.begin());
  };
  size_t gold = answer.is_string() ? place_in(c.labels) : n;
  const bool digits = !text.empty() && text.size() < 4 &&
                      std::all_of(text.begin(), text.end(), [](char d) { return d >= '0' && d <= '9'; });
  if (gold >= n && digits) gold = static_cast<size_t>(std::stoi(text));
  if (gold >= n && answer.is_string()) gold = place_in(c.texts);
  if (gold >= n && text.size() == 1 && text[0] >= 'A' && text[0] <= 'Z') gold = static_cast<size_t>(text[0] - 'A');
  if (gold >= n) refuse(where, fmt::format("the answer \"{}\" is none of the {} choices", text, n));
  return gold;
}

TaskItem one_context(const std::string& context, const Choices& c, size_t gold) {
  TaskItem item;
  for (const std::string& text : c.texts) item.continuations.push_back(starts_with(text, " ") ? text : " " + text);
  item.contexts.assign(c.texts.size(), context);
  item.gold = gold;
  return item;
}

TaskItem endings(const Json& j, const std::string& where) {
  const Choices c = choices_of(j["endings"], where);
  const std::string label = j.contains("activity_label") ? text_of(j, "activity_label", where) + ": " : "";
  return one_context(label + text_of(j, "ctx", where), c, gold_of(j, c, where));
}

TaskItem goal(const Json& j, const std::string& where) {
  const Choices c{{text_of(j, "sol1", where), text_of(j, "sol2", where)}, {}};
  return one_context("Question: " + text_of(j, "goal", where) + "\nAnswer:", c, gold_of(j, c, where));
}

// The blank "_" is filled by each option; what stands behind it is scored.
TaskItem cloze(const Json& j, const std::string& where) {
  const Choices c{{text_of(j, "option1", where), text_of(j, "option2", where)}, {"1", "2"}};
  const std::string sentence = text_of(j, "sentence", where);
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) refuse(where, "`sentence` has no blank \"_\"");
  TaskItem item;
  item.gold = gold_of(j, c, where);
  for (const std::string& option : c.texts) {
    item.contexts.push_back(sentence.substr(0, blank) + option);
    item.continuations.push_back(sentence.substr(blank + 1));
  }
  if (item.continuations[0].find_first_not_of(" .") == std::string::npos)
    refuse(where, "nothing stands behind the blank \"_\"");
  return item;
}

TaskItem yes_no(const Json& j, const std::string& where) {
  const Choices c{{"no", "yes"}, {"false", "true"}};
  std::string question = text_of(j, "question", where);
  if (!ends_with(question, "?")) question += "?";
  Json answered = j;
  if (j.contains("answer") && j["answer"].is_boolean()) answered["answer"] = j["answer"].get<bool>() ? 1 : 0;
  return one_context(text_of(j, "passage", where) + "\nQuestion: " + question + "\nAnswer:", c,
                     gold_of(answered, c, where));
}

// Lettered choices in the question, the letters scored.
TaskItem lettered(const Json& j, const std::string& where) {
  const Choices c = choices_of(j["choices"], where);
  Choices letters;
  std::string question = text_of(j, "question", where) + "\n";
  for (size_t i = 0; i < c.texts.size(); ++i) {
    letters.texts.emplace_back(1, static_cast<char>('A' + i));
    question += letters.texts.back() + ". " + c.texts[i] + "\n";
  }
  return one_context(question + "Answer:", letters, gold_of(j, c, where));
}

TaskItem question(const Json& j, const std::string& where) {
  const bool nested = j["question"].is_object();
  const Json& of = nested ? j["question"] : j;
  if (!of.contains("choices")) refuse(where, "no `choices`");
  const Choices c = choices_of(of["choices"], where);
  return one_context("Question: " + text_of(of, nested ? "stem" : "question", where) + "\nAnswer:", c,
                     gold_of(j, c, where));
}

TaskItem plain(const Json& j, const std::string& where) {
  for (const char* key : {"context", "query", "prompt"})
    if (j.contains(key)) {
      const Choices c = choices_of(j["choices"], where);
      return one_context(text_of(j, key, where), c, gold_of(j, c, where));
    }
  refuse(where, "no `context`, `query` or `prompt` beside `choices`");
}

// The first shape all of whose keys a line has is taken.
struct TaskShape {
  std::vector<const char*> keys;
  TaskItem (*read)(const Json&, const std::string& where);
};
const std::vector<TaskShape>& shapes() {
  static const std::vector<TaskShape> table = {{{"ctx", "endings"}, endings},
                                               {{"goal", "sol1", "sol2"}, goal},
                                               {{"sentence", "option1", "option2"}, cloze},
                                               {{"passage", "question"}, yes_no},
                                               {{"subject", "question", "choices"}, lettered},
                                               {{"question"}, question},
                                               {{"choices"}, plain}};
  return table;
}

TaskItem item_of(const Json& j, const std::string& where) {
  if (!j.is_object()) refuse(where, "is not a JSON object");
  for (const TaskShape& shape : shapes()) {
    if (!std::all_of(shape.keys.begin(), shape.keys.end(), [&](const char* key) { return j.contains(key); })) continue;
    TaskItem item = shape.read(j, where);
    if (item.continuations.size() < 2) refuse(where, "fewer than two choices");
    item.where = where;
    return item;
  }
  refuse(where,
         "has no shape of a task that is known: question and choices, ctx and endings, goal, sol1 and sol2, "
         "sentence, option1 and option2, passage and question, or context and choices");
}

TaskItem read_line(const std::string& line, const std::string& where) {
  const Json j = parse_json(line, where, kRecordJson);
  TaskItem item;
  take_apart(where, [&] { item = item_of(j, where); });
  return item;
}

}  // namespace

std::vector<TaskItem> read_tasks(const std::filesystem::path& path) {
  std::vector<TaskItem> items;
  const std::vector<std::string> lines = split(read_text(path), '\n');
  for (size_t i = 0; i < lines.size(); ++i)
    if (!words(lines[i]).empty())
      items.push_back(read_line(lines[i], fmt::format("{}: line {}", path.string(), i + 1)));
  if (items.empty()) fail(ErrorKind::checkpoint, path.string() + ": holds no task");
  return items;
}

}  // namespace fewbit
