// Rotary embeddings of configs: both spellings, scalings by hand, LongRoPE and what it refuses.
#include <cmath>

#include "src/model/checkpoint.h"
#include "tests/model/archs_fixture.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

TEST(Archs, BothSpellingsGiveTheSameRotation) {
  const json llama3 = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 32}};
  const json yarn = {{"factor", 4.0}, {"original_max_position_embeddings", 128}};
  for (const auto& [type, scaling] : std::initializer_list<std::pair<std::string, json>>{
           {"default", json::object()}, {"linear", {{"factor", 2.0}}}, {"llama3", llama3}, {"yarn", yarn}}) {
    json older = llama(), oldest = llama(), newer = llama();
    older["rope_theta"] = oldest["rope_theta"] = 5e5;
    older["rope_scaling"] = oldest["rope_scaling"] = newer["rope_parameters"] = scaling;
    older["rope_scaling"]["rope_type"] = type;
    oldest["rope_scaling"]["type"] = type;
    newer["rope_parameters"]["rope_type"] = type;
    newer["rope_parameters"]["rope_theta"] = 5e5;
    const Rope a = ops<Rope>(spec_of(older), 0)[0], b = ops<Rope>(spec_of(newer), 0)[0],
               c = ops<Rope>(spec_of(oldest), 0)[0];
    EXPECT_EQ(a.params.inv_freq, b.params.inv_freq) << type;
    EXPECT_EQ(a.params.inv_freq, c.params.inv_freq) << type;
    EXPECT_EQ(a.params.attention_scale, b.params.attention_scale) << type;
    EXPECT_EQ(a.params.inv_freq.size(), 8u);
    EXPECT_EQ(a.params.inv_freq[0], type == "linear" ? 0.5f : 1.f) << type;
    EXPECT_EQ(a.params.attention_scale == 1.f, type != "yarn");
  }
}

// Six of eight features turn: theta^(-2i/6) = 1, 0.01, 0.0001 of theta = 1e6.
json long_rope() {
  json c = llama();
  c["architectures"] = {"Phi3ForCausalLM"};
  c["head_dim"] = 8;
  c["rope_theta"] = 1e6;
  c["partial_rotary_factor"] = 0.75;
  c["max_position_embeddings"] = 512;
  c["original_max_position_embeddings"] = 32;
  c["rope_scaling"] = {{"type", "longrope"}, {"short_factor", {1.0, 1.25, 2}}, {"long_factor", {1.5, 4.0, 32.0}}};
  return c;
}

TEST(Archs, LongRopeByHand) {
  const auto params = [](const json& config) { return ops<Rope>(spec_of(config), 0)[0].params; };
  json c = long_rope();
  const RopeParams p = params(c);
  ASSERT_EQ(p.inv_freq.size(), 3u);
  ASSERT_EQ(p.long_inv_freq.size(), 3u);
  const float within[] = {1.f, 0.01f / 1.25f, 0.0001f / 2}, beyond[] = {1 / 1.5f, 0.01f / 4, 0.0001f / 32};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FLOAT_EQ(p.inv_freq[i], within[i]);
    EXPECT_FLOAT_EQ(p.long_inv_freq[i], beyond[i]);
  }
  EXPECT_EQ(p.original_positions, 32);
  EXPECT_FLOAT_EQ(p.attention_scale, std::sqrt(1 + 4.f / 5));  // ln(512 / 32) / ln 32 = 4 / 5
  EXPECT_EQ(&p.table(32), &p.inv_freq);
  EXPECT_EQ(&p.table(33), &p.long_inv_freq);
  EXPECT_FALSE(turns_long(spec_of(c), 32));
  EXPECT_TRUE(turns_long(spec_of(c), 33));
  EXPECT_NE(describe(spec_of(c)).find("up to 32 positions and one for longer ones, cos and sin times 1.34164"),
            std::string::npos);
  // Two earlier names of the type, and the newer spelling, which has all in one object.
  json su = c, yarn = c, newer = llama();
  su["rope_scaling"]["type"] = "su";
  yarn["rope_scaling"]["type"] = "yarn";
  newer["architectures"] = {"Phi3ForCausalLM"};
  newer["head_dim"] = 8;
  newer["rope_parameters"] = c["rope_scaling"];
  newer["rope_parameters"].erase("type");
  newer["rope_parameters"].update({{"rope_type", "longrope"},
                                   {"rope_theta", 1e6},
                                   {"partial_rotary_factor", 0.75},
                                   {"original_max_position_embeddings", 32}});
  for (const json& other : {su, yarn, newer}) {
    EXPECT_EQ(params(other).inv_freq, p.inv_freq);
    EXPECT_EQ(params(other).long_inv_freq, p.long_inv_freq);
    EXPECT_EQ(params(other).attention_scale, p.attention_scale);
    EXPECT_EQ(params(other).original_positions, 32);
  }
  newer["original_max_position_embeddings"] = 64;  // the root's goes first
  EXPECT_EQ(params(newer).original_positions, 64);
  // A factor goes before the ratio of the contexts, attention_factor before both.
  c["rope_scaling"]["factor"] = 2.0;
  EXPECT_FLOAT_EQ(params(c).attention_scale, std::sqrt(1 + 1.f / 5));
  c["rope_scaling"]["factor"] = 0.5;
  EXPECT_EQ(params(c).attention_scale, 1.f);
  c["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(params(c).attention_scale, 1.5f);
  c = long_rope();
  c["max_position_embeddings"] = 32;
  EXPECT_EQ(params(c).attention_scale, 1.f);
  EXPECT_EQ(params(llama()).original_positions, 0);  // one table, however long the run
  EXPECT_FALSE(turns_long(spec_of(llama()), 1 << 20));
  EXPECT_EQ(long_rope_line(spec_of(llama()), 1 << 20), "");
}

TEST(Archs, LongRopeThatCannotBeIsRefused) {
  const auto refused = [](const char* key, const json& value) {
    json c = long_rope();
    c["rope_scaling"][key] = value;
    return refusal(c, ErrorKind::checkpoint);
  };
  EXPECT_EQ(refused("short_factor", {1.0, 2.0}),
            "config.json: rope_scaling.short_factor: expected 3 positive numbers, found 2 entries");
  EXPECT_EQ(refused("long_factor", nullptr),
            "config.json: rope_scaling.long_factor: expected 3 positive numbers, found nothing");
  EXPECT_EQ(refused("long_factor", 4.0),
            "config.json: rope_scaling.long_factor: expected 3 positive numbers, found 4.0");
  EXPECT_EQ(refused("long_factor", {1.0, 0.0, 2.0}),
            "config.json: rope_scaling.long_factor[1]: expected a number above 0, found 0.0");
  EXPECT_EQ(refused("short_factor", {1.0, 1.0, "2"}),
            "config.json: rope_scaling.short_factor[2]: expected a number above 0, found \"2\"");
  EXPECT_TRUE(says(refused("attention_factor", -1.0), {"rope_scaling.attention_factor: expected a number above 0"}));
  json c = long_rope();
  c.erase("original_max_position_embeddings");
  EXPECT_EQ(refusal(c, ErrorKind::checkpoint),
            "config.json: rope_scaling.original_max_position_embeddings: expected an integer, found nothing");
  c["original_max_position_embeddings"] = 1;
  EXPECT_EQ(refusal(c, ErrorKind::checkpoint),
            "config.json: original_max_position_embeddings: expected an integer above 1, found 1");
  c = long_rope();
  c["rope_scaling"]["long_mscale"] = 1.2;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"rope_scaling.long_mscale is not supported"}));
}

TEST(Archs, ScaledRotationsByHand) {
  json c = llama();
  c["head_dim"] = 8;
  c["rope_theta"] = 10000.0;  // inv_freq 1, 0.1, 0.01, 0.001: wavelengths 6.28, 62.8, 628, 6283
  const auto freqs = [&] { return ops<Rope>(spec_of(c), 0)[0].params; };
  // High frequency below 32 / 4 = 8, low above 32 / 1 = 32.
  c["rope_scaling"] = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 32}};
  EXPECT_FLOAT_EQ(freqs().inv_freq[0], 1.f);
  EXPECT_FLOAT_EQ(freqs().inv_freq[1], 0.1f / 8);
  EXPECT_FLOAT_EQ(freqs().inv_freq[3], 0.001f / 8);
  // Between 128 / 4 = 32 and 128: smooth = (128 / 62.83 - 1) / 3.
  c["rope_scaling"]["original_max_position_embeddings"] = 128;
  const double smooth = (128 / (20 * 3.14159265358979) - 1) / 3;
  EXPECT_NEAR(freqs().inv_freq[1], (1 - smooth) * 0.1 / 8 + smooth * 0.1, 1e-8);
  // YaRN: correction dims of 32 and 1 turns in 512 positions: floor(8 ln(512 / 64 pi) / (2 ln 1e4)) = 0 and
  // ceil(8 ln(512 / 2 pi) / (2 ln 1e4)) = 2; the ramp over features 0, 1, 2, 3 is 0, 1/2, 1, 1.
  c["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  EXPECT_FLOAT_EQ(freqs().inv_freq[0], 1.f);
  EXPECT_FLOAT_EQ(freqs().inv_freq[1], 0.1f * (0.5f + 0.5f / 4));
  EXPECT_FLOAT_EQ(freqs().inv_freq[2], 0.01f / 4);
  EXPECT_FLOAT_EQ(freqs().attention_scale, 0.1f * std::log(4.f) + 1);
  c["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_FLOAT_EQ(freqs().attention_scale, 1.5f);
}

}  // namespace
}  // namespace fewbit::test
