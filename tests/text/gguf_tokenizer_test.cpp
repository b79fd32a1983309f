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
    std::ofstream(dir / "tokenizer_config.json")
        << json{{"bos_token", original.token(*original.bos())}}.dump();
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
      const auto ids = c["ids"].get<std::vector<int32_t>>(),
                 plain = c["ids_no_special"].get<std::vector<int32_t>>();
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

}  // namespace
}  // namespace fewbit::test
