// Finished files of OUT as seals: they take the place of the blocks in them, and their damage is found.
#include <gtest/gtest.h>

#include "formats/shards.h"
#include "tests/quant/journal_fixture.h"

namespace fewbit::test {
namespace {

class ShardsTest : public JournalTest {
 protected:
  // The tensors of blocks [begin, end) as the next shard; the first `covered` blocks go with it.
  static void shard(Journal& j, int64_t begin, int64_t end, int64_t covered) {
    std::vector<NamedTensor> tensors;
    for (int64_t i = begin; i < end; ++i)
      for (NamedTensor& t : tensors_of(i)) tensors.push_back(std::move(t));
    std::vector<TensorInfo> all;
    for (const NamedTensor& t : tensors)
      all.push_back(
          {.name = t.name, .dtype = t.tensor.dtype(), .shape = t.tensor.shape(), .bytes = t.tensor.view().bytes()});
    fs::create_directories(j.shard_file(0).parent_path());
    OpenShard open(j.shard_file(j.shards()), all);
    for (const NamedTensor& t : tensors) open.put(t.name, t.tensor);
    WrittenFile written = open.finish();
    j.seal_shard(covered, std::move(written));
  }
  // Blocks 0 to 4: 0 and 1 in a shard, 2 in the next, 3 and 4 in files of their own.
  void run() {
    RunFolder folder = RunFolder::claim(partial());
    folder.wipe();
    Journal j(folder, kIdentity, Journal::Start::fresh);
    for (int64_t i = 0; i < 5; ++i) {
      j.seal(i, tensors_of(i), records_of(i));
      if (i == 1) shard(j, 0, 2, 2);
      if (i == 3) shard(j, 2, 3, 3);
    }
    folder.keep(true);
  }
  struct State {
    int64_t blocks = 0, shards = 0, covered = 0;
    std::string note;
  };
  // Resumes, and looks at every block that is sealed.
  State found() {
    RunFolder folder = RunFolder::claim(partial());
    const Journal j(folder, kIdentity, Journal::Start::resume);
    for (int64_t i = 0; i < j.sealed_blocks(); ++i) {
      const CheckpointIndex block = j.open_block(i);
      const NamedTensor expected = std::move(tensors_of(i)[0]);
      EXPECT_EQ(first_difference(block.view(block.tensors.at(expected.name)), expected.tensor), "") << i;
      EXPECT_EQ(j.records(i)[0].name, records_of(i)[0].name);
      EXPECT_EQ(fs::exists(j.block_file(i)), i >= j.covered_blocks()) << i;
    }
    folder.keep(true);
    return {j.sealed_blocks(), j.shards(), j.covered_blocks(), j.note()};
  }
  void expect(const State& s, int64_t blocks, int64_t shards, int64_t covered) const {
    EXPECT_EQ(s.blocks, blocks);
    EXPECT_EQ(s.shards, shards);
    EXPECT_EQ(s.covered, covered);
  }
  fs::path built() const { return partial() / kBuilt; }
};

TEST_F(ShardsTest, TakeThePlaceOfTheirBlocks) {
  run();
  EXPECT_FALSE(fs::exists(partial() / "block-00002"));
  EXPECT_TRUE(fs::exists(partial() / "block-00003"));
  const State s = found();
  expect(s, 5, 2, 3);
  EXPECT_EQ(s.note, "");
}

TEST_F(ShardsTest, ADamagedOneTakesAlongTheBlocksThatItHeld) {
  run();
  flip(built() / "shard-00002.safetensors", 200);
  State s = found();
  expect(s, 2, 1, 2);
  EXPECT_EQ(s.note, "block 2 was damaged and is done again, with all after it");
  run();
  fs::remove(built() / "shard-00001.safetensors");
  s = found();
  expect(s, 0, 0, 0);
  run();
  flip(partial() / "block-00003/model.safetensors", 100);
  expect(found(), 3, 2, 3);
  expect(found(), 3, 2, 3);  // from the journal that this left
}

TEST_F(ShardsTest, AnEndThatWasInterruptedIsTakenBack) {
  run();
  {
    RunFolder folder = RunFolder::claim(partial());
    Journal j(folder, kIdentity, Journal::Start::resume);
    j.name_shards();
    EXPECT_TRUE(fs::exists(built() / "model-00002-of-00002.safetensors"));
  }
  expect(found(), 5, 2, 3);
  fs::rename(built() / "shard-00001.safetensors", built() / "model-00001-of-00002.safetensors");
  expect(found(), 5, 2, 3);
}

TEST_F(ShardsTest, AFileWithoutItsRecordDoesNotCount) {
  run();
  write(built() / "shard-00003.safetensors", "half of it");
  expect(found(), 5, 2, 3);
  // A crash between a record and the removal of what it replaces.
  fs::create_directories(partial() / "block-00001");
  write(partial() / "block-00001/model.safetensors", "old");
  expect(found(), 5, 2, 3);
  EXPECT_FALSE(fs::exists(partial() / "block-00001"));
}

}  // namespace
}  // namespace fewbit::test
