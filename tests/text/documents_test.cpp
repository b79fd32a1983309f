// Documents: text files, JSONL of texts and of chats, the rows of the gptq protocol.
#include "src/text/documents.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace fewbit::test
