// Files of OUT as seals: finished ones take the place of the blocks in them, ranges of those that are being written
// that of a block's own file; the damage of both is found.
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

// Blocks 0 to 4 as ranges: 0, 1 and one half of 2 in the first shard, the rest in the second.
class RangesTest : public ShardsTest {
 protected:
  static std::vector<NamedTensor> block(int64_t layer) {
    std::vector<NamedTensor> t = tensors_of(layer);
    t.push_back(
        {"other." + std::to_string(layer), random_normal(DType::f32, {4, 8}, 100 + static_cast<uint64_t>(layer))});
    return t;
  }
  static int64_t shard_of(const std::string& tensor) {
    const int64_t layer = tensor.back() - '0';
    return layer > 2 || (layer == 2 && tensor[0] == 'o');
  }
  struct Open {
    std::vector<TensorInfo> infos[2];
    std::vector<OpenShard> shards;

    explicit Open(const Journal& j) {
      fs::create_directories(j.shard_file(0).parent_path());
      for (int64_t layer = 0; layer < 5; ++layer)
        for (const NamedTensor& t : block(layer))
          infos[shard_of(t.name)].push_back(
              {.name = t.name, .dtype = t.tensor.dtype(), .shape = t.tensor.shape(), .bytes = t.tensor.view().bytes()});
      for (int64_t k = 0; k < 2; ++k) shards.emplace_back(j.shard_file(k), infos[k]);
    }
    std::optional<SealedRanges> place(const std::vector<NamedTensor>& tensors) {
      SealedRanges ranges;
      for (const NamedTensor& t : tensors)
        ranges.push_back(
            {shard_of(t.name), t.name, shards[static_cast<size_t>(shard_of(t.name))].put_in_passing(t.name, t.tensor)});
      return ranges;
    }
  };
  // A run that is killed when `blocks` blocks are sealed, or with one more in its place and no record of it.
  void run_ranges(int64_t blocks, bool torn = false) {
    RunFolder folder = RunFolder::claim(partial());
    folder.wipe();
    Journal j(folder, kIdentity, Journal::Start::fresh);
    Open open(j);
    j.place_blocks_by([&](int64_t, const std::vector<NamedTensor>& t) { return open.place(t); });
    for (int64_t i = 0; i < blocks; ++i) j.seal(i, block(i), records_of(i));
    if (torn) open.place(block(blocks));
    EXPECT_FALSE(fs::exists(j.block_file(0)));
    folder.keep(true);
  }
  // What a resumed run finds, every sealed block's tensors compared.
  State found_ranges() {
    RunFolder folder = RunFolder::claim(partial());
    const Journal j(folder, kIdentity, Journal::Start::resume);
    for (int64_t i = 0; i < j.sealed_blocks(); ++i) {
      const CheckpointIndex index = j.open_block(i);
      const std::vector<NamedTensor> expected = block(i);
      if (i >= j.covered_blocks()) {
        EXPECT_EQ(index.tensors.size(), expected.size()) << i;
      }
      for (const NamedTensor& t : expected)
        EXPECT_EQ(first_difference(index.view(index.tensors.at(t.name)), t.tensor), "") << t.name;
      EXPECT_EQ(j.records(i)[0].name, records_of(i)[0].name);
    }
    folder.keep(true);
    return {j.sealed_blocks(), j.shards(), j.covered_blocks(), j.note()};
  }
  size_t place_in(int64_t shard, const std::string& tensor) const {
    const fs::path file = built() / ("shard-0000" + std::to_string(shard + 1) + ".safetensors");
    return static_cast<size_t>(container_safetensors.open(file).tensors.at(tensor).begin);
  }
};

TEST_F(RangesTest, AreFoundAgain) {
  run_ranges(4);
  const State s = found_ranges();
  expect(s, 4, 0, 0);
  EXPECT_EQ(s.note, "");
}

TEST_F(RangesTest, WithoutARecordDoNotCount) {
  run_ranges(2, true);
  const State s = found_ranges();
  expect(s, 2, 0, 0);
  EXPECT_EQ(s.note, "") << "a kill between the bytes and the record is no damage";
}

TEST_F(RangesTest, OfATornRecordDoNotCount) {
  run_ranges(3);
  const std::string whole = bytes_of_file(log());
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t bytes = last; bytes < whole.size(); bytes += 11) {
    write(log(), whole.substr(0, bytes));
    const State s = found_ranges();
    expect(s, 2, 0, 0);
    EXPECT_EQ(s.note, "") << bytes;
  }
}

TEST_F(RangesTest, AFlippedBitIsNamedAndTheBlocksBehindItGo) {
  run_ranges(4);
  flip(built() / "shard-00001.safetensors", place_in(0, "layer.1") + 77);
  State s = found_ranges();
  expect(s, 1, 0, 0);
  EXPECT_EQ(s.note, "block 1 was damaged (layer.1) and is done again, with all after it");
  expect(found_ranges(), 1, 0, 0);  // from the journal that this left
  run_ranges(4);
  flip(built() / "shard-00002.safetensors", place_in(1, "other.2"));
  s = found_ranges();
  expect(s, 2, 0, 0);
  EXPECT_EQ(s.note, "block 2 was damaged (other.2) and is done again, with all after it");
  run_ranges(4);
  flip(built() / "shard-00001.safetensors", 12);
  expect(found_ranges(), 0, 0, 0);
  run_ranges(4);
  fs::remove(built() / "shard-00002.safetensors");
  expect(found_ranges(), 2, 0, 0);
}

TEST_F(RangesTest, ASealedShardThatIsDamagedKeepsTheBlocksInFrontOfTheDamage) {
  run_ranges(5);
  {
    RunFolder folder = RunFolder::claim(partial());
    Journal j(folder, kIdentity, Journal::Start::resume);
    WrittenFile written{.name = "", .sha256 = "0"};
    j.seal_shard(2, written);
    folder.keep(true);
  }
  expect(found_ranges(), 5, 1, 2);
  flip(built() / "shard-00001.safetensors", place_in(0, "layer.1"));
  const State s = found_ranges();
  expect(s, 1, 0, 0);
  EXPECT_NE(s.note.find("layer.1"), std::string::npos) << s.note;
}

TEST_F(RangesTest, AFileThatIsSetAsideServesUntilItsBlocksAreInShards) {
  run_ranges(4);
  {
    RunFolder folder = RunFolder::claim(partial());
    Journal j(folder, kIdentity, Journal::Start::resume);
    j.set_aside(0);
    write(built() / "shard-00001.safetensors", "half of another");
    folder.keep(true);
  }
  expect(found_ranges(), 4, 0, 0);
  {
    RunFolder folder = RunFolder::claim(partial());
    Journal j(folder, kIdentity, Journal::Start::resume);
    Open fresh(j);
    for (int64_t i = 0; i < 5; ++i) fresh.place(block(i));
    EXPECT_EQ(j.files_of_ranges().size(), 2u);
    j.seal_shard(2, {.name = "", .sha256 = "0"});
    EXPECT_TRUE(fs::exists(built() / "aside-00001.safetensors")) << "half of block 2 lies there";
    j.seal_shard(5, {.name = "", .sha256 = "0"});
    EXPECT_FALSE(fs::exists(built() / "aside-00001.safetensors"));
    folder.keep(true);
  }
}

}  // namespace
}  // namespace fewbit::test
