// States and streams: chunks come back as they went in from every place, and what passes compute does not depend on
// where a pass begins.
#include "src/calib/states.h"

#include <gtest/gtest.h>

#include "src/calib/cuts.h"
#include "src/calib/stream.h"
#include "src/run/head.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

FEWBIT_DEVICE_TEST(States, ComeBackFromEveryPlace) {
  const TempDir dir;
  const Chunks chunks{.windows = 7, .length = 900};  // two windows a chunk, the last chunk one
  ASSERT_EQ(chunks.count(), 4);
  const Tensor all = random_normal(DType::bf16, {chunks.tokens(), 24}, 3);
  // Room for one chunk on the device and one in host memory; the others go to the file.
  const int64_t one = chunks.most_rows() * 24 * 2;
  StateStore store(ex, {.device = one, .host = one, .scratch = dir.path()});
  States states(store, chunks, DType::bf16, 24);
  for (int64_t c = 0; c < chunks.count(); ++c)
    states.put(c, ex.to_device(all.view().row_range(chunks.begin(c), chunks.begin(c) + chunks.rows(c))));
  EXPECT_EQ(store.peak().host, one);
  EXPECT_EQ(store.peak().device, ex.on_cuda() ? one : 0);
  EXPECT_GT(store.peak().file, 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "the file has no name, so that nothing is left of it";
  Tensor back = ex.alloc(DType::bf16, all.shape());
  states.get(0, chunks.tokens(), back);
  EXPECT_EQ(first_difference(ex.to_host(back), all), "");
  const Tensor part = ex.alloc(DType::bf16, {2000, 24});
  states.get(1700, 3700, part);  // across two borders
  EXPECT_EQ(first_difference(ex.to_host(part), clone_host(all.view().row_range(1700, 3700))), "");
}

// To pin memory is slow, and to give it back waits for the device.
TEST(States, CudaPinnedMemoryServesTheNextOfItsShape) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  StateStore store(ex, {.device = 0, .host = 3 * kMiB});
  const Chunks chunks{.windows = 2, .length = 2048};
  ASSERT_EQ(chunks.count(), 2);
  const Tensor all = random_normal(DType::f32, {chunks.tokens(), 128}, 5);
  const auto rows = [&](int64_t c) {
    return ex.to_device(clone_host(all.view().row_range(chunks.begin(c), chunks.begin(c) + chunks.rows(c))));
  };
  States states(store, chunks, DType::f32, 128);  // a MiB a chunk
  states.put(0, rows(0));
  const void* first = states.pinned(0).data;
  states.drop(0);
  states.put(1, rows(1));
  EXPECT_EQ(states.pinned(1).data, first);
  states.put(0, rows(0));
  const void* second = states.pinned(0).data;
  EXPECT_NE(second, first);
  const Tensor back = ex.alloc(DType::f32, all.shape());
  states.get(0, chunks.tokens(), back);
  EXPECT_EQ(first_difference(ex.to_host(back), all), "");
  states.drop(0);
  States wide(store, chunks, DType::f32, 256);  // two MiB a chunk: what was kept makes room
  const Tensor other = random_normal(DType::f32, {2048, 256}, 6);
  wide.put(0, ex.to_device(other));
  EXPECT_NE(wide.pinned(0).data, nullptr);
  EXPECT_EQ(store.peak().host, 3 * kMiB);
  EXPECT_EQ(store.peak().file, 0);
}

TEST(States, RoomIsGivenBack) {
  Exec ex = Exec::cpu();
  StateStore store(ex, {.host = kMiB});
  const Chunks chunks{.windows = 1, .length = 1024};
  for (int i = 0; i < 3; ++i) {
    States states(store, chunks, DType::f32, 256);
    states.put(0, random_normal(DType::f32, {1024, 256}, 1));
  }
  EXPECT_EQ(store.peak().host, kMiB);
  EXPECT_EQ(store.peak().file, 0);
}

// From every place; the other chunks stay as they were.
FEWBIT_DEVICE_TEST(States, ADroppedChunksRoomServesTheNext) {
  const TempDir dir;
  const Chunks chunks{.windows = 3, .length = 2048};
  ASSERT_EQ(chunks.count(), 3);
  const Tensor all = random_normal(DType::f32, {chunks.tokens(), 128}, 5);
  const auto rows = [&](int64_t c) { return all.view().row_range(chunks.begin(c), chunks.begin(c) + chunks.rows(c)); };
  for (const int64_t host : {int64_t{0}, 2 * kMiB}) {  // of three chunks of a MiB each: all in the file, or one
    StateStore store(ex, {.device = 0, .host = host, .scratch = dir.path()});
    States before(store, chunks, DType::f32, 128), behind(store, chunks, DType::f32, 128);
    for (int64_t c = 0; c < 3; ++c) before.put(c, ex.to_device(rows(c)));
    const StateStore::Use peak = store.peak();
    for (int64_t c = 0; c < 3; ++c) {
      before.drop(c);
      before.drop(c);  // once more changes nothing
      behind.put(c, ex.to_device(rows(2 - c)));
      for (int64_t other = c + 1; other < 3; ++other) {
        const Tensor back = ex.alloc(DType::f32, {chunks.rows(other), 128});
        before.get(chunks.begin(other), chunks.begin(other) + chunks.rows(other), back);
        EXPECT_EQ(first_difference(ex.to_host(back), clone_host(rows(other))), "");
      }
    }
    EXPECT_EQ(store.peak().host, peak.host);
    EXPECT_EQ(store.peak().file, peak.file);
    for (int64_t c = 0; c < 3; ++c) {
      const Tensor back = ex.alloc(DType::f32, {chunks.rows(c), 128});
      behind.get(chunks.begin(c), chunks.begin(c) + chunks.rows(c), back);
      EXPECT_EQ(first_difference(ex.to_host(back), clone_host(rows(2 - c))), "");
    }
  }
}

TEST(States, AFolderThatCannotBeWrittenIsNamed) {
  Exec ex = Exec::cpu();
  StateStore store(ex, {.host = 0, .scratch = "/proc/no-such-folder"});
  States states(store, {.windows = 1, .length = 4}, DType::f32, 2);
  try {
    states.put(0, random_normal(DType::f32, {4, 2}, 1));
    FAIL() << "it wrote";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("/proc/no-such-folder"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("--scratch"), std::string::npos) << e.what();
  }
}

// A block run in one go, in two passes with everything kept between them, with everything computed again, and run on
// from where it was looked at; with all states where the ops find them, and on their way from and to host memory.
FEWBIT_DEVICE_TEST(Stream, PassesMayBeginAnywhere) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/llama");
  const Checkpoint c = Checkpoint::open(reference("goldens/models/llama"));
  const Chunks chunks{.windows = 3, .length = 1500};
  const std::vector<BlockOp>& ops = c.spec.block(0);
  const BlockWeights weights = load_block(ex, c, 0, {.dtype = DType::f32}, nullptr);
  const RopeTables ropes(ex, c.spec, chunks.length);
  std::vector<int32_t> ids(static_cast<size_t>(chunks.tokens()));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7919) % static_cast<size_t>(c.spec.vocab));
  StateRoom room;
  const auto run = [&](const std::vector<std::pair<size_t, std::optional<size_t>>>& passes) {  // to where, cut
    StateStore store(ex, room);
    Stream stream(store, c.spec, chunks, DType::f32);
    for (int64_t i = 0; i < chunks.count(); ++i)
      stream.start(i, embed_rows(ex, c,
                                 std::span(ids).subspan(static_cast<size_t>(chunks.begin(i)),
                                                        static_cast<size_t>(chunks.rows(i))),
                                 DType::f32));
    stream.begin_block(ops);
    for (const auto& [to, cut] : passes) {
      for (int64_t i = 0; i < chunks.count(); ++i) {
        stream.bring(i, to, weights, ropes, cut);
        if (cut && *cut > to) stream.run_on(i, to, *cut, weights, ropes);
      }
      stream.let_go();
      if (cut) stream.moved(*cut);
    }
    const Tensor x = ex.alloc(DType::f32, {chunks.tokens(), c.spec.hidden});
    stream.x().get(0, chunks.tokens(), x);
    return ex.to_host(x);
  };
  const Tensor whole = run({{ops.size(), ops.size()}});
  for (const bool away : {false, true}) {
    if (away) room = {.device = 0, .ahead = true};
    for (size_t at = 1; at < ops.size(); ++at) {
      EXPECT_EQ(first_difference(run({{at, ops.size()}}), whole), "") << "run on from " << at;
      EXPECT_EQ(first_difference(run({{at, at}, {ops.size(), ops.size()}}), whole), "") << "kept in front of " << at;
      EXPECT_EQ(first_difference(run({{at, {}}, {ops.size(), ops.size()}}), whole), "") << "from 0, after " << at;
      EXPECT_EQ(first_difference(run({{at, cheapest_cut(ops, 0, at)}, {ops.size(), ops.size()}}), whole), "") << at;
    }
  }
}

TEST(Cuts, OnlyTheResidualStreamLivesAtTheCheapest) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/llama");
  const Checkpoint c = Checkpoint::open(reference("goldens/models/llama"));
  const std::vector<BlockOp>& ops = c.spec.block(0);
  EXPECT_EQ(cheapest_cut(ops, 0, ops.size()), ops.size());
  std::vector<size_t> cuts;
  for (size_t at = 1; at <= ops.size(); ++at)
    if (cheapest_cut(ops, at - 1, at)) cuts.push_back(at);
  ASSERT_EQ(cuts.size(), 2u) << "behind attention's addition and at the end";
  EXPECT_TRUE(std::holds_alternative<AddTo>(ops[cuts[0] - 1]));
  for (const size_t at : cuts) EXPECT_EQ(features_alive(c.spec, ops, at), 0);
}

}  // namespace
}  // namespace fewbit::test
