// Tokenizers with random damage: opening and using one ends in text or in an Error.
#include <fstream>

#include "formats/gguf/file.h"
#include "src/text/gguf_tokenizer.h"
#include "tests/support/damage.h"
#include "tests/support/paths.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

const std::filesystem::path kDemo = in_source("calib_data/demo-model");

// Damages `file` and sends a text through the tokenizer that it holds.
int refused(const std::filesystem::path& file, size_t front, int count) {
  const std::string whole = bytes_of_file(file);
  return expect_refused_or_read(whole, front > 0 ? front : whole.size(), count, [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    const Tokenizer t = Tokenizer::open(file);
    t.decode(t.encode("The old house, 1234 — naïve\n\n\xff\xfe<bos>"));
  });
}

TEST(DamagedTokenizer, OfBytes) {
  const TempDir dir;
  std::ofstream(dir / "tokenizer.json") << byte_tokenizer().dump();
  EXPECT_GT(refused(dir / "tokenizer.json", 0, 300), 150);
}

// The parts before the vocabulary of 4,096, and anywhere.
TEST(DamagedTokenizer, OfTheDemoModel) {
  const TempDir dir;
  std::filesystem::copy_file(kDemo / "tokenizer.json", dir / "tokenizer.json");
  EXPECT_GT(refused(dir / "tokenizer.json", 2000, 60), 30);
  std::filesystem::copy_file(kDemo / "tokenizer.json", dir / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_GT(refused(dir / "tokenizer.json", 0, 60), 20);
}

TEST(DamagedTokenizer, InGguf) {
  const TempDir dir;
  gguf::write(dir / "t.gguf", tokenizer_to_gguf(kDemo, 4096), {});
  EXPECT_GT(refused(dir / "t.gguf", 0, 60), 20);
}

}  // namespace
}  // namespace fewbit::test
