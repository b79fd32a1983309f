// A shard whose tensors come in any order is the file of a writer that has them all, and so are its digests.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "formats/packing.h"
#include "formats/shards.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

struct Tensors {
  std::vector<NamedTensor> all{};
  std::vector<TensorInfo> infos{};

  Tensors() {
    const DType types[] = {DType::bf16, DType::f32, DType::u8, DType::f16};
    for (int i = 0; i < 12; ++i) {
      const DType type = types[i % 4];
      const int64_t n = i == 5 ? 0 : 100 * i + 1;
      Tensor t = Tensor::host(type, {n});
      for (int64_t b = 0; b < t.bytes(); ++b) static_cast<uint8_t*>(t.view().data)[b] = static_cast<uint8_t>(b * 7 + i);
      infos.push_back({.name = fmt::format("t{}", i), .dtype = type, .shape = t.shape(), .bytes = t.bytes()});
      all.push_back({infos.back().name, std::move(t)});
    }
  }
};

TEST(OpenShard, IsTheWritersFileInWhateverOrderItsTensorsCome) {
  TempDir dir;
  const Tensors tensors;
  std::vector<WrittenFile> expected;
  {
    const auto writer = create_with_digests(dir.path(), {}, expected);
    for (const NamedTensor& t : tensors.all) writer->add(t.name, t.tensor);
    writer->finish();
  }
  std::vector<size_t> order(tensors.all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (int round = 0; round < 4; ++round) {
    const std::filesystem::path file = dir / "open.safetensors";
    OpenShard shard(file, tensors.infos);
    for (const size_t i : order) {
      EXPECT_TRUE(shard.wants(tensors.infos[i]));
      shard.put(tensors.all[i].name, tensors.all[i].tensor);
      EXPECT_FALSE(shard.wants(tensors.infos[i]));
    }
    const WrittenFile written = shard.finish();
    EXPECT_EQ(written.name, "open.safetensors");
    EXPECT_EQ(written.sha256, expected.at(0).sha256);
    EXPECT_EQ(written.sha256, sha256_of_file(file));
    EXPECT_EQ(written.tensors, expected.at(0).tensors);
    EXPECT_EQ(bytes_of_file(file), bytes_of_file(dir / "model.safetensors"));
    std::reverse(order.begin(), order.end());
    std::rotate(order.begin(), order.begin() + 5, order.end());
  }
}

TEST(OpenShard, TakesTensorsFromSeveralThreads) {
  TempDir dir;
  const Tensors tensors;
  for (int round = 0; round < 20; ++round) {
    const std::filesystem::path file = dir / "open.safetensors";
    OpenShard shard(file, tensors.infos);
    std::vector<std::thread> threads;
    for (size_t first = 0; first < 3; ++first)
      threads.emplace_back([&, first] {
        for (size_t i = first; i < tensors.all.size(); i += 3) {
          const NamedTensor& t = tensors.all[i];
          const std::string digest = first ? shard.put_in_passing(t.name, t.tensor) : shard.put(t.name, t.tensor);
          EXPECT_EQ(digest, digest_of_pieces(t.tensor.view().data, t.tensor.bytes()));
          if (first == 1) shard.catch_up(i % 2 ? 64 : INT64_MAX);  // up to a tensor that is too large, or all
        }
      });
    for (std::thread& t : threads) t.join();
    const WrittenFile written = shard.finish();
    EXPECT_EQ(written.sha256, sha256_of_file(file));
    EXPECT_EQ(written.tensors.size(), tensors.all.size());
  }
}

TEST(OpenShard, GoesOnWithWhatWasBegun) {
  TempDir dir;
  Tensors tensors;
  const std::filesystem::path file = dir / "open.safetensors";
  TensorDigests there;
  {
    OpenShard shard(file, tensors.infos);
    for (const size_t i : {size_t{2}, size_t{7}, size_t{11}})
      there[tensors.all[i].name] = shard.put_in_passing(tensors.all[i].name, tensors.all[i].tensor);
    const CheckpointIndex open = container_safetensors.open(file);
    EXPECT_EQ(first_difference(open.view(open.tensors.at("t7")), tensors.all[7].tensor), "") << "readers find it";
  }
  std::optional<OpenShard> shard = OpenShard::go_on(file, tensors.infos, there);
  ASSERT_TRUE(shard);
  for (size_t i = 0; i < tensors.all.size(); ++i) {
    EXPECT_EQ(shard->wants(tensors.infos[i]), !there.count(tensors.all[i].name));
    if (!there.count(tensors.all[i].name)) shard->put(tensors.all[i].name, tensors.all[i].tensor);
  }
  const WrittenFile written = shard->finish();
  EXPECT_EQ(written.sha256, sha256_of_file(file));
  EXPECT_EQ(written.tensors.size(), tensors.all.size());
  const std::string whole = bytes_of_file(file);
  tensors.infos.pop_back();
  EXPECT_FALSE(OpenShard::go_on(file, tensors.infos, {})) << "begun for others";
  std::filesystem::resize_file(file, whole.size() - 1);
  EXPECT_FALSE(OpenShard::go_on(file, Tensors().infos, {})) << "shortened";
}

TEST(OpenShard, KnowsItsTensorsByNameTypeAndShape) {
  TempDir dir;
  Tensors tensors;
  OpenShard shard(dir / "open.safetensors", tensors.infos);
  std::reverse(tensors.infos.begin(), tensors.infos.end());
  EXPECT_TRUE(shard.holds(tensors.infos));
  TensorInfo& other = tensors.infos.front();
  other.dtype = DType::i8;
  EXPECT_FALSE(shard.holds(tensors.infos));
  EXPECT_FALSE(shard.wants(other));
  tensors.infos.erase(tensors.infos.begin());
  EXPECT_FALSE(shard.holds(tensors.infos));
  EXPECT_FALSE(shard.wants({.name = "another"}));
  EXPECT_TRUE(shard.wants(tensors.infos.front()));
}

}  // namespace
}  // namespace fewbit::test
