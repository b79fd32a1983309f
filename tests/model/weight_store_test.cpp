// WeightStore: typed access and its complaints.
#include "src/model/weight_store.h"

#include <fstream>
#include <functional>

#include "tests/support/support.h"

namespace fewbit::test {
namespace {

TEST(WeightStore, GivesViewsAndChecksThem) {
  TempDir dir;
  const Tensor a = random_normal(DType::f32, {3, 4}, 1), b = random_normal(DType::bf16, {5}, 2);
  auto writer = container_safetensors.create(dir.path(), {});
  writer->add("a", a);
  writer->add("b", b);
  writer->finish();
  const WeightStore store = WeightStore::open(dir.path());
  EXPECT_EQ(first_difference(store.get("a"), a), "");
  EXPECT_EQ(first_difference(store.expect("b", {DType::f16, DType::bf16}, {5}), b), "");
  EXPECT_TRUE(store.has("a"));
  EXPECT_FALSE(store.has("c"));
  EXPECT_EQ(store.find("c"), nullptr);
  EXPECT_EQ(store.total_bytes(), 48 + 10);
  const auto failing = [&](const std::function<void()>& f) { return message_of(f, ErrorKind::checkpoint); };
  EXPECT_NE(failing([&] { store.get("c"); }).find("'c' is missing"), std::string::npos);
  const std::string what = failing([&] { store.expect("a", {DType::f16, DType::bf16}, {4, 3}); });
  EXPECT_NE(what.find("model.safetensors: tensor 'a': expected f16 or bf16 [4, 3], found f32 [3, 4]"),
            std::string::npos)
      << what;
  EXPECT_NE(failing([&] { store.expect("a", {DType::f32}, {4, 3}); }), "");
  EXPECT_NE(failing([&] { store.expect("a", {DType::f16}, {3, 4}); }), "");
}

TEST(WeightStore, PickledCheckpointsAreRefusedWithTheWayOut) {
  TempDir dir;
  std::ofstream(dir / "pytorch_model.bin") << "x";
  for (const auto& path : {dir.path(), dir / "pytorch_model.bin"}) {
    const std::string what = message_of([&] { WeightStore::open(path); }, ErrorKind::unsupported);
    EXPECT_NE(what.find("pytorch_model.bin"), std::string::npos) << what;
    EXPECT_NE(what.find("convert to safetensors"), std::string::npos) << what;
  }
}

TEST(WeightStore, FoldersWithoutWeightsAreRefused) {
  TempDir dir;
  EXPECT_NE(message_of([&] { WeightStore::open(dir.path()); }, ErrorKind::checkpoint), "");
  EXPECT_NE(message_of([&] { WeightStore::open(dir / "none"); }, ErrorKind::io), "");
}

}  // namespace
}  // namespace fewbit::test
