// OUT in several files, which are written while blocks are still being quantized: killed anywhere, out of room, and
// resumed, the bytes are the same.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "formats/container.h"
#include "src/quant/journal/journal.h"
#include "tests/support/command_test.h"
#include "tests/support/paths.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class Shards : public CommandTest {
 protected:
  static std::string command(const std::string& out, const std::string& more = "") {
    return "quantize rtn " + kDemo + " " + out + " --device cpu --shard-size 600kB " + more;
  }
  // Names and bytes, wherever they lie.
  std::map<std::string, std::string> tensors_of(const std::string& out) const {
    std::map<std::string, std::string> all;
    const CheckpointIndex index = container_safetensors.open(dir / out);
    for (const auto& [name, info] : index.tensors) {
      const ConstTensorView v = index.view(info);
      all[name] = std::string(static_cast<const char*>(v.data), static_cast<size_t>(v.bytes()));
    }
    return all;
  }
};

TEST_F(Shards, HoldTheSameTensorsAsOneFileInTheModelsOrder) {
  done(command("out"));
  done("quantize rtn " + kDemo + " whole --device cpu");
  const CheckpointIndex parts = container_safetensors.open(dir / "out"),
                        whole = container_safetensors.open(dir / "whole");
  ASSERT_EQ(parts.files.size(), 5u);
  ASSERT_EQ(parts.tensors.size(), whole.tensors.size());
  std::map<std::string, int> file_of;
  for (const auto& [name, info] : parts.tensors) {
    EXPECT_EQ(first_difference(parts.view(info), whole.view(whole.tensors.at(name))), "") << name;
    file_of[name] = info.file;
  }
  EXPECT_EQ(file_of.at("model.embed_tokens.weight"), 0);
  EXPECT_EQ(file_of.at("model.norm.weight"), 4);
  int before = 0;
  for (int layer = 0; layer < 4; ++layer) {
    const int now = file_of.at("model.layers." + std::to_string(layer) + ".mlp.down_proj.B");
    EXPECT_GE(now, before);
    before = now;
  }
}

TEST_F(Shards, KilledBeforeAnyChangeOfTheDiskItResumesToTheSameFiles) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "nothing can be loaded in front of an instrumented program";
#endif
  const std::string preload = "LD_PRELOAD='" + in_build("tests/libfaults.so") + "' KILL_AT=";
  done(command("whole"));
  const auto whole = files("whole");
  int killed = 0;
  for (int at = 1;; at += 17) {  // 17 has no factor in common with the steps that a shard or a block takes
    const ProcessResult first = run(preload + std::to_string(at) + " " + command("out"));
    if (first.exit_code == 0) break;
    ++killed;
    if (!fs::exists(dir / "out")) {
      const ProcessResult second = run(command("out"));
      if (second.exit_code != 0) done(command("out", "--resume"));
    }
    ASSERT_EQ(files("out"), whole) << "killed at step " << at;
    // OUT may be there with the folder of the run beside it, which the next start clears away.
    if (fs::exists(dir / "out.partial")) {
      EXPECT_NE(run(command("out")).exit_code, 0);
    }
    ASSERT_FALSE(fs::exists(dir / "out.partial")) << "killed at step " << at;
    fs::remove_all(dir / "out");
  }
  EXPECT_GT(killed, 10);
}

TEST_F(Shards, ADiskThatIsFullIsSaidWithWhatIsKept) {
  done(command("whole"));
  // A file may have 1 MiB: blocks can be written, the shard with the embedding cannot.
  const ProcessResult r = run("sh -c \"ulimit -f 2048; " + command("out") + "\"");
  EXPECT_EQ(r.exit_code, 1) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  for (const char* word : {"shard-00001", "File too large", "1 blocks are kept in out.partial", "--resume"})
    EXPECT_NE(r.err.find(word), std::string::npos) << r.err;
  done(command("out", "--resume"));
  EXPECT_EQ(files("out"), files("whole"));
}

// The files that a run with another size began are of no use to OUT then, but the blocks in them are.
TEST_F(Shards, ARunGoesOnWithFilesOfAnotherSize) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "nothing can be loaded in front of an instrumented program";
#endif
  const std::string other = "quantize rtn " + kDemo + " out --device cpu --shard-size 900kB";
  done("quantize rtn " + kDemo + " other --device cpu --shard-size 900kB");
  int gone_on = 0;
  for (int at = 40;; at += 23) {
    const std::string kill = "LD_PRELOAD='" + in_build("tests/libfaults.so") + "' KILL_AT=" + std::to_string(at) + " ";
    if (run(kill + command("out", "--restart")).exit_code == 0) break;
    if (fs::exists(dir / "out")) break;
    if (recorded_blocks(dir / "out.partial") == 0) continue;
    ++gone_on;
    done(other + " --resume");
    EXPECT_FALSE(fs::exists(dir / "out.partial"));
    EXPECT_EQ(tensors_of("out"), tensors_of("other")) << "killed at step " << at;
    fs::remove_all(dir / "out");
  }
  EXPECT_GT(gone_on, 3);
}

// Blocks are written once: beside OUT's files there is no other with their bytes.
TEST_F(Shards, NoBlockHasAFileOfItsOwn) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "nothing can be loaded in front of an instrumented program";
#endif
  int seen = 0;
  for (int at = 30; seen < 6; at += 17) {
    const std::string kill = "LD_PRELOAD='" + in_build("tests/libfaults.so") + "' KILL_AT=" + std::to_string(at) + " ";
    ASSERT_NE(run(kill + command("out", "--restart")).exit_code, 0) << "over before step " << at;
    const int64_t blocks = recorded_blocks(dir / "out.partial");
    seen += blocks > 0;
    for (int64_t i = 0; i <= blocks; ++i)
      EXPECT_FALSE(fs::exists(dir / fmt::format("out.partial/block-{:05d}", i))) << "killed at step " << at;
  }
}

TEST_F(Shards, PlansSayWhatTheDiskMustHold) {
  const Json plan = json("quantize plan rtn " + kDemo + " out --device cpu");
  const Json& need = plan.at("disk").at("needs").at(0);
  EXPECT_GT(need.at("bytes").get<int64_t>(), plan.at("out_bytes").get<int64_t>());
  EXPECT_EQ(need.at("what"), "OUT");
  EXPECT_EQ(plan.at("disk").at("refusal"), "");
  EXPECT_EQ(plan.at("disk").at("blocks_in_out"), true);
  EXPECT_LT(need.at("bytes").get<int64_t>(), plan.at("out_bytes").get<int64_t>() * 3 / 2 + (2 << 20)) << "once";
  const Json gguf = json("quantize plan rtn " + kDemo + " out --device cpu --format gguf");
  EXPECT_EQ(gguf.at("disk").at("blocks_in_out"), false);
}

}  // namespace
}  // namespace fewbit::test
