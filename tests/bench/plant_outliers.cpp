// plant_outliers MODEL OUT [CHANNELS [FACTOR [SEED]]]: a copy of MODEL with planted outlier channels at every norm's
// output and the same function (tests/quant/planting.h); with a SEED the channels are drawn, without one they are the
// most salient. For scripts/bench_quality.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/quant/planting.h"

int main(int argc, char** argv) {
  if (argc < 3 || argc > 6) {
    std::fprintf(stderr, "usage: plant_outliers MODEL OUT [CHANNELS=4 [FACTOR=50 [SEED]]]\n");
    return 2;
  }
  try {
    fewbit::test::Planting planting;
    if (argc > 3) planting.channels = std::strtoll(argv[3], nullptr, 10);
    if (argc > 4) planting.factor = std::strtof(argv[4], nullptr);
    if (argc > 5) {
      planting.where = fewbit::test::Planting::Where::drawn;
      planting.seed = std::strtoull(argv[5], nullptr, 10);
    }
    fewbit::test::plant_outliers(fewbit::Checkpoint::open(argv[1]), planting, argv[2]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "plant_outliers: %s\n", e.what());
    return 1;
  }
  return 0;
}
