// What `runner plan` counts against what is really allocated and read, and how its figures hang together.
#include "src/run/plan/serving_plan.h"

#include <gtest/gtest.h>

#include "kernels/choice/kernel_choice.h"
#include "src/model/synth/synth.h"
#include "src/run/engine.h"
#include "src/run/paged/paged_cache.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

constexpr KvType kCaches[] = {KvType::plain, KvType::fp8, KvType::fp8_plain, KvType::int8, KvType::int4};

ServingJob job_of(const char* gpu = "h200") { return {.gpu = &gpu_model(gpu), .context = 256, .prompt = 128}; }

ServingPlan plan_of(const char* preset, const ServingJob& job) {
  const Checkpoint c = shape_only({.preset = preset});
  return plan_serving(served(c), job);
}

std::vector<std::string> tiny_presets() {
  std::vector<std::string> names;
  for (const SynthPreset& p : synth_presets())
    if (p.name.starts_with("tiny")) names.emplace_back(p.name);
  return names;
}

TEST(ServingPlan, AShapeIsTheCheckpointThatSynthWrites) {
  for (const std::string& preset : tiny_presets()) {
    const TempDir dir;
    const int64_t bytes = synthesize(dir.path(), {.preset = preset}, {});
    const Checkpoint shape = shape_only({.preset = preset}), written = Checkpoint::open(dir.path());
    EXPECT_EQ(shape.store.total_bytes(), bytes) << preset;
    for (const auto& [name, t] : written.store.index().tensors) {
      ASSERT_TRUE(shape.store.find(name)) << preset << " " << name;
      EXPECT_EQ(shape.store.find(name)->shape, t.shape) << preset << " " << name;
    }
  }
}

// Weights and cache of a step of one and of three sequences, of dense families of every kind.
TEST(ServingPlan, AStepReadsWhatTheEngineSaysThatItReads) {
  for (const std::string& preset : tiny_presets())
    for (const int64_t batch : {1, 3}) {
      const TempDir dir;
      synthesize(dir.path(), {.preset = preset}, {});
      const Checkpoint c = Checkpoint::open(dir.path());
      Exec ex = Exec::cpu();
      const Engine engine(ex, c, {.batch = batch, .capacity = 64});
      ServingJob job = job_of();
      job.context = 64, job.concurrency = batch;
      const ServingPlan p = plan_serving(served(c), job);
      EXPECT_EQ(p.step.weight_bytes, engine.weight_bytes_per_token()) << preset << ", batch " << batch;
      EXPECT_EQ(p.step.cache_bytes, engine.kv_bytes_per_token(64)) << preset << ", batch " << batch;
    }
}

// Slots of a prefill of 512 tokens and of a step of 2, states of both, rows before and behind the last norm, logits,
// ids and positions.
TEST(ServingPlan, ActivationsAreTheEnginesBuffers) {
  Exec ex = Exec::cpu();
  const ModelSpec spec = shape_only({.preset = "tiny"}).spec;
  int64_t found = 2 * (128 * 2 + 512 * 4 + 4 + 4) + 2 * 128 * 2;
  for (const int64_t tokens : {512, 2}) {
    const SlotBuffers slots(ex, spec, tokens, DType::bf16);
    const Tensor x = ex.alloc(DType::bf16, {tokens, spec.width()});
    for (const TensorView& slot : slots.bind(x).slot)
      if (slot.data) found += slot.bytes();
  }
  EXPECT_EQ(activation_bytes(spec, DType::bf16, 2, 512), found);
}

TEST(ServingPlan, WeightsHeldAreThoseOfTheCheckpointInBf16) {
  for (const std::string& preset : tiny_presets()) {
    const Checkpoint c = shape_only({.preset = preset});
    const ServingMemory m = plan_serving(served(c), job_of()).memory;
    if (preset == "tiny" || preset == "tiny-gemma2") {
      EXPECT_EQ(m.weights, c.store.total_bytes()) << preset;
    }
    // Some families have small tensors in f32, or a table of the token's own.
    EXPECT_NEAR(static_cast<double>(m.weights) / static_cast<double>(c.store.total_bytes()), 1, 0.1) << preset;
  }
}

int64_t bytes_of_all(std::initializer_list<const Tensor*> tensors) {
  int64_t n = 0;
  for (const Tensor* t : tensors) n += t->empty() ? 0 : t->bytes();
  return n;
}

TEST(ServingPlan, CachesAreWhatIsAllocatedForThem) {
  Exec ex = Exec::cpu();
  for (const std::string& preset : tiny_presets()) {
    const ModelSpec spec = shape_only({.preset = preset}).spec;
    for (const KvType type : kCaches) {
      int64_t found = 0;
      for (int64_t layer = 0; layer < spec.layers; ++layer) {
        if (const Attention* a = own_attention_of(spec.block(layer))) {
          const KvStorage s = alloc_kv(ex, *a, type, DType::bf16, 1, 48);
          found += bytes_of_all({&s.k, &s.v, &s.k_scales, &s.v_scales});
        }
        const LatentStorage s = alloc_latent(ex, spec.block(layer), type, DType::bf16, 1, 48);
        found += bytes_of_all({&s.latent, &s.scales, &s.k_rope, &s.index, &s.keys, &s.far});
        for (const auto& [name, t] : alloc_recurrent(ex, spec.block(layer), DType::bf16, 1)) found += t.bytes();
      }
      EXPECT_EQ(contiguous_cache_bytes(spec, {0, spec.layers}, type, DType::bf16, 48), found)
          << preset << ", " << name_of(type);
    }
  }
}

// Three pages for 48 positions, of a model whose layers see all of them.
TEST(ServingPlan, ACacheOfPagesHasTheSameBytes) {
  Exec ex = Exec::cpu();
  const ModelSpec spec = shape_only({.preset = "tiny"}).spec;
  for (const KvType type : kCaches) {
    const PagedCache pages(ex, spec, {.type = type, .pages = 3, .sequences = 1});
    EXPECT_EQ(pages.bytes(), cache_bytes(spec, {0, spec.layers}, type, DType::bf16, 48, false)) << name_of(type);
  }
}

TEST(ServingPlan, AWindowKeepsWhatIsInSight) {
  const ModelSpec spec = shape_only({.preset = "tiny-gemma3"}).spec;  // windows of 16 but in the last of six layers
  const auto cache = [&](int64_t context) {
    return cache_bytes(spec, {0, 6}, KvType::plain, DType::bf16, context, false);
  };
  const int64_t position = 2 * 2 * 64 * 2;  // keys and values of two heads of 64
  EXPECT_EQ(cache(10), 6 * 10 * position);
  EXPECT_EQ(cache(100), (5 * 16 + 100) * position);
}

TEST(ServingPlan, MoreGpusHoldLessEachAndTalk) {
  ServingJob job = job_of();
  const ServingPlan one = plan_of("llama3-8b", job);
  job.tp = 2;
  const ServingPlan two = plan_of("llama3-8b", job);
  EXPECT_EQ(2 * two.memory.cache, one.memory.cache);
  EXPECT_LT(two.memory.weights, one.memory.weights);
  EXPECT_GT(2 * two.memory.weights, one.memory.weights);  // embedding and head are on both
  EXPECT_EQ(one.step.all_reduce_ms, 0);
  // Two sums a layer, of 4,096 f32 each, half of it twice through 450 GB/s.
  EXPECT_NEAR(two.step.all_reduce_ms, 64 * (6.6e-3 + 2 * 0.6e-3 + 4096 * 4 / 450e6), 1e-6);
  EXPECT_EQ(two.active_bytes, one.active_bytes);
  job.tp = 3;
  EXPECT_THROW(plan_of("llama3-8b", job), Error);
  job.tp = 1, job.pp = 33;
  EXPECT_THROW(plan_of("llama3-8b", job), Error);
}

// One sequence keeps one of four stages busy at a time, eight keep all of them busy.
TEST(ServingPlan, APipelineIsFullOnceThereAreSequencesEnough) {
  ServingJob job = job_of();
  job.pp = 4;
  const ServingPlan one = plan_of("llama3-70b", job);
  EXPECT_GT(one.step.idle, 0.74);
  EXPECT_GT(one.prefill.idle, 0.74);
  job.concurrency = 8;
  const ServingPlan eight = plan_of("llama3-70b", job);
  EXPECT_LT(eight.step.idle, 0.1);  // the head makes the last stage the longest
  EXPECT_GT(eight.tokens_per_s, 3 * one.tokens_per_s);
}

TEST(ServingPlan, AMixtureReadsTheExpertsOfItsTokens) {
  ServingJob job = job_of();
  const ServingPlan p = plan_of("qwen3-30b-a3b", job);
  EXPECT_NEAR(static_cast<double>(p.parameters) / 1e9, 30.5, 0.1);
  EXPECT_NEAR(static_cast<double>(p.active_parameters) / 1e9, 3.0, 0.1);
  EXPECT_NEAR(static_cast<double>(p.active_bytes), 2 * static_cast<double>(p.active_parameters), 1e7);
  job.concurrency = 4;
  EXPECT_GT(plan_of("qwen3-30b-a3b", job).step.weight_bytes, 2 * p.step.weight_bytes);
}

TEST(ServingPlan, WhatFitsAndWhatItCosts) {
  ServingJob job = job_of("rtx4090");
  job.context = 8192, job.price = 0.5;
  const ServingPlan p = plan_of("llama3-8b", job);
  EXPECT_TRUE(p.fits);
  EXPECT_EQ(p.most_sequences, 6);  // of 24 GiB 2 in reserve and 15 of weights, a GiB for each sequence
  EXPECT_NEAR(p.usd_per_million_tokens, 1e6 * 0.5 / 3600 / p.tokens_per_s, 1e-9);
  job.concurrency = 7;
  EXPECT_FALSE(plan_of("llama3-8b", job).fits);
  EXPECT_EQ(plan_of("llama3-70b", job_of("rtx4090")).most_sequences, 0);
}

TEST(Gpus, EveryRowIsWholeAndHasKernels) {
  for (const GpuModel& g : gpu_models()) {
    EXPECT_FALSE(g.source.empty()) << g.name;
    EXPECT_GT(g.memory_gib * g.read_gbs * g.bf16_tflops * g.int8_tops * g.link_gbs, 0) << g.name;
    EXPECT_EQ(g.fp8_tflops > 0, g.capability >= 89) << g.name;
    EXPECT_EQ(g.fp4_tflops > 0, g.capability >= 100) << g.name;
    for (const ServedKernel& k : plan_of("llama3-8b", job_of(g.name.data())).kernels) EXPECT_FALSE(k.step.empty());
  }
}

}  // namespace
}  // namespace fewbit::test
