// Checkpoints with random damage: opening one ends in a Checkpoint or in an Error.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "formats/gguf/file.h"
#include "src/model/checkpoint.h"
#include "src/model/gguf/writer.h"
#include "src/model/synth/synth.h"
#include "tests/support/damage.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

// Damages one file of a checkpoint again and again, in its first `front` bytes (0: anywhere), and opens the checkpoint.
int refused(const fs::path& checkpoint, const fs::path& file, size_t front, int count) {
  const std::string whole = bytes_of_file(file);
  return expect_refused_or_read(whole, front > 0 ? front : whole.size(), count, [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    Checkpoint::open(checkpoint);
  });
}

TEST(DamagedFiles, Safetensors) {
  for (const char* format : {"bf16", "marlin"}) {
    const TempDir dir;
    synthesize(dir.path(), {.preset = "tiny", .format = format}, {});
    const std::string bytes = bytes_of_file(dir / "model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    EXPECT_GT(refused(dir.path(), dir / "model.safetensors", 8 + header, 200), 150) << format;
  }
}

TEST(DamagedFiles, Configs) {
  for (const char* format : {"bf16", "marlin", "gptq", "awq", "compressed-tensors", "fp8"}) {
    const TempDir dir;
    synthesize(dir.path(), {.preset = "tiny", .format = format}, {});
    EXPECT_GT(refused(dir.path(), dir / "config.json", 0, 150), 75) << format;
  }
  const TempDir dir;
  synthesize(dir.path(), {.preset = "tiny-moe"}, {});
  EXPECT_GT(refused(dir.path(), dir / "config.json", 0, 150), 75);
}

TEST(DamagedFiles, AnIndexOfShards) {
  const TempDir dir;
  synthesize(dir.path(), {.preset = "tiny", .shard_bytes = 100'000}, {});
  EXPECT_GT(refused(dir.path(), dir / "model.safetensors.index.json", 0, 150), 100);
}

TEST(DamagedFiles, Gguf) {
  const TempDir dense, dir;
  synthesize(dense.path(), {.preset = "tiny"}, {});
  const fs::path file = dir / "m.gguf";
  write_gguf(Checkpoint::open(dense.path()), file, {}, {});
  const std::string bytes = bytes_of_file(file);
  const std::span data(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  EXPECT_GT(refused(file, file, static_cast<size_t>(gguf::parse(data, "m.gguf").tensors.front().begin), 400), 200);
}

}  // namespace
}  // namespace fewbit::test
