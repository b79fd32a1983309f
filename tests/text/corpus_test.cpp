// Corpus: windows, the calibration draw, the built-in texts. The tokenizer is the byte one, so that windows
// can be read: a token is a byte, 256 stands in front of a text.
#include "src/text/corpus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "src/core/strings.h"
#include "src/text/builtin_texts.h"
#include "src/text/calibration/draw.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

using Ids = std::vector<int32_t>;

// A text of n bytes in which every window of 8 differs from every other.
// Texts of different first digits share no window.
std::string counting_text(int64_t n, int first_digit = 1) {
  std::string s;
  for (int i = 0; static_cast<int64_t>(s.size()) < n; ++i) s += std::to_string(1000000 * first_digit + i) + " ";
  s.resize(static_cast<size_t>(n));
  return s;
}

std::vector<Ids> rows(const Windows& w) {
  std::vector<Ids> out;
  for (int64_t i = 0; i < w.count; ++i)
    out.emplace_back(w.ids.begin() + i * w.length, w.ids.begin() + (i + 1) * w.length);
  return out;
}

// How many rows of `w` are windows of `text`.
int64_t rows_of_text(const Tokenizer& t, const Windows& w, const std::string& text) {
  const auto all = rows(cut_windows(t, text, w.length, 0, "text"));
  const auto drawn = rows(w);
  return std::count_if(drawn.begin(), drawn.end(),
                       [&](const Ids& r) { return std::find(all.begin(), all.end(), r) != all.end(); });
}

TEST(CutWindows, FromTheStartWithBosAndWithoutTheTail) {
  const Tokenizer t = open_json(byte_tokenizer());
  const Windows w = cut_windows(t, "abcdefghij", 4, 0, "some.txt");
  EXPECT_EQ(w.count, 2);
  EXPECT_EQ(w.length, 4);
  EXPECT_EQ(w.source, "some.txt");
  EXPECT_EQ(w.ids, (Ids{256, 'a', 'b', 'c', 'd', 'e', 'f', 'g'}));
  EXPECT_EQ(cut_windows(t, "abcdefghij", 4, 1, "").ids, (Ids{256, 'a', 'b', 'c'}));
}

TEST(CutWindows, WhatATemplatePutsBehindIsLeftOut) {
  const Windows w = cut_windows(open_json(byte_tokenizer(true)), "abc", 4, 0, "");
  EXPECT_EQ(w.ids, (Ids{256, 'a', 'b', 'c'}));
}

TEST(CutWindows, TooShortNamesTheNumbers) {
  const Tokenizer t = open_json(byte_tokenizer());
  std::string what;
  EXPECT_EQ(error_of([&] { cut_windows(t, "abc", 5, 0, "some.txt"); }, &what), ErrorKind::usage);
  for (const char* part : {"some.txt", "4 tokens", "5 tokens"}) EXPECT_NE(what.find(part), std::string::npos) << what;
  EXPECT_EQ(error_of([&] { cut_windows(t, "abc", 0, 0, "some.txt"); }, &what), ErrorKind::usage);
}

TEST(WindowsFromIds, KeepsThemAndChecksThem) {
  const Windows w = windows_from_ids({1, 2, 3, 4, 5, 6}, 2, 3, "ids");
  EXPECT_EQ(w.ids, (Ids{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(w.count, 2);
  EXPECT_EQ(w.length, 3);
  std::string what;
  EXPECT_EQ(error_of([] { windows_from_ids({1, 2, 3}, 2, 2, "ids"); }, &what), ErrorKind::checkpoint);
  EXPECT_EQ(error_of([] { windows_from_ids({1, -2}, 1, 2, "ids"); }, &what), ErrorKind::checkpoint);
  EXPECT_NE(what.find("-2"), std::string::npos) << what;
}

TEST(DrawCalibration, SameSeedSameWindows) {
  const Tokenizer t = open_json(byte_tokenizer());
  const std::vector<CalibText> texts = {{"a.txt", counting_text(1000)}};
  std::string shortfall = "untouched";
  const Windows a = draw_calibration(t, texts, 20, 8, 0, &shortfall);
  EXPECT_EQ(shortfall, "");
  EXPECT_EQ(a.count, 20);
  EXPECT_EQ(a.ids.size(), 160u);
  EXPECT_EQ(a.source, "a.txt");
  EXPECT_EQ(draw_calibration(t, texts, 20, 8, 0, nullptr).ids, a.ids);
  EXPECT_NE(draw_calibration(t, texts, 20, 8, 1, nullptr).ids, a.ids);
  // The name is not part of the key, the content is.
  EXPECT_EQ(draw_calibration(t, {{"b.txt", texts[0].text}}, 20, 8, 0, nullptr).ids, a.ids);
}

TEST(DrawCalibration, WithoutReplacementFromTheWholeText) {
  const Tokenizer t = open_json(byte_tokenizer());
  const std::string text = counting_text(1000);
  const Windows w = draw_calibration(t, {{"a.txt", text}}, 125, 8, 0, nullptr);  // 1001 tokens hold 125 windows
  const auto drawn = rows(w);
  auto all = rows(cut_windows(t, text, 8, 0, ""));
  EXPECT_NE(drawn, all);  // in the order of the draw
  EXPECT_EQ(std::set<Ids>(drawn.begin(), drawn.end()).size(), 125u);
  EXPECT_EQ(std::set<Ids>(drawn.begin(), drawn.end()), std::set<Ids>(all.begin(), all.end()));
}

TEST(DrawCalibration, MoreSamplesKeepTheFirst) {
  const Tokenizer t = open_json(byte_tokenizer());
  const std::vector<CalibText> texts = {{"a.txt", counting_text(1000)}};
  const auto few = rows(draw_calibration(t, texts, 10, 8, 5, nullptr));
  auto many = rows(draw_calibration(t, texts, 30, 8, 5, nullptr));
  many.resize(10);
  EXPECT_EQ(few, many);
}

TEST(DrawCalibration, SplitsEvenlyAndEarlierFilesTakeTheRest) {
  const Tokenizer t = open_json(byte_tokenizer());
  const std::vector<CalibText> texts = {
      {"a", counting_text(800)}, {"b", counting_text(800, 2)}, {"c", counting_text(800, 3)}};
  std::string shortfall;
  const Windows w = draw_calibration(t, texts, 20, 8, 0, &shortfall);
  EXPECT_EQ(shortfall, "");
  EXPECT_EQ(w.source, "a (56 tokens)+b (56 tokens)+c (48 tokens)");
  const std::vector<int64_t> expected = {7, 7, 6};
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(rows_of_text(t, w, texts[i].text), expected[i]) << i;
}

TEST(DrawCalibration, WeightsShareTheSamples) {
  const Tokenizer t = open_json(byte_tokenizer());
  const std::vector<CalibPart> texts = {{.text = {"a", counting_text(800)}, .weight = 0.7},
                                        {.text = {"b", counting_text(800, 2)}, .weight = 0.2},
                                        {.text = {"c", counting_text(800, 3)}, .weight = 0.1}};
  const Windows w = draw_parts(t, texts, 20, 8, 0, nullptr);
  const std::vector<int64_t> expected = {14, 4, 2};
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(rows_of_text(t, w, texts[i].text.text), expected[i]) << i;
}

TEST(DrawCalibration, DocumentsAreTokenizedByThemselves) {
  const Tokenizer t = open_json(byte_tokenizer());
  CalibPart chats{.text = {"chats", ""}, .documents = {"abc", "defg"}};
  EXPECT_EQ(draw_parts(t, {chats}, 1, 9, 0, nullptr).ids, (Ids{256, 'a', 'b', 'c', 256, 'd', 'e', 'f', 'g'}));
  chats.chat = true;  // whose template has put BOS there already
  EXPECT_EQ(draw_parts(t, {chats}, 1, 7, 0, nullptr).ids, (Ids{'a', 'b', 'c', 'd', 'e', 'f', 'g'}));
}

TEST(DrawCalibration, OthersMakeUpForAShortFile) {
  const Tokenizer t = open_json(byte_tokenizer());
  const std::vector<CalibText> texts = {
      {"a", counting_text(800)}, {"b", counting_text(23, 2)}, {"c", counting_text(800, 3)}};
  std::string shortfall;
  const Windows w = draw_calibration(t, texts, 30, 8, 0, &shortfall);  // b holds 3 of its 10
  EXPECT_EQ(w.count, 30);
  const std::vector<int64_t> expected = {14, 3, 13};
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(rows_of_text(t, w, texts[i].text), expected[i]) << i;
  EXPECT_EQ(shortfall, "windows of 8 tokens: b holds 3 of 10; the other files make up for it, 30 in all");
}

TEST(DrawCalibration, ShortfallWhenNobodyHasMore) {
  const Tokenizer t = open_json(byte_tokenizer());
  std::string shortfall;
  const Windows w = draw_calibration(t, {{"a", counting_text(39)}, {"b", "tiny"}}, 12, 8, 0,
                                     &shortfall);  // 5 windows and none
  EXPECT_EQ(w.count, 5);
  EXPECT_EQ(shortfall, "warning: windows of 8 tokens: a holds 5 of 6, b holds 0 of 6; 5 in all instead of 12");
}

TEST(DrawCalibration, NoWindowAnywhereIsAnError) {
  const Tokenizer t = open_json(byte_tokenizer());
  std::string what;
  EXPECT_EQ(error_of(
                [&] {
                  draw_calibration(t, {{"a.txt", "abc"}, {"b.txt", "abcde"}}, 4, 8, 0, nullptr);
                },
                &what),
            ErrorKind::usage);
  for (const char* part : {"a.txt", "4 tokens", "b.txt", "6 tokens", "8 tokens"})
    EXPECT_NE(what.find(part), std::string::npos) << what;
  EXPECT_EQ(error_of([&] { draw_calibration(t, {}, 4, 8, 0, nullptr); }, &what), ErrorKind::usage);
  EXPECT_EQ(error_of([&] { draw_calibration(t, {{"a", "abcdefghij"}}, 0, 8, 0, nullptr); }, &what), ErrorKind::usage);
}

TEST(ReadText, Errors) {
  const TempDir dir;
  std::string what;
  EXPECT_EQ(error_of([&] { read_text(dir / "none.txt"); }, &what), ErrorKind::io);
  EXPECT_NE(what.find("none.txt"), std::string::npos) << what;
  std::ofstream(dir / "empty.txt") << "";
  EXPECT_EQ(error_of([&] { read_text(dir / "empty.txt"); }, &what), ErrorKind::checkpoint);
  std::ofstream(dir / "text.txt") << "a\nb";
  EXPECT_EQ(read_text(dir / "text.txt"), "a\nb");
}

TEST(Builtin, TextsAreThereInNameOrderAndDisjoint) {
  EXPECT_TRUE(std::filesystem::exists(builtin_data_dir() / "MANIFEST.json"));
  EXPECT_TRUE(std::filesystem::exists(builtin_model_dir() / "tokenizer.json"));
  const auto texts = builtin_calibration();
  ASSERT_GE(texts.size(), 2u);
  const std::string evaluation = builtin_evaluation() + builtin_evaluation("builtin:multilingual");
  EXPECT_EQ(builtin_evaluation("builtin:english"), builtin_evaluation());
  std::string what;
  EXPECT_EQ(error_of([] { builtin_evaluation("builtin:englisch"); }, &what), ErrorKind::usage);
  EXPECT_NE(what.find("builtin:english or builtin:multilingual"), std::string::npos) << what;
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_TRUE(starts_with(texts[i].name, "builtin/")) << texts[i].name;
    if (i > 0) {
      EXPECT_LT(texts[i - 1].name, texts[i].name);
    }
    for (const std::string& line : split(texts[i].text, '\n')) {
      EXPECT_TRUE(line.size() < 60 || evaluation.find(line) == std::string::npos) << line;
    }
  }
}

// What `--calib builtin` is drawn from: 128 windows of 2048 tokens, and a tokenizer of real size makes no more than a
// token of four bytes of such a mixture.
TEST(Builtin, CalibrationIsEnoughForTheDefault) {
  size_t bytes = 0;
  for (const CalibText& t : builtin_calibration()) bytes += t.text.size();
  EXPECT_GT(bytes, 4 * 300'000u);
}

TEST(Builtin, CalibrationIsDrawnWithTheDemoModelsTokenizer) {
  const Tokenizer t = Tokenizer::open(builtin_model_dir());
  const Windows w = draw_calibration(t, builtin_calibration(), 32, 128, 0, nullptr);
  EXPECT_EQ(w.count, 32);
  EXPECT_EQ(w.source, "builtin");
  EXPECT_LT(*std::max_element(w.ids.begin(), w.ids.end()), t.vocab_size());
}

}  // namespace
}  // namespace fewbit::test
