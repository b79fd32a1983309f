// Ragged batches over pages: against the engine with one length for all, against themselves cut otherwise, and what
// sequences hold.
#include "src/run/paged/paged_engine.h"

#include <fmt/format.h>

#include <cstring>

#include "kernels/cpu/tile_product.h"
#include "src/model/archs.h"
#include "src/model/synth/synth.h"
#include "src/run/engine.h"
#include "tests/run/demo.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

constexpr KvType kCaches[] = {KvType::plain, KvType::fp8, KvType::fp8_plain, KvType::int8, KvType::int4};

Tensor copied(ConstTensorView t) { return clone_host(t); }

// Logits of every one of the ids, fed in pieces of `piece`.
Tensor logits_of(PagedEngine& engine, const std::vector<int32_t>& ids, int64_t piece) {
  PagedCache& cache = engine.cache();
  const int sequence = cache.begin();
  Tensor all = Tensor::host(DType::f32, {std::ssize(ids), engine.spec().vocab});
  for (int64_t at = 0; at < std::ssize(ids); at += piece) {
    const int64_t n = std::min(piece, std::ssize(ids) - at);
    EXPECT_TRUE(cache.grow(sequence, at + n));
    const NewTokens work{sequence, {ids.data() + at, static_cast<size_t>(n)}, 0};
    const ConstTensorView logits = engine.pass({&work, 1});
    cache.forget(sequence);
    std::memcpy(all.view().row_range(at, at + n).data, logits.data, static_cast<size_t>(logits.bytes()));
  }
  cache.end(sequence);
  EXPECT_EQ(cache.pages_held_in_all(), 0);
  return all;
}

// Token by token, the pages give the bits of the engine with one piece of memory for each sequence.
TEST(PagedEngine, ASequenceAloneHasTheBitsOfTheEngine) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  const std::vector<int32_t> ids = random_ids(37, 11);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const KvType kv : kCaches) {
      const LoadOptions load{.dtype = dtype, .kv_cache = kv};
      Engine engine(ex, c, {.load = load, .capacity = 64});
      PagedEngine paged(ex, c, {.load = load, .pages = 4, .sequences = 1, .longest = 64});
      const Tensor found = logits_of(paged, ids, 5);
      for (int64_t i = 0; i < std::ssize(ids); ++i) {
        const std::span<const int32_t> next(ids.data() + i, 1);
        const ConstTensorView row =
            i == 0 ? engine.prefill(next) : engine.decode(Tensor::host_from<int32_t>(DType::i32, {1}, next));
        ASSERT_EQ(first_difference(found.view().row_range(i, i + 1), row), "")
            << name_of(dtype) << ", " << name_of(kv) << ", position " << i;
      }
    }
}

// Three sequences of different lengths, mixed in every pass and cut differently, have the bits that they have alone.
void ragged_equals_alone(const Checkpoint& c, const LoadOptions& load, const std::string& what) {
  Exec ex = Exec::cpu();
  const PagedOptions options{.load = load, .pages = 16, .sequences = 4, .longest = 64, .pass = 32};
  PagedEngine engine(ex, c, options);
  std::vector<std::vector<int32_t>> ids;
  std::vector<Tensor> alone;
  std::vector<int> sequences;
  const auto vocab = static_cast<int32_t>(c.spec.vocab);
  for (const int64_t n : {41, 7, 23}) {
    for (int32_t& id : ids.emplace_back(random_ids(n, static_cast<uint64_t>(n)))) id %= vocab;
    alone.push_back(logits_of(engine, ids.back(), 9));
  }
  for (size_t i = 0; i < ids.size(); ++i) sequences.push_back(engine.cache().begin());
  Rng rng(5, "cuts");
  std::vector<int64_t> done(3, 0);
  for (int pass = 0; done[0] < 41 || done[1] < 7 || done[2] < 23; ++pass) {
    std::vector<NewTokens> work;
    for (const size_t i : {2u, 0u, 1u}) {
      const int64_t n = std::min<int64_t>(static_cast<int64_t>(rng.below(12)), std::ssize(ids[i]) - done[i]);
      if (n == 0) continue;
      ASSERT_TRUE(engine.cache().grow(sequences[i], done[i] + n));
      work.push_back({sequences[i], {ids[i].data() + done[i], static_cast<size_t>(n)}, 0});
    }
    if (work.empty()) continue;
    const ConstTensorView logits = engine.pass(work);
    int64_t row = 0;
    for (const NewTokens& w : work) {
      const size_t i = static_cast<size_t>(std::ranges::find(sequences, w.sequence) - sequences.begin());
      const int64_t n = std::ssize(w.ids);
      ASSERT_EQ(first_difference(logits.row_range(row, row + n), alone[i].view().row_range(done[i], done[i] + n)), "")
          << what << ", sequence " << i << " from " << done[i];
      engine.cache().forget(w.sequence);
      row += n, done[i] += n;
    }
  }
  for (const int s : sequences) engine.cache().end(s);
  EXPECT_EQ(engine.cache().pages_held_in_all(), 0) << what;
}

TEST(PagedEngine, RowsDoNotDependOnTheRowsBesideThem) {
  const Checkpoint c = Checkpoint::open(demo());
  for (const KvType kv : kCaches)
    ragged_equals_alone(c, {.dtype = DType::bf16, .kv_cache = kv}, std::string(name_of(kv)));
  ragged_equals_alone(c, {.dtype = DType::f32}, "f32");
}

// Prompts of many rows in one slice, where all products take any number alike; else, and in f32, eight at a time.
TEST(PagedEngine, ManyRowsInASliceHaveTheBitsOfOne) {
  Exec ex = Exec::cpu();
  const TempDir dir;
  const std::vector<int32_t> ids = random_ids(70, 3);
  for (const char* format : {"bf16", "marlin", "fp8", "int8"}) {
    synthesize(dir / format, {.preset = "tiny", .format = format}, {});
    const Checkpoint c = Checkpoint::open(dir / format);
    std::vector<int32_t> own = ids;
    for (int32_t& id : own) id %= static_cast<int32_t>(c.spec.vocab);
    for (const DType dtype : {DType::bf16, DType::f32}) {
      PagedEngine engine(ex, c, {.load = {.dtype = dtype}, .pages = 8, .sequences = 1, .longest = 80, .pass = 80});
      if (dtype == DType::bf16 && cpu::has_tiles()) {
        EXPECT_EQ(engine.rows_of_slice(), kRowsInTiles) << format;
      }
      const Tensor one = logits_of(engine, own, 1);
      for (const int64_t piece : {9, 20, 70})
        ASSERT_EQ(first_difference(logits_of(engine, own, piece), one), "") << format << " by " << piece;
    }
  }
}

// The kinds of memory that a model may have: windows, chunks, states, latents, chosen keys, shared keys, and keys of
// other layers.
TEST(PagedEngine, EveryKindOfLayerKeepsThatPromise) {
  const TempDir dir;
  for (const char* family :
       {"Gemma3ForCausalLM", "GptOssForCausalLM", "Llama4ForConditionalGeneration", "Qwen3NextForCausalLM",
        "GraniteMoeHybridForCausalLM", "Lfm2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM", "Gemma4ForConditionalGeneration", "KimiLinearForCausalLM"}) {
    SynthOptions o;
    o.config = tiny_config_of(family).dump();
    synthesize(dir / family, o, {});
    const Checkpoint c = Checkpoint::open(dir / family);
    ragged_equals_alone(c, {.dtype = DType::bf16}, family);
    if (latent_attention_of(c.spec.block(0)))
      ragged_equals_alone(c, {.dtype = DType::bf16, .kv_cache = KvType::fp8}, std::string(family) + ", fp8");
  }
}

// A packed checkpoint: the products of few rows of every kind of linear.
TEST(PagedEngine, PackedLinearsKeepThatPromise) {
  const TempDir dir;
  for (const char* format : {"marlin", "fp8", "compressed-tensors"}) {
    SynthOptions o;
    o.config = tiny_config_of("LlamaForCausalLM").dump();
    o.format = format;
    synthesize(dir / format, o, {});
    ragged_equals_alone(Checkpoint::open(dir / format), {.dtype = DType::bf16}, format);
  }
}

TEST(PagedCache, AWindowLetsGoOfWhatNobodySees) {
  Exec ex = Exec::cpu();
  const TempDir dir;
  SynthOptions o;
  o.config = tiny_config_of("Gemma3ForCausalLM").dump();
  synthesize(dir / "m", o, {});
  const Checkpoint c = Checkpoint::open(dir / "m");
  int64_t window = 0;
  for (const auto& block : c.spec.kinds) window = std::max(window, attention_of(block)->window);
  ASSERT_GT(window, 0);
  PagedCache cache(ex, c.spec, {.pages = 64, .sequences = 2, .pass = 16});
  ASSERT_EQ(cache.groups(), 2u);
  const int s = cache.begin();
  for (int64_t n = 16; n <= 640; n += 16) {
    ASSERT_TRUE(cache.grow(s, n));
    cache.set_length(s, n);
    cache.forget(s);
    EXPECT_EQ(cache.pages_held(0), n / 16);
    EXPECT_LE(cache.pages_held(1), pages_for(window) + 1);
  }
  cache.end(s);
  EXPECT_EQ(cache.pages_held_in_all(), 0);
}

TEST(PagedCache, WhoAppendsToASharedPageGetsACopyOfIt) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  PagedEngine engine(ex, c, {.load = {.dtype = DType::bf16}, .pages = 8, .sequences = 3, .longest = 64});
  PagedCache& cache = engine.cache();
  const std::vector<int32_t> ids = random_ids(30, 3), others = random_ids(9, 4);
  const auto feed = [&](int s, std::span<const int32_t> tokens) {
    EXPECT_TRUE(cache.grow(s, cache.length(s) + std::ssize(tokens)));
    const NewTokens work{s, tokens, 0};
    return copied(engine.pass({&work, 1}));
  };
  const int parent = cache.begin();
  feed(parent, {ids.data(), 21});
  const int child = cache.fork(parent);
  EXPECT_EQ(cache.pages_held(), 2);
  feed(child, others);  // into the parent's half full page
  EXPECT_EQ(cache.pages_held(), 3);
  const Tensor after = feed(parent, {ids.data() + 21, 9});
  cache.end(child);
  cache.end(parent);
  const Tensor alone = logits_of(engine, ids, 30);
  EXPECT_EQ(first_difference(after, alone.view().row_range(21, 30)), "");
}

TEST(PagedCache, RefusesWithoutAChangeWherePagesDoNotSuffice) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  PagedCache cache(ex, c.spec, {.pages = 3, .sequences = 2});
  const int a = cache.begin(), b = cache.begin();
  EXPECT_EQ(cache.begin(), -1);
  ASSERT_TRUE(cache.grow(a, 20));
  EXPECT_FALSE(cache.grow(b, 17));
  EXPECT_EQ(cache.pages_held(), 2);
  EXPECT_TRUE(cache.grow(b, 16));
  cache.end(a);
  cache.end(b);
  EXPECT_EQ(cache.pages_held(), 0);
}

}  // namespace
}  // namespace fewbit::test
