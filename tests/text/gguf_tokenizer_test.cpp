// Tokenizers as GGUF metadata: what goes in and comes out again encodes the goldens' texts to the same ids.
#include "src/text/gguf_tokenizer.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/gguf/file.h"
#include "src/core/mapped_file.h"
#include "src/text/gguf_tokenizer_files.h"
#include "src/text/tokenizer.h"
#include "tests/support/support.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class GgufTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufTokenizer, EncodesAndDecodesTheGoldens) {
  const std::string kind = GetParam(), base = "goldens/tokenizers/" + kind;
  FEWBIT_NEEDS_REFERENCE(base + ".json");
  TempDir dir;
  fs::copy_file(reference(base + ".json"), dir / "tokenizer.json");
  const json tokenizer = json::parse(std::ifstream(dir / "tokenizer.json"));
  // The goldens have no tokenizer_config.json; the BOS of their template is the first added token's.
  const Tokenizer original = Tokenizer::open(dir.path());
  if (original.bos())
    std::ofstream(dir / "tokenizer_config.json") << json{{"bos_token", original.token(*original.bos())}}.dump();
  gguf::write(dir / "t.gguf", tokenizer_to_gguf(dir.path(), original.vocab_size()), {});
  // And from there to a tokenizer.json again, for formats that have one.
  fs::create_directory(dir / "files");
  const MappedFile file(dir / "t.gguf");
  const TokenizerFiles files = tokenizer_files_from_gguf(gguf::parse(file.bytes(), "t.gguf").metadata);
  std::ofstream(dir / "files/tokenizer.json") << files.tokenizer;
  std::ofstream(dir / "files/tokenizer_config.json") << files.config;
  for (const fs::path& from : {dir / "t.gguf", dir / "files"}) {
    SCOPED_TRACE(from.string());
    const Tokenizer read = Tokenizer::open(from);
    EXPECT_EQ(read.vocab_size(), original.vocab_size());
    EXPECT_EQ(read.bos(), original.bos());
    int cases = 0;
    for (const json& c : json::parse(std::ifstream(reference(base + ".cases.json")))) {
      const auto text = c["text"].get<std::string>();
      const auto ids = c["ids"].get<std::vector<int32_t>>(), plain = c["ids_no_special"].get<std::vector<int32_t>>();
      EXPECT_EQ(read.encode(text), ids) << text;
      EXPECT_EQ(read.encode(text, Special::none), plain) << text;
      EXPECT_EQ(read.decode(plain), c["decoded"].get<std::string>());
      ++cases;
    }
    EXPECT_EQ(cases, 48);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufTokenizer, ::testing::Values("llama3", "qwen2", "gpt2", "llama2"),
                         [](const auto& info) { return std::string(info.param); });

// Gemma's kind: pieces with byte tokens, and no space put in front of a text.
TEST(GgufTokenizerKinds, NoSpaceInFrontSurvives) {
  FEWBIT_NEEDS_REFERENCE("goldens/tokenizers/llama2.json");
  TempDir dir;
  json tokenizer = json::parse(std::ifstream(reference("goldens/tokenizers/llama2.json")));
  tokenizer["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  tokenizer["decoder"] = {{"type", "Sequence"},
                          {"decoders",
                           {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                            {{"type", "ByteFallback"}},
                            {{"type", "Fuse"}}}}};
  std::ofstream(dir / "tokenizer.json") << tokenizer.dump();
  std::ofstream(dir / "tokenizer_config.json") << json{{"bos_token", "<s>"}}.dump();
  const Tokenizer original = Tokenizer::open(dir.path());
  const gguf::Metadata m = tokenizer_to_gguf(dir.path(), original.vocab_size());
  EXPECT_FALSE(m.flag("tokenizer.ggml.add_space_prefix", true));
  gguf::write(dir / "t.gguf", m, {});
  const Tokenizer read = Tokenizer::open(dir / "t.gguf");
  for (const char* text : {"one two", " led by a space", "  two", "a\n\nb", "caf\u00e9 \u4e2d\u6587 \U0001f600"}) {
    EXPECT_EQ(read.encode(text), original.encode(text)) << text;
    EXPECT_EQ(read.decode(read.encode(text, Special::none)), text);
  }
  EXPECT_NE(read.encode("one"), read.encode(" one"));
}

TEST(GgufTokenizerKinds, AFolderWithoutOneSaysSo) {
  const TempDir dir;
  const gguf::Metadata m = tokenizer_to_gguf(dir.path(), 100);
  EXPECT_EQ(m.text("tokenizer.ggml.model"), "none");
  EXPECT_TRUE(has_no_tokenizer(m));
  std::string message;
  EXPECT_EQ(error_of([&] { tokenizer_from_gguf(m); }, &message), ErrorKind::checkpoint);
  EXPECT_NE(message.find("no tokenizer"), std::string::npos);
}

// Phi-3's special tokens take the spaces behind them along; a file says so by the model's name alone.
TEST(GgufTokenizerKinds, Phi3IsKnownByItsName) {
  const TempDir dir;
  std::ofstream(dir / "tokenizer.json") << byte_tokenizer().dump();
  std::ofstream(dir / "tokenizer_config.json") << json{{"bos_token", "<bos>"}}.dump();
  gguf::Metadata m = tokenizer_to_gguf(dir.path(), 258);
  const auto strips = [&] {
    for (const AddedToken& t : tokenizer_from_gguf(m).added)
      if (t.content == "<eos>") return t.rstrip;
    return false;
  };
  EXPECT_FALSE(strips());
  m.set("general.name", std::string("Phi-3-mini-4k-instruct"));
  EXPECT_TRUE(strips());
}

}  // namespace
}  // namespace fewbit::test
