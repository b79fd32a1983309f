// Documents: text files, JSONL of texts and of chats, the rows of the gptq protocol.
#include "src/text/documents.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

class DocumentsTest : public ::testing::Test {
 protected:
  Documents read(const std::string& name, const std::string& content) {
    std::ofstream(dir / name, std::ios::binary) << content;
    return read_documents(dir / name, [&]() -> const ChatTemplate& {
      if (!chat) chat.emplace(ChatTemplate::open(dir.path(), "chatml"));
      return *chat;
    });
  }
  std::string refusal(const std::string& content) {
    std::string what;
    EXPECT_EQ(error_of([&] { read("x.jsonl", content); }, &what), ErrorKind::checkpoint) << what;
    return what;
  }
  TempDir dir;
  std::optional<ChatTemplate> chat;
};

TEST_F(DocumentsTest, ATextIsOneDocument) {
  const Documents d = read("a.txt", "one\n\n two\nend");
  EXPECT_EQ(d.texts, std::vector<std::string>{"one\n\n two\nend"});
  EXPECT_EQ(joined_rows(d), "one\n\n\n\n\n two\n\n\nend")
      << "rows \"one\\n\", \"\", \" two\\n\", \"end\" joined by two newlines";
  EXPECT_EQ(joined_rows(read("b.txt", " \n x\n")), "\n\n x\n") << "a blank line is an empty row";
}

TEST_F(DocumentsTest, LinesOfTextAndOfChats) {
  const Documents d = read("a.jsonl", "{\"text\": \"ab\"}\n\n{\"text\": \"c\"}\n");
  EXPECT_EQ(d.texts, (std::vector<std::string>{"ab", "c"}));
  EXPECT_EQ(joined_rows(d), "ab\n\nc");
  EXPECT_EQ(tokenize(open_json(byte_tokenizer()), d), (std::vector<int32_t>{256, 'a', 'b', 256, 'c'}));
  const Documents chats =
      read("c.jsonl", R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]})");
  EXPECT_EQ(chats.texts.at(0), "<|im_start|>user\nx<|im_end|>\n");
  EXPECT_EQ(tokenize(open_json(byte_tokenizer()), chats).at(0), '<') << "a template writes its own BOS";
}

TEST_F(DocumentsTest, BrokenLinesAreNamed) {
  EXPECT_NE(refusal("{\"text\": \"a\"}\n[1]\n").find("line 2"), std::string::npos);
  EXPECT_NE(refusal("{\"body\": 3}").find("neither `text` nor `messages`"), std::string::npos);
  EXPECT_NE(refusal("{\"text\": \"a\"}\n{\"messages\": []}").find("mixed"), std::string::npos);
  EXPECT_NE(refusal("{\"messages\": [{\"content\": \"a\"}]}").find("role"), std::string::npos);
  EXPECT_NE(refusal("\n \n").find("no document"), std::string::npos);
}

// What read_in_parts gives, one after the other.
Documents parts_of(const std::filesystem::path& path, int* count = nullptr) {
  Documents all;
  read_in_parts(
      TextFile(path), [&]() -> const ChatTemplate& { throw Error(ErrorKind::checkpoint, "no chat template here"); },
      [&](const Documents& part) {
        all.texts.insert(all.texts.end(), part.texts.begin(), part.texts.end());
        all.lines = part.lines;
        if (count) ++*count;
        return true;
      });
  return all;
}

TEST_F(DocumentsTest, PartsOfATextAreTheTextAndBeginWithLines) {
  std::string text;
  for (int i = 0; text.size() < (5u << 20); ++i) text += "line " + std::to_string(i) + (i % 50 == 0 ? "\n\n" : "\n");
  std::ofstream(dir / "a.txt", std::ios::binary) << text;
  int count = 0;
  const Documents d = parts_of(dir / "a.txt", &count);
  EXPECT_GE(count, 2);
  EXPECT_FALSE(d.lines);
  std::string joined;
  for (const std::string& piece : d.texts) {
    EXPECT_TRUE(joined.empty() || joined.substr(joined.size() - 2) == "\n\n") << "a document is near everywhere";
    EXPECT_LT(piece.size(), 2u << 20);
    joined += piece;
  }
  EXPECT_TRUE(joined == text);
}

TEST_F(DocumentsTest, PartsOfLinesAreTheDocuments) {
  std::string content;
  for (int i = 0; content.size() < (3u << 20); ++i)
    content += "{\"text\": \"" + std::to_string(i) + std::string(static_cast<size_t>(i % 300), 'x') + "\"}\n" +
               (i % 7 == 0 ? " \n" : "");
  content += "{\"text\": \"" + std::string(2 << 20, 'y') + "\"}\n{\"text\": \"end\"}";  // a line over two parts
  int count = 0;
  const std::vector<std::string> whole = read("a.jsonl", content).texts;
  const Documents d = parts_of(dir / "a.jsonl", &count);
  EXPECT_GE(count, 3);
  EXPECT_TRUE(d.lines);
  EXPECT_TRUE(d.texts == whole);
  std::ofstream(dir / "bad.jsonl", std::ios::binary) << content << "\n[3]";
  const auto lines = std::count(content.begin(), content.end(), '\n') + 2;
  EXPECT_NE(message_of([&] { parts_of(dir / "bad.jsonl"); }, ErrorKind::checkpoint)
                .find("line " + std::to_string(lines) + ":"),
            std::string::npos);
  std::ofstream(dir / "none.jsonl") << "\n \n";
  EXPECT_NE(message_of([&] { parts_of(dir / "none.jsonl"); }, ErrorKind::checkpoint).find("no document"),
            std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
