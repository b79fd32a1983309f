// Data that users download: texts and chats by the line, tasks.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "src/text/corpus.h"
#include "src/text/documents.h"
#include "tests/hostile/contained.h"
#include "tests/hostile/readers.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

// The broken JSON as lines of a file: what has line ends becomes several lines, of which the first that is none speaks.
std::vector<Hostile> as_lines(std::vector<Hostile> cases) {
  for (Hostile& h : cases) h.says.clear();
  return cases;
}

std::vector<Hostile> texts() {
  return {
      {"a number for a text", R"({"text":1})", "neither"},
      {"null for a text", R"({"text":null})", "neither"},
      {"a list for a text", R"({"text":["a"]})", "neither"},
      {"another key", R"({"content":"a"})", "neither"},
      {"a text, then a chat", "{\"text\":\"a\"}\n{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "mixed"},
      {"a text, then something else", "{\"text\":\"a\"}\n7", "line 2"},
      {"messages that are a text", R"({"messages":"a"})", "neither"},
      {"messages that are an object", R"({"messages":{"role":"user"}})", "neither"},
      {"a message that is a text", R"({"messages":["a"]})", "role"},
      {"a message that is null", R"({"messages":[null]})", "role"},
      {"a message without a role", R"({"messages":[{"content":"a"}]})", "role"},
      {"a role that is a number", R"({"messages":[{"role":1,"content":"a"}]})", "role"},
      {"a message without content", R"({"messages":[{"role":"user"}]})", "content"},
      {"content that is a number", R"({"messages":[{"role":"user","content":1}]})", "content"},
      {"content that is an object", R"({"messages":[{"role":"user","content":{"text":"a"}}]})", "content"},
      {"a part that is a text", R"({"messages":[{"role":"user","content":["a"]}]})", "parts"},
      {"a part that is an image", R"({"messages":[{"role":"user","content":[{"type":"image"}]}]})", "parts"},
      {"a part whose type is a number", R"({"messages":[{"role":"user","content":[{"type":1,"text":"a"}]}]})", ""},
      {"a part without a text", R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "parts"},
      {"tools that are a text", R"({"messages":[{"role":"user","content":"a"}],"tools":"x"})", "list"},
      {"tools that are numbers", R"({"messages":[{"role":"user","content":"a"}],"tools":[1]})", "object"},
      {"documents that are an object", R"({"messages":[{"role":"user","content":"a"}],"documents":{}})", "list"},
      {"variables that are a list", R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":[1]})",
       "object"},
      {"variables 189 deep",
       R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":)" + repeated("[", 188) +
           repeated("]", 188) + "}}",
       "", true},
      {"a number of more than 64 bits", R"({"text":"a","n":18446744073709551615})", "64 bits"},
      {"only blanks", "\n\n  \n", "no document"},
  };
}

std::vector<Hostile> tasks() {
  return {
      {"no answer", R"({"question":"q","choices":["a","b"]})", "answer"},
      {"an answer that is no choice", R"({"question":"q","choices":["a","b"],"gold":7})", "none of the 2"},
      {"an answer of a thousand digits",
       R"({"question":"q","choices":["a","b"],"gold":")" + std::string(1000, '1') + "\"}", "none of the 2"},
      {"a negative answer", R"({"question":"q","choices":["a","b"],"gold":-1})", "none of the 2"},
      {"an answer that is a list", R"({"question":"q","choices":["a","b"],"gold":[0]})", "none of the 2"},
      {"an answer with escape sequences", R"({"question":"q","choices":["a","b"],"gold":"\u001b[2J"})", "\\x1b"},
      {"choices that are a text", R"({"question":"q","choices":"ab","gold":0})", "no list"},
      {"choices that are numbers", R"({"question":"q","choices":[1,2],"gold":0})", "no text"},
      {"choices that are null", R"({"question":"q","choices":null,"gold":0})", "no list"},
      {"one choice", R"({"question":"q","choices":["a"],"gold":0})", "fewer than two"},
      {"no choices", R"({"question":"q","choices":[],"gold":0})", ""},
      {"columns of other lengths", R"({"question":"q","choices":{"text":["a","b"],"label":["A"]},"gold":0})", "differ"},
      {"columns that are numbers", R"({"question":"q","choices":{"text":1,"label":2},"gold":0})", "no list"},
      {"labels that are numbers",
       R"({"question":"q","choices":[{"text":"a","label":1},{"text":"b","label":2}],"gold":0})", ""},
      {"a question that is null", R"({"question":null,"choices":["a","b"],"gold":0})", "question"},
      {"a question that is a list", R"({"question":[1],"choices":["a","b"],"gold":0})", "question"},
      {"a question within a question", R"({"question":{"question":{}},"gold":0})", "choices"},
      {"a stem that is a number", R"({"question":{"stem":1,"choices":["a","b"]},"gold":0})", "stem"},
      {"endings that are a text", R"({"ctx":"c","endings":"ab","label":0})", "no list"},
      {"a context that is a number", R"({"ctx":1,"endings":["a","b"],"label":0})", "ctx"},
      {"a goal that is a list", R"({"goal":[],"sol1":"a","sol2":"b","label":0})", "goal"},
      {"a sentence without a blank", R"({"sentence":"s","option1":"a","option2":"b","answer":"1"})", "blank"},
      {"nothing behind the blank", R"({"sentence":"s _.","option1":"a","option2":"b","answer":"1"})",
       "behind the blank"},
      {"a passage that is a number", R"({"passage":1,"question":"q","answer":true})", "passage"},
      {"a context without choices", R"({"context":"c"})", "shape"},
      {"a line of no shape", R"({"a":1})", "shape"},
      {"only blanks", "\n \n", "no task"},
  };
}

TEST(HostileData, Texts) {
  const TempDir dir;
  const auto read = [&](const std::string& bytes) { read_documents_bytes(bytes, dir.path()); };
  expect_refused(as_lines(hostile_json(R"({"text":"a"})")), read);
  expect_refused(texts(), read);
}

TEST(HostileData, Tasks) {
  const TempDir dir;
  const auto read = [&](const std::string& bytes) { read_tasks_bytes(bytes, dir.path()); };
  expect_refused(as_lines(hostile_json(R"({"question":"q","choices":["a","b"],"gold":0})")), read);
  expect_refused(tasks(), read);
}

TEST(HostileData, IsNoRegularFile) {
  const TempDir dir;
  const auto pipe = dir / "a.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refused({{"a FIFO", pipe.string(), "not a regular file"},
                  {"a device", "/dev/zero", "not a regular file"},
                  {"a folder", "/", "not a regular file"}},
                 [](const std::string& path) { read_text(path); });
  expect_refused({{"a FIFO", pipe.string(), "not a regular file"},
                  {"a device", "/dev/zero", "not a regular file"},
                  {"a folder", "/"}},
                 [](const std::string& path) { container_safetensors.open(path); });
}

}  // namespace
}  // namespace fewbit::test
