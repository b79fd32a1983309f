// Protocols on the byte tokenizer (a token is a byte, 256 stands in front), and the summaries by hand.
#include "src/eval/protocol.h"

#include <cmath>
#include <set>

#include "src/eval/perplexity.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

using Ids = std::vector<int32_t>;

ScoredWindows windows(const ProtocolOptions& o, const std::string& text, int64_t max_positions = 64) {
  Documents d;
  d.texts = {text};
  return make_windows(o, open_json(byte_tokenizer()), d, "some.txt", max_positions);
}

TEST(Protocols, Plain) {
  const ScoredWindows w = windows({.context = 4}, "abcdefg");
  EXPECT_EQ(w.windows.ids, (Ids{256, 'a', 'b', 'c', 'd', 'e', 'f', 'g'}));
  EXPECT_EQ(w.scored(), 6);
  EXPECT_NEAR(w.bytes_per_token, 7.0 / 8, 1e-12);
}

TEST(Protocols, GptqJoinsRows) {
  const ScoredWindows w = windows({.protocol = Protocol::gptq, .context = 3}, "a\nb\n");
  EXPECT_EQ(w.windows.ids, (Ids{256, 'a', '\n', '\n', '\n', 'b'}));
}

TEST(Protocols, LlamaCppScoresTheSecondHalfBehindABos) {
  const ScoredWindows w = windows({.protocol = Protocol::llama_cpp, .context = 6}, "abcdefghijklm");
  EXPECT_EQ(w.windows.ids, (Ids{256, 'a', 'b', 'c', 'd', 'e', 256, 'g', 'h', 'i', 'j', 'k'}));
  EXPECT_EQ(w.first_of(0), 4);
  EXPECT_EQ(w.scored(), 4) << "two of six in each window";
  EXPECT_THROW(windows({.protocol = Protocol::llama_cpp, .context = 6}, "abcdefg"), Error)
      << "one window is too little";
}

TEST(Protocols, SlidingScoresEveryTokenOnce) {
  const std::string text = "abcdefghijklm";
  const ScoredWindows w = windows({.protocol = Protocol::sliding, .context = 6, .stride = 2}, text);
  std::multiset<int32_t> scored;
  for (int64_t i = 0; i < w.windows.count; ++i)
    for (int64_t p = w.first_of(i); p < 6; ++p) scored.insert(w.windows.ids[static_cast<size_t>(i * 6 + p)]);
  EXPECT_EQ(scored, std::multiset<int32_t>(text.begin(), text.end()));
  EXPECT_EQ(w.windows.count, 5);
  EXPECT_EQ(w.run_end(0, 9), 1) << "the first window scores more";
  EXPECT_EQ(w.run_end(1, 2), 3);
  EXPECT_THROW(windows({.protocol = Protocol::sliding, .context = 6, .stride = 6}, text), Error);
}

// The same text whole and by way of a file that is read in parts; with the byte tokenizer their ids are the same.
TEST(Protocols, AFileInPartsGivesTheWholeTextsWindows) {
  const TempDir dir;
  std::string text, lines;
  for (int i = 0; text.size() < (3u << 19); ++i) {
    text += "line " + std::to_string(i) + (i % 50 == 0 ? "\n\n" : "\n");
    lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  }
  std::ofstream(dir / "a.txt", std::ios::binary) << text;
  std::ofstream(dir / "a.jsonl", std::ios::binary) << lines;
  const auto no_chat = []() -> const ChatTemplate& { throw Error(ErrorKind::checkpoint, "no template"); };
  const Tokenizer t = open_json(byte_tokenizer());
  for (const char* name : {"a.txt", "a.jsonl"})
    for (const Protocol p : {Protocol::plain, Protocol::gptq, Protocol::llama_cpp, Protocol::sliding})
      for (const int64_t max_windows : {0, 1, 3}) {
        const ProtocolOptions o{.protocol = p, .context = 512, .max_windows = max_windows};
        const ScoredWindows whole = make_windows(o, t, read_documents(dir / name, no_chat), "a", 512);
        const ScoredWindows parts = make_windows(o, t, TextFile(dir / name), no_chat, 512);
        EXPECT_TRUE(parts.windows.ids == whole.windows.ids) << name << " " << name_of(p) << " " << max_windows;
        EXPECT_EQ(parts.first, whole.first);
        EXPECT_NEAR(parts.bytes_per_token, whole.bytes_per_token, 1e-9);
        EXPECT_NEAR(parts.words_per_token, whole.words_per_token, 1e-3 * whole.words_per_token);
        EXPECT_NE(parts.windows.source.find("in parts"), std::string::npos);
      }
}

TEST(Protocols, RefusesWhatDoesNotFit) {
  std::string what;
  EXPECT_EQ(error_of([] { windows({.context = 65}, "abc"); }, &what), ErrorKind::usage);
  EXPECT_NE(what.find("64 positions"), std::string::npos) << what;
  EXPECT_EQ(error_of([] { windows({.context = 8, .stride = 2}, "abcdefghijk"); }, &what), ErrorKind::usage);
  EXPECT_NE(what.find("--stride"), std::string::npos) << what;
  EXPECT_EQ(error_of([] { protocol_from("gtpq"); }, &what), ErrorKind::usage);
  EXPECT_NE(what.find("llama.cpp"), std::string::npos) << what;
  EXPECT_EQ(error_of(
                [] {
                  score_windows({.protocol = Protocol::sliding}, windows_from_ids({1, 2}, 1, 2, "x"), nullptr, 8);
                },
                &what),
            ErrorKind::usage);
}

TEST(Summaries, LlamaCppsErrorIsOverTokens) {
  ScoredWindows w(windows_from_ids({0, 0, 0, 0, 0, 0, 0, 0}, 2, 4, "ids"));
  w.first = {3, 3};
  w.protocol = Protocol::llama_cpp;
  const PerplexityResult r = summarise(w, {1, 3});
  EXPECT_NEAR(r.mean_nll, 2, tol::kF32Op);
  EXPECT_NEAR(r.stderr_, std::exp(2.0) * 1, 1e-6) << "variance (1 + 9) / 2 - 4 = 1 over 2 - 1";
}

TEST(Summaries, RatesPerByteAndWord) {
  ScoredWindows w(windows_from_ids({0, 0, 0, 0}, 2, 2, "ids"));
  w.bytes_per_token = 4;
  w.words_per_token = 0.5;
  const PerplexityResult r = summarise(w, {1, 1});
  EXPECT_NEAR(r.bits_per_byte, 1 / std::log(2.0) / 4, 1e-12);
  EXPECT_NEAR(r.word_perplexity, std::exp(2.0), 1e-9);
}

// A model held one block at a time must lose what the resident one loses.
FEWBIT_DEVICE_TEST(Streamed, EqualsTheResidentModel) {
  const std::string folder = "goldens/models/qwen3-qknorm";
  FEWBIT_NEEDS_REFERENCE(folder + "/model.safetensors");
  const Checkpoint c = Checkpoint::open(reference(folder));
  Ids ids;
  for (int i = 0; i < 7 * 24; ++i) ids.push_back((i * 37 + 11) % static_cast<int>(c.spec.vocab));
  ScoredWindows w(windows_from_ids(ids, 7, 24, "ids"));
  w.first = {1, 12, 12, 12, 12, 12, 12};

  const LoadOptions load{.dtype = DType::f32};
  Runner runner(ex, c, load);
  const PerplexityResult resident = perplexity(runner, w, 48);
  std::vector<std::string> notes;
  const PerplexityResult streamed = perplexity_streamed(ex, c, load, w, 72, &notes);
  EXPECT_NEAR(streamed.mean_nll, resident.mean_nll, resident.mean_nll * tol::kF32Product);
  EXPECT_EQ(streamed.tokens, resident.tokens);
  EXPECT_GT(resident.phases.at("head"), 0) << "phases are measured";
}

}  // namespace
}  // namespace fewbit::test
