#pragma once
// A run's folder with a journal in it, for tests of both.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "src/quant/journal/journal.h"
#include "tests/support/support.h"

namespace fewbit::test {

namespace fs = std::filesystem;

inline const std::string kIdentity = R"({"version":"1","seed":0,"allow-rtn":false})";

inline std::vector<NamedTensor> tensors_of(int64_t layer) {
  std::vector<NamedTensor> t;
  t.push_back({"layer." + std::to_string(layer), random_normal(DType::f32, {8, 16}, static_cast<uint64_t>(layer))});
  return t;
}

inline std::vector<LinearRecord> records_of(int64_t layer) {
  LinearRecord r;
  r.name = "linear " + std::to_string(layer);
  r.hash = "abc";
  return {r};
}

inline void write(const fs::path& p, const std::string& bytes) { std::ofstream(p, std::ios::binary) << bytes; }

inline void flip(const fs::path& p, size_t at) {
  std::string bytes = bytes_of_file(p);
  bytes[at] = static_cast<char>(bytes[at] ^ 16);
  write(p, bytes);
}

class JournalTest : public ::testing::Test {
 protected:
  fs::path partial() const { return dir / "out.partial"; }
  fs::path log() const { return partial() / "journal"; }
  // A run that is killed after `blocks` blocks.
  void run(int64_t blocks, Journal::Start start = Journal::Start::fresh) {
    RunFolder folder = RunFolder::claim(partial());
    Journal j(folder, kIdentity, start);
    for (int64_t i = j.sealed_blocks(); i < blocks; ++i) j.seal(i, tensors_of(i), records_of(i));
    folder.keep(true);
  }
  struct Found {
    int64_t blocks = 0;
    std::string note;
  };
  // Resumes, checks that what is sealed is right, seals one block more and finds it in a second resume.
  Found resume() {
    Found found;
    RunFolder folder = RunFolder::claim(partial());
    {
      Journal j(folder, kIdentity, Journal::Start::resume);
      found = {j.sealed_blocks(), j.note()};
      for (int64_t i = 0; i < found.blocks; ++i) expect_block(j, i);
      j.seal(found.blocks, tensors_of(found.blocks), records_of(found.blocks));
    }
    Journal again(folder, kIdentity, Journal::Start::resume);
    EXPECT_EQ(again.sealed_blocks(), found.blocks + 1);
    EXPECT_EQ(again.note(), "");
    folder.keep(true);
    return found;
  }
  static void expect_block(const Journal& j, int64_t i) {
    const CheckpointIndex block = container_safetensors.open(j.block_file(i));
    const NamedTensor expected = std::move(tensors_of(i)[0]);
    EXPECT_EQ(first_difference(block.view(block.tensors.at(expected.name)), expected.tensor), "");
    EXPECT_EQ(j.records(i)[0].name, records_of(i)[0].name);
  }

  TempDir dir;
};

}  // namespace fewbit::test
