// Models in the hub's cache: links to blobs under snapshots, found by name or by their folder.
#include "src/model/hub_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "src/core/error.h"
#include "src/model/checkpoint.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

std::string complaint_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(HubCache, SnapshotsOpenByNameByFolderAndAsTheyAre) {
  const TempDir dir;
  const fs::path model = dir / "hub/models--org--tiny", snapshot = model / "snapshots/abc";
  fs::create_directories(snapshot);
  fs::create_directories(model / "refs");
  std::ofstream(model / "refs/main") << "abc\n";
  for (const auto& file : fs::directory_iterator(in_source("calib_data/demo-model")))
    fs::create_symlink(file.path(), snapshot / file.path().filename());
  EXPECT_EQ(hub_folder(model), snapshot);
  EXPECT_EQ(hub_folder(snapshot), snapshot);
  EXPECT_GT(Checkpoint::open(model).spec.vocab, 0);
  ASSERT_EQ(setenv("HF_HOME", dir.path().c_str(), 1), 0);
  EXPECT_EQ(hub_folder("hf-cache:org/tiny"), snapshot);
  EXPECT_EQ(hub_folder("hf-cache:org/tiny@abc"), snapshot);
  EXPECT_NE(complaint_of([] { hub_folder("hf-cache:org/other"); }).find("models--org--other"), std::string::npos);
  fs::create_directories(model / "snapshots/def");
  EXPECT_NE(complaint_of([] { hub_folder("hf-cache:org/tiny@ghi"); }).find("abc, def"), std::string::npos);
  unsetenv("HF_HOME");
}

TEST(HubCache, AllMissingShardsAreNamed) {
  const TempDir dir;
  fs::copy(in_source("calib_data/demo-model/config.json"), dir / "config.json");
  std::ofstream(dir / "model.safetensors.index.json")
      << R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}})";
  const std::string what = complaint_of([&] { Checkpoint::open(dir.path()); });
  EXPECT_NE(what.find("2 of its 2 shards are missing: one.safetensors, two.safetensors"), std::string::npos) << what;
}

}  // namespace
}  // namespace fewbit::test
