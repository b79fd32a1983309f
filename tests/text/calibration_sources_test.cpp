// What --calib names, as texts: weights, folders and patterns, packed files, chats and other records.
#include "src/text/calibration/sources.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/support.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

void write_gz(const fs::path& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
}

std::string zstd_of(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

CalibReading plain() {
  return {"", []() -> const ChatTemplate& { throw std::runtime_error("no template is needed here"); }};
}

constexpr int64_t kRoom = int64_t{1} << 30;

TEST(CalibSources, AWeightStandsBehindTheLastColon) {
  const TempDir dir;
  write(dir / "a.txt:3", "a file whose name ends like a weight");
  EXPECT_EQ(calib_source("a.jsonl:0.7").name, "a.jsonl");
  EXPECT_EQ(calib_source("a.jsonl:0.7").weight, 0.7);
  EXPECT_EQ(calib_source("self").weight, 1);
  EXPECT_EQ(calib_source((dir / "a.txt:3").string()).name, (dir / "a.txt:3").string());
  EXPECT_EQ(calib_source("hf-cache:org/name").name, "hf-cache:org/name") << "a colon that belongs to the name";
  std::string what;
  EXPECT_EQ(error_of([] { calib_source("a.txt:0"); }, &what), ErrorKind::usage);
  EXPECT_NE(what.find("a.txt:0.7"), std::string::npos) << what;
}

TEST(CalibSources, FoldersAndPatternsInNameOrder) {
  const TempDir dir;
  fs::create_directory(dir / "in");
  fs::create_directory(dir / "empty");
  for (const char* name : {"b.txt", "a.md", "in/c.jsonl.gz", "picture.png"}) write(dir / name, "x");
  EXPECT_EQ(calib_files(dir.path().string()),
            (std::vector<fs::path>{dir / "a.md", dir / "b.txt", dir / "in/c.jsonl.gz"}));
  EXPECT_EQ(calib_files((dir / "?.txt").string()), (std::vector<fs::path>{dir / "b.txt"}));
  std::string what;
  EXPECT_EQ(error_of([&] { calib_files((dir / "*.csv").string()); }, &what), ErrorKind::usage);
  EXPECT_EQ(error_of([&] { calib_files((dir / "empty").string()); }, &what), ErrorKind::usage);
  EXPECT_NE(what.find(".jsonl"), std::string::npos) << what;
  write(dir / "empty/rows.parquet", "PAR1");
  EXPECT_EQ(error_of([&] { calib_files((dir / "empty").string()); }, &what), ErrorKind::usage);
  for (const char* part : {"duckdb", "rows.parquet", "--calib rows.jsonl"})
    EXPECT_NE(what.find(part), std::string::npos) << what;
}

TEST(CalibSources, PackedFilesAreTheirTexts) {
  const TempDir dir;
  std::string text;
  for (int64_t i = 0; text.size() < (size_t{3} << 20); ++i) text += "line " + std::to_string(i * i) + "\n";
  write_gz(dir / "t.txt.gz", text);
  write(dir / "t.txt.zst", zstd_of(text.substr(0, 1000)) + zstd_of(text.substr(1000)));  // two frames
  for (const char* name : {"t.txt.gz", "t.txt.zst"}) {
    EXPECT_EQ(calib_text(dir / name, kRoom, plain()).text.text, text) << name;
    const CalibPart part = calib_text(dir / name, 100, plain());
    EXPECT_EQ(part.text.text, text.substr(0, text.rfind('\n', 99) + 1)) << name << ": whole lines of its start";
    EXPECT_NE(part.text.name.find("its first"), std::string::npos) << part.text.name;
    const std::string bytes = bytes_of_file(dir / name);
    write(dir / name, bytes.substr(0, bytes.size() / 2));
    std::string what;
    EXPECT_EQ(error_of([&] { calib_text(dir / name, kRoom, plain()); }, &what), ErrorKind::checkpoint) << name;
    EXPECT_NE(what.find(name), std::string::npos) << what;
  }
  write(dir / "no.gz", "not packed at all");
  std::string what;
  EXPECT_EQ(error_of([&] { calib_text(dir / "no.gz", kRoom, plain()); }, &what), ErrorKind::checkpoint);
}

TEST(CalibSources, RecordsAreDocuments) {
  const TempDir dir;
  write_gz(dir / "r.jsonl.gz",
           "{\"text\": \"one\"}\n\n{\"prompt\": \"two\", \"completion\": \"three\"}\n"
           "{\"instruction\": \"four\", \"output\": \"five\", \"body\": \"six\"}\n");
  const CalibPart part = calib_text(dir / "r.jsonl.gz", kRoom, plain());
  EXPECT_EQ(part.documents, (std::vector<std::string>{"one", "two\nthree", "four\nfive"}));
  EXPECT_FALSE(part.chat);
  write(dir / "f.jsonl", "{\"body\": \"six\"}\n");
  CalibReading by_field = plain();
  by_field.field = "body";
  EXPECT_EQ(calib_text(dir / "f.jsonl", kRoom, by_field).documents, (std::vector<std::string>{"six"}));
  std::string what;
  EXPECT_EQ(error_of([&] { calib_text(dir / "f.jsonl", kRoom, plain()); }, &what), ErrorKind::checkpoint);
  for (const char* word : {"f.jsonl: line 1", "--calib-field"}) EXPECT_NE(what.find(word), std::string::npos) << what;
  EXPECT_EQ(error_of([&] { calib_text(dir / "r.jsonl.gz", kRoom, by_field); }, &what), ErrorKind::checkpoint);
  EXPECT_NE(what.find("line 1"), std::string::npos) << what;
}

TEST(CalibSources, ChatsWithToolsAndReasoningGoThroughTheTemplate) {
  const TempDir dir;
  write(dir / "chat_template.jinja",
        "{% for t in tools %}<tool>{{ t.name }}</tool>{% endfor %}{% for m in messages %}<{{ m.role }}>"
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}");
  const ChatTemplate chat = ChatTemplate::open(dir.path(), (dir / "chat_template.jinja").string());
  write(dir / "c.jsonl",
        "{\"tools\": [{\"name\": \"clock\"}], \"messages\": [{\"role\": \"user\", \"content\": \"When?\"}, "
        "{\"role\": \"assistant\", \"reasoning_content\": \"Look.\", \"content\": \"Now.\"}]}\n");
  const CalibPart part = calib_text(dir / "c.jsonl", kRoom, {"", [&]() -> const ChatTemplate& { return chat; }});
  EXPECT_TRUE(part.chat);
  EXPECT_EQ(part.documents,
            (std::vector<std::string>{"<tool>clock</tool><user>When?<assistant><think>Look.</think>Now."}));
  write(dir / "mixed.jsonl", bytes_of_file(dir / "c.jsonl") + "{\"text\": \"one\"}\n");
  std::string what;
  const CalibReading through{"", [&]() -> const ChatTemplate& { return chat; }};
  EXPECT_EQ(error_of([&] { calib_text(dir / "mixed.jsonl", kRoom, through); }, &what), ErrorKind::checkpoint);
  EXPECT_NE(what.find("line 2"), std::string::npos) << what;
}

}  // namespace
}  // namespace fewbit::test
