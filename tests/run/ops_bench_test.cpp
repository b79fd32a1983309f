// The bench of single ops: its shapes, and what its rows hold, not how fast anything is.
#include "src/run/bench/ops_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "src/core/error.h"
#include "src/run/bench/ops_bench_parts.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

const OpsModel kTiny{.name = "tiny",
                     .products = {{"qkv", 256, 512}, {"o", 256, 256}, {"gate+up", 256, 768}, {"down", 384, 256}},
                     .hidden = 256,
                     .inner = 384,
                     .vocab = 512,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 64,
                     .notes = {"a note of the model"}};

std::string written(const OpsProduct& p) { return p.name + " " + std::to_string(p.in) + "x" + std::to_string(p.out); }
std::vector<std::string> products_of(const OpsModel& m) {
  std::vector<std::string> s;
  for (const OpsProduct& p : m.products) s.push_back(written(p));
  return s;
}

TEST(OpsBench, PresetsAreTheShapesOfLlamaAndQwen) {
  const std::vector<OpsModel> all = ops_presets();
  ASSERT_EQ(all.size(), 3u);
  using Names = std::vector<std::string>;
  EXPECT_EQ(products_of(all[0]), (Names{"qkv 4096x6144", "o 4096x4096", "gate+up 4096x28672", "down 14336x4096"}));
  EXPECT_EQ(products_of(all[1]), (Names{"qkv 5120x7168", "o 5120x5120", "gate+up 5120x55296", "down 27648x5120"}));
  EXPECT_EQ(products_of(all[2]), (Names{"qkv 8192x10240", "o 8192x8192", "gate+up 8192x57344", "down 28672x8192"}));
}

// Linears of one input are one product; what a checkpoint has fused stays that.
TEST(OpsBench, AModelsProductsComeFromItsOpList) {
  ModelSpec spec;
  spec.layers = 2, spec.hidden = 256, spec.vocab = 1000;
  spec.kinds = {{Linears{Slot::h,
                         {{"self_attn.q_proj", Slot::q, 256, 256},
                          {"self_attn.k_proj", Slot::k, 64, 256},
                          {"self_attn.v_proj", Slot::v, 64, 256}}},
                 Attention{Slot::q, Slot::k, Slot::v, Slot::attn, 8, 2, 32, 1},
                 Linears{Slot::attn, {{"self_attn.o_proj", Slot::h, 256, 256}}},
                 Linears{Slot::h, {{"mlp.gate_up_proj", Slot::gate_up, 1024, 256}}},
                 Split{Slot::gate_up, {{Slot::gate, 512}, {Slot::up, 512}}},
                 GatedAct{Slot::gate, Slot::up, Slot::act, Activation::silu},
                 Linears{Slot::act, {{"mlp.down_proj", Slot::h, 256, 512}}}}};
  const OpsModel m = ops_model(spec, "mine");
  EXPECT_EQ(products_of(m),
            (std::vector<std::string>{"q+k+v 256x384", "o 256x256", "gate_up 256x1024", "down 512x256"}));
  EXPECT_EQ(m.heads, 8);
  EXPECT_EQ(m.kv_heads, 2);
  EXPECT_EQ(m.head_dim, 32);
  EXPECT_EQ(m.inner, 512);
  EXPECT_EQ(m.vocab, 1000);
  EXPECT_TRUE(m.notes.empty());
}

// Every section on one small shape; `o` says which.
OpsReport checked(Exec& ex, OpsOptions o) {
  o.models = {kTiny};
  std::vector<std::string> told;
  double last = 0;
  const OpsReport r = time_ops(
      ex, o,
      [&](const std::string&, double f) {
        EXPECT_GE(f, 0);
        EXPECT_LE(f, 1);
        last = f;
      },
      [&](const OpsReport& so_far, std::string_view section) {
        told.emplace_back(section);
        EXPECT_GT(so_far.read_gb_per_s, 0);
        EXPECT_EQ(so_far.rows.empty() ? "" : so_far.rows.back().section, section);
      });
  EXPECT_DOUBLE_EQ(last, 1) << "all rows of the last section were foreseen";
  EXPECT_EQ(told.front(), "");
  EXPECT_EQ(told.size(), 1 + (o.sections.empty() ? ops_sections().size() : o.sections.size()));
  EXPECT_EQ(r.notes.front(), "a note of the model");
  for (const OpRow& row : r.rows) {
    const std::string what = row.section + ", " + row.op + ", " + row.type;
    EXPECT_EQ(row.error, "") << what;
    EXPECT_EQ(row.model, "tiny");
    EXPECT_TRUE(std::isfinite(row.us) && row.us > 0) << what;
    EXPECT_GT(row.bytes, 0) << what;
    EXPECT_DOUBLE_EQ(row.gb_per_s, row.bytes / row.us / 1e3) << what;
    EXPECT_DOUBLE_EQ(row.read_share, row.gb_per_s / r.read_gb_per_s) << what;
    EXPECT_DOUBLE_EQ(row.tflop_per_s, row.flop / row.us / 1e6) << what;
    EXPECT_DOUBLE_EQ(row.product_share, row.tflop_per_s / r.product_tflop_per_s) << what;
    EXPECT_EQ(row.flop > 0, row.section != "small") << what;
    if (!row.peer.empty()) {
      EXPECT_GT(row.peer_us, 0) << what;
      EXPECT_DOUBLE_EQ(row.gain, row.peer_us / row.us) << what;
    }
  }
  return r;
}

constexpr int64_t kNoColdBytes = 1 << 20;  // one or a few copies: this is not about times

// The CPU runs the same code: what is laid out for the ops must fit them.
TEST(OpsBench, EverySectionMakesItsRows) {
  Exec ex = Exec::cpu();
  const OpsReport r = checked(ex, {.sections = {}, .cold_bytes = kNoColdBytes, .replays = 1, .most = 512});
  std::map<std::string, std::set<std::string>> types;
  std::map<std::string, int> peers;
  for (const OpRow& row : r.rows) types[row.section].insert(row.type), peers[row.section] += !row.peer.empty();
  EXPECT_EQ(types.size(), ops_sections().size());
  EXPECT_EQ(types["attention"], (std::set<std::string>{"bf16", "fp8", "int4", "int8"}));
  EXPECT_EQ(types["bytes"], (std::set<std::string>{"bf16", "fp8", "fp8, x unrounded", "int8"}));
  EXPECT_EQ(types["head"], (std::set<std::string>{"bf16", "fp8, x unrounded", "int4 g128"}));
  EXPECT_EQ(types["linear"], (std::set<std::string>{"int4 g128", "int8 g128"}));
  // All packed products, all bytes and heads, of bf16 our own kernel; one of two ways through a layer.
  EXPECT_EQ(peers["block"], 6);
  EXPECT_EQ(peers["linear"], 2 * 4 * 6);
  EXPECT_EQ(peers["bytes"], 4 * 7);
  EXPECT_EQ(peers["head"], 3 * 6);
  EXPECT_EQ(peers["layer"], 5);
  EXPECT_EQ(peers["small"] + peers["attention"] + peers["prefill"], 0);
  // Types of one product on as many rows are of one rotation, whose peer is measured once.
  std::map<std::string, std::set<double>> peer_us;
  for (const OpRow& row : r.rows)
    if (row.peer_us > 0) peer_us[row.section + ", " + row.op + ", " + std::to_string(row.rows)].insert(row.peer_us);
  for (const auto& [rotation, times] : peer_us) EXPECT_EQ(times.size(), 1u) << rotation;
  // Least bytes, by hand: the block's weights in 4 bits with an f16 scale for 128 of them.
  const double weights = 256 * 512 + 256 * 256 + 256 * 768 + 384 * 256;
  const auto is = [](const OpRow& row) { return row.section == "block" && row.rows == 8; };
  const auto block = std::find_if(r.rows.begin(), r.rows.end(), is);
  ASSERT_NE(block, r.rows.end());
  EXPECT_DOUBLE_EQ(block->bytes, weights / 2 + weights / 64);
  EXPECT_DOUBLE_EQ(block->flop, 2 * 8 * weights);
}

TEST(OpsBench, EverySectionMakesItsRowsOnAGpu) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  checked(ex, {.sections = {}, .cold_bytes = kNoColdBytes, .replays = 3, .most = 2048});
}

// One op that fails loses no other row.
TEST(OpsBench, AFailureIsARow) {
  Exec ex = Exec::cpu();
  const OpsOptions o{.sections = {}, .replays = 1};
  OpsReport report{.device = "any", .read_gb_per_s = 10, .product_tflop_per_s = 1, .rows = {}, .notes = {}};
  double told = 0;
  ops::OpsRun run(ex, o, report, [&](double f) { told = f; });
  run.expect(3);
  int calls = 0;
  run.add({{.op = "first", .bytes = 8}, 2, [](int64_t) { fail(ErrorKind::device, "no such form"); }});
  run.attempt({.op = "second"}, [] { fail(ErrorKind::memory, "no room"); });
  run.add({{.op = "third", .bytes = 8}, 2, [&](int64_t) { ++calls; }});
  ASSERT_EQ(report.rows.size(), 3u);
  EXPECT_EQ(report.rows[0].error, "no such form");
  EXPECT_EQ(report.rows[1].error, "no room");
  EXPECT_EQ(report.rows[2].error, "");
  EXPECT_EQ(report.rows[0].us, 0);
  EXPECT_EQ(report.rows[0].gb_per_s, 0);
  EXPECT_EQ(calls, 2 * (1 + 3 + 1)) << "once to make scratch, three to warm up, one replay";
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(run.lost());
}

// What an OpsRun needs, on the CPU: bodies run at once, in the order in which a GPU would replay their graphs.
struct InTurn {
  explicit InTurn(int replays) : options{.sections = {}, .replays = replays} {}
  ops::Timed op(
      char name, std::function<void()> also = [] {}) {
    return {{.op = std::string(1, name), .type = std::string(1, name), .bytes = 8}, 1, [this, name, also](int64_t) {
              order += name;
              also();
            }};
  }
  Exec ex = Exec::cpu();
  OpsOptions options;
  OpsReport report{.device = "any", .read_gb_per_s = 10, .product_tflop_per_s = 1, .rows = {}, .notes = {}};
  ops::OpsRun run{ex, options, report, [](double) {}};
  std::string order;
};

TEST(OpsBench, AnOpAndItsPeerRunInTurn) {
  const auto sleep = [](int ms) { return [=] { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }; };
  InTurn t(2);
  t.run.add_with_peer(t.op('p', sleep(9)), {t.op('a', sleep(6)), t.op('b', sleep(3))});
  EXPECT_EQ(t.order, "pab" + std::string("pabpabpab") + "pabpab")
      << "once to make scratch, three to warm up, two replays";
  ASSERT_EQ(t.report.rows.size(), 2u) << "a peer is no row";
  const OpRow &a = t.report.rows[0], &b = t.report.rows[1];
  EXPECT_EQ(a.op + b.op, "ab");
  // A sleep is never too short: a time that is another's would be.
  EXPECT_GE(a.us, 6000);
  EXPECT_GE(b.us, 3000);
  for (const OpRow& row : {a, b}) {
    EXPECT_EQ(row.peer, "p");
    EXPECT_GE(row.peer_us, 9000);
    EXPECT_DOUBLE_EQ(row.gain, row.peer_us / row.us);
  }
  EXPECT_EQ(a.peer_us, b.peer_us) << "one peer, measured once";
}

TEST(OpsBench, AFailureLeavesTheOthersOfItsRotation) {
  const auto no = [] { fail(ErrorKind::device, "no such form"); };
  {
    InTurn t(2);
    t.run.add_with_peer(t.op('p', no), {t.op('a'), t.op('b')});
    EXPECT_EQ(t.order, "pabababababab");
    ASSERT_EQ(t.report.rows.size(), 3u);
    EXPECT_EQ(t.report.rows[0].error, "no such form");
    for (const OpRow& row : {t.report.rows[1], t.report.rows[2]}) {
      EXPECT_EQ(row.error, "");
      EXPECT_GT(row.us, 0);
      EXPECT_EQ(row.peer_us, 0);
      EXPECT_EQ(row.gain, 0);
    }
  }
  {
    InTurn t(2);  // fails when some of its replays are timed
    int left = 5;
    t.run.add_with_peer(t.op('p'), {t.op('a', [&] { left-- > 0 ? void() : no(); }), t.op('b')});
    EXPECT_EQ(t.order, "pabpabpabpabpabpab");
    ASSERT_EQ(t.report.rows.size(), 2u);
    EXPECT_EQ(t.report.rows[0].error, "no such form");
    EXPECT_EQ(t.report.rows[0].us, 0);
    EXPECT_EQ(t.report.rows[1].error, "");
    EXPECT_GT(t.report.rows[1].us, 0);
    EXPECT_GT(t.report.rows[1].peer_us, 0);
  }
  {
    InTurn t(2);
    int left = 2;
    t.run.add_with_peer(t.op('p'), {t.op('a', [&] { left-- > 0 ? void() : no(); }), t.op('b')});
    EXPECT_EQ(t.order, "pabpabpabpbpbpb") << "no more turns after the failure";
  }
  InTurn t(1);
  t.run.add_with_peer(t.op('p', no), {t.op('a', no)});
  EXPECT_EQ(t.order, "pa");
  EXPECT_EQ(t.report.rows.size(), 2u);
  EXPECT_FALSE(t.run.lost());
}

// What the Marlin layout does not take is said and left out; the rest is timed.
TEST(OpsBench, ShapesThatDoNotPackBecomeNotes) {
  Exec ex = Exec::cpu();
  OpsOptions o{.sections = {"block", "layer", "head", "linear"}, .cold_bytes = kNoColdBytes, .replays = 1, .most = 8};
  o.models = {kTiny};
  OpsModel& m = o.models[0];
  m.products[1].out = 200, m.vocab = 500, m.inner = 200;
  const OpsReport r = time_ops(ex, o);
  std::set<std::string> ops;
  for (const OpRow& row : r.rows) {
    EXPECT_EQ(row.error, "");
    EXPECT_NE(row.section, "layer");
    ops.insert(row.section + ", " + row.op);
  }
  EXPECT_EQ(ops, (std::set<std::string>{"block, block of 3", "head, norm, head", "linear, qkv", "linear, gate+up",
                                        "linear, down"}));
  ASSERT_EQ(r.notes.size(), 4u);
  EXPECT_NE(r.notes[1].find("tiny o: 256 x 200"), std::string::npos) << r.notes[1];
  EXPECT_NE(r.notes[2].find("layer"), std::string::npos) << r.notes[2];
  EXPECT_NE(r.notes[3].find("head"), std::string::npos) << r.notes[3];
}

}  // namespace
}  // namespace fewbit::test
