#include "src/model/work.h"

#include <gtest/gtest.h>

#include "src/model/checkpoint.h"
#include "src/model/synth/synth.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

ModelSpec spec_of(const char* preset) {
  const TempDir dir;
  synthesize(dir.path(), {.preset = preset}, {});
  return Checkpoint::open(dir.path()).spec;
}

// Two blocks of q, o 128 x 128, k, v 64 x 128, gate, up, down 256 x 128; a head 512 x 128; 4 heads of 32.
constexpr double kLinears = 2 * (2 * 128 * 128 + 2 * 64 * 128), kMlp = 2 * 3 * 256 * 128, kHead = 512 * 128;
constexpr double kSeen = 2 * 4 * 4 * 32;  // FLOP of one position seen, both blocks

TEST(Work, OfOneStepAndOfAPrompt) {
  const ModelSpec spec = spec_of("tiny");
  EXPECT_EQ(pass_flop(spec, 1, 9, 1), 2 * (kLinears + kMlp + kHead) + 10 * kSeen);
  EXPECT_EQ(pass_flop(spec, 3, 9, 1), 3 * pass_flop(spec, 1, 9, 1));
  EXPECT_EQ(pass_flop(spec, 1, 0, 4), 2 * (4 * (kLinears + kMlp) + kHead) + (1 + 2 + 3 + 4) * kSeen);
  // In two parts the same, but for one head more.
  EXPECT_EQ(pass_flop(spec, 1, 0, 3) + pass_flop(spec, 1, 3, 5), pass_flop(spec, 1, 0, 8) + 2 * kHead);
}

TEST(Work, AWindowBoundsWhatIsSeen) {
  ModelSpec spec = spec_of("tiny");
  for (BlockOp& op : spec.kinds[0])
    if (Attention* a = std::get_if<Attention>(&op)) a->window = 3;
  EXPECT_EQ(pass_flop(spec, 1, 9, 1), 2 * (kLinears + kMlp + kHead) + 3 * kSeen);
  EXPECT_EQ(pass_flop(spec, 1, 0, 5), 2 * (5 * (kLinears + kMlp) + kHead) + (1 + 2 + 3 + 3 + 3) * kSeen);
}

// The router, and two of four experts of width 128.
TEST(Work, ATokenMeetsItsExpertsAlone) {
  constexpr double kExperts = 2 * (4 * 128 + 2 * 3 * 128 * 128);
  EXPECT_EQ(pass_flop(spec_of("tiny-moe"), 1, 0, 1), 2 * (kLinears + kExperts + kHead) + kSeen);
}

}  // namespace
}  // namespace fewbit::test
