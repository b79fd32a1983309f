// Texts that stay on disk: where they can begin, what tells them apart, and the draw of windows by offsets.
#include "src/text/files/text_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "src/core/strings.h"
#include "src/text/files/offset_draw.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

class TextFileTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) {
    std::ofstream(dir / name, std::ios::binary) << content;
    return dir / name;
  }
  TempDir dir;
};

TEST_F(TextFileTest, ReadsAnyPart) {
  const TextFile f(write("a.txt", "0123456789"));
  EXPECT_EQ(f.size(), 10);
  EXPECT_EQ(f.read(0, 10), "0123456789");
  EXPECT_EQ(f.read(7, 100), "789");
  EXPECT_EQ(f.read(10, 1), "");
  EXPECT_EQ(f.read(99, 1), "");
}

TEST_F(TextFileTest, AFileThatBecameShorterIsNamed) {
  const TextFile f(write("a.txt", "0123456789"));
  std::filesystem::resize_file(dir / "a.txt", 4);
  EXPECT_NE(message_of([&] { f.read(0, 10); }, ErrorKind::io).find("byte 4"), std::string::npos);
}

TEST_F(TextFileTest, StartsAtADocumentElseALineElseACharacter) {
  //                                   0         1          2
  //                                   0123456789012 34 5678 9012345
  const TextFile f(write("a.txt", "one line\nthe other\n\nnext document\nits line\r\n\r\n\nthird"));
  EXPECT_EQ(f.start_from(0, 8), 0);
  EXPECT_EQ(f.start_from(-5, 8), 0);
  EXPECT_EQ(f.read(f.start_from(1, 40), 4), "next") << "a document is preferred to the line before it";
  EXPECT_EQ(f.read(f.start_from(1, 10), 4), "the ") << "no document within reach";
  EXPECT_EQ(f.read(f.start_from(9, 4), 4), "the ") << "a start itself";
  EXPECT_EQ(f.read(f.start_from(20, 4), 4), "next") << "a start itself";
  EXPECT_EQ(f.read(f.start_from(21, 40), 5), "third") << "several blank lines, ends of lines of two bytes";
  EXPECT_EQ(f.start_from(2, 3), 2) << "no line within reach";
  EXPECT_EQ(f.start_from(1000, 3), f.size());
  const TextFile g(write("b.txt", "\xc3\xa4\xc3\xb6\xe2\x82\xac."));
  EXPECT_EQ(g.start_from(1, 6), 2);
  EXPECT_EQ(g.start_from(5, 6), 7) << "within a character";
}

TEST_F(TextFileTest, TheDigestKnowsSizeAndSampledPlaces) {
  std::string text(1 << 20, 'x');
  const std::string digest = TextFile(write("a.txt", text)).digest();
  EXPECT_EQ(TextFile(write("b.txt", text)).digest(), digest) << "the name does not matter";
  EXPECT_NE(TextFile(write("c.txt", text + "x")).digest(), digest);
  text.back() = 'y';
  EXPECT_NE(TextFile(write("d.txt", text)).digest(), digest) << "the last byte is sampled";
  EXPECT_NE(TextFile(write("e.txt", "short")).digest(), TextFile(write("f.txt", "shirt")).digest());
  const TextFile f(dir / "a.txt");
  EXPECT_EQ(path_described(described(f, "in parts")), (dir / "a.txt").string());
  EXPECT_EQ(path_described("some (odd) name.txt"), "some (odd) name.txt");
}

// Documents of 3 lines of 10 to 40 characters, each line with a number of its own.
std::string many_documents(int n) {
  std::string s;
  for (int i = 0; i < n; ++i) {
    for (int line = 0; line < 3; ++line)
      s += "line " + std::to_string(100000 + 3 * i + line) + std::string(static_cast<size_t>(7 * i % 30), '.') + "\n";
    s += "\n";
  }
  return s;
}

using Row = std::vector<int32_t>;
std::vector<Row> rows(const Windows& w) {
  std::vector<Row> out;
  for (int64_t i = 0; i < w.count; ++i)
    out.emplace_back(w.ids.begin() + i * w.length, w.ids.begin() + (i + 1) * w.length);
  return out;
}

Windows drawn(const std::filesystem::path& path, int64_t samples, int64_t length, uint64_t seed = 0,
              std::string* shortfall = nullptr) {
  return draw_calibration(open_json(byte_tokenizer()), {calibration_text(path, 0)}, samples, length, seed, shortfall);
}

TEST_F(TextFileTest, ALargeTextIsDrawnByOffsets) {
  const std::string text = many_documents(400);
  const auto path = write("large.txt", text);
  std::string shortfall = "not touched";
  const Windows w = drawn(path, 40, 96, 3, &shortfall);
  EXPECT_EQ(shortfall, "");
  ASSERT_EQ(w.count, 40);
  ASSERT_EQ(w.ids.size(), 40u * 96);
  std::set<size_t> places;
  for (const Row& row : rows(w)) {
    EXPECT_EQ(row[0], 256) << "every window is a text of its own";
    const std::string spelled(row.begin() + 1, row.end());
    const size_t at = text.find(spelled);
    ASSERT_NE(at, std::string::npos) << spelled;
    EXPECT_TRUE(at == 0 || text.substr(at - 2, 2) == "\n\n") << "begins with a document";
    places.insert(at / (8 * 96));
  }
  EXPECT_EQ(places.size(), 40u) << "no place twice";
  EXPECT_NE(w.source.find(TextFile(path).digest()), std::string::npos) << w.source;
  EXPECT_NE(w.source.find("drawn by offsets"), std::string::npos) << w.source;
}

TEST_F(TextFileTest, SeedAndTextDecideTheDraw) {
  const auto path = write("large.txt", many_documents(400));
  const Windows a = drawn(path, 30, 64);
  EXPECT_EQ(drawn(path, 30, 64).ids, a.ids);
  EXPECT_EQ(drawn(write("other name.txt", many_documents(400)), 30, 64).ids, a.ids);
  EXPECT_NE(drawn(path, 30, 64, 1).ids, a.ids);
  const std::vector<Row> few = rows(drawn(path, 10, 64)), many = rows(a);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin())) << "fewer are the first of many";
}

TEST_F(TextFileTest, TheEndsOfALargeTextGiveWhatTheyHold) {
  // 10 cells of 8 x 40 bytes; from the last one's start 320 tokens are left, from the others more.
  const auto path = write("large.txt", std::string(3200, 'a'));
  std::string shortfall;
  const Windows w = drawn(path, 16, 40, 0, &shortfall);
  EXPECT_EQ(w.count, 10);
  EXPECT_NE(shortfall.find("holds 10 of 16"), std::string::npos) << shortfall;
  // Nothing but blank lines up to the end: the file's last cell begins where too little is left.
  const auto blank = write("blank.txt", std::string(320, 'a') + "\n\n" + std::string(318, 'b') + "\n");
  EXPECT_EQ(drawn(blank, 2, 40).count, 2);
  const auto tiny = write("tiny.txt", "too short");
  EXPECT_NE(message_of([&] { drawn(tiny, 2, 40); }, ErrorKind::usage).find("tiny.txt"), std::string::npos);
}

TEST_F(TextFileTest, SmallTextsBesideALargeOneAreDrawnAsEver) {
  const Tokenizer t = open_json(byte_tokenizer());
  const auto large = write("large.txt", many_documents(400));
  const CalibText small{"small.txt", many_documents(60)};
  const Windows alone = draw_calibration(t, {small}, 8, 64, 0, nullptr);
  const Windows both = draw_calibration(t, {calibration_text(large, 0), small}, 16, 64, 0, nullptr);
  ASSERT_EQ(both.count, 16);
  EXPECT_TRUE(std::equal(alone.ids.begin(), alone.ids.end(), both.ids.begin() + 8 * 64));
  EXPECT_TRUE(ends_with(both.source, " (512 tokens)+small.txt (512 tokens)")) << both.source;
  EXPECT_EQ(path_described(both.source.substr(0, both.source.find("+small"))), large.string());
  EXPECT_EQ(calibration_text(large, 1 << 20).file, "") << "what is small enough is read whole";
}

}  // namespace
}  // namespace fewbit::test
