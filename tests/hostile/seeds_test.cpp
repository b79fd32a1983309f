// The inputs that the fuzz targets begin with (tests/fuzz/seeds), and what they found, through the same readers without
// libFuzzer: the ordinary build keeps to them as well, and no seed is forgotten by its reader.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/hostile/contained.h"
#include "tests/hostile/readers.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

using Read = void (*)(const std::string& bytes, const Scratch& scratch);

struct Target {
  const char* name;
  Read read;
};

std::vector<Hostile> seeds_of(const std::string& target) {
  std::vector<Hostile> seeds;
  for (const auto& file : std::filesystem::directory_iterator(in_source("tests/fuzz/seeds/" + target))) {
    std::ifstream in(file.path(), std::ios::binary);
    seeds.push_back({file.path().filename(), {std::istreambuf_iterator<char>(in), {}}});
  }
  return seeds;
}

class FuzzSeeds : public ::testing::TestWithParam<Target> {};

TEST_P(FuzzSeeds, AreReadOrRefused) {
  const TempDir scratch;
  const std::vector<Hostile> seeds = seeds_of(GetParam().name);
  ASSERT_FALSE(seeds.empty());
  // Cut and damaged in place too, as a fuzzer begins.
  std::vector<Hostile> inputs = seeds;
  for (const Hostile& s : seeds)
    for (size_t part = 1; part < 8; ++part) {
      const size_t at = s.bytes.size() * part / 8;
      inputs.push_back({s.name + " cut at " + std::to_string(at), s.bytes.substr(0, at)});
      std::string damaged = s.bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x80);
      inputs.push_back({s.name + " damaged at " + std::to_string(at), damaged});
    }
  expect_contained(inputs, [&](const std::string& bytes) { GetParam().read(bytes, scratch.path()); });
}

INSTANTIATE_TEST_SUITE_P(All, FuzzSeeds,
                         ::testing::Values(Target{"safetensors", read_safetensors_bytes},
                                           Target{"gguf", read_gguf_bytes}, Target{"config", read_config_bytes},
                                           Target{"tokenizer", read_tokenizer_bytes},
                                           Target{"template", read_template_bytes}, Target{"recipe", read_recipe_bytes},
                                           Target{"journal", read_journal_bytes}, Target{"report", read_report_bytes}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fewbit::test
