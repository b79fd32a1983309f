#include "src/quant/plan/recipe.h"

#include <gtest/gtest.h>

namespace fewbit::test {
namespace {

std::string error_of(const std::string& text) {
  try {
    resolve(parse_recipe(text));
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage) << text;
    return e.what();
  }
  return "";
}

TEST(Recipe, DefaultsAreTheContracts) {
  const FullRecipe r = resolve(parse_recipe("gptq"));
  EXPECT_EQ(r.spec, (QuantSpec{.bits = 4, .group = 128, .symmetric = true, .scale_dtype = DType::f16}));
  EXPECT_EQ(r.act_order, ActOrder::off);
  EXPECT_EQ(r.effort, Effort::standard);
  EXPECT_FLOAT_EQ(r.damp, 0.01f);
  EXPECT_EQ(r.format, "marlin");
  EXPECT_EQ(r.str(), "gptq int4 g128 sym");
}

TEST(Recipe, EveryWordIsUnderstood) {
  const FullRecipe r = resolve(parse_recipe("gptq int3 gch asym act=gar scale=bf16 damp=0.05 effort=best format=gptq"));
  EXPECT_EQ(r.spec, (QuantSpec{.bits = 3, .group = -1, .symmetric = false, .scale_dtype = DType::bf16}));
  EXPECT_EQ(r.act_order, ActOrder::gar);
  EXPECT_EQ(r.effort, Effort::best);
  EXPECT_FLOAT_EQ(r.damp, 0.05f);
  EXPECT_EQ(r.format, "gptq");
}

// What a flag says over a recipe: --bits leaves the grid to it.
TEST(Recipe, BitsAloneLeaveTheGridAsItIs) {
  const auto over = [](const char* recipe, const char* words) {
    return resolve(overlay(parse_recipe(recipe), parse_recipe(words)));
  };
  EXPECT_EQ(over("fp8", "bits=8").spec, resolve(parse_recipe("fp8")).spec);
  EXPECT_EQ(over("gptq", "bits=3 g64 asym").spec, resolve(parse_recipe("gptq int3 g64 asym")).spec);
  EXPECT_NE(error_of("gptq bits=9").find("expected 2, 3, 4 or 8"), std::string::npos);
}

TEST(Recipe, WhatItPrintsParsesToTheSame) {
  for (const char* text : {"gptq int4 g128 sym",
                           "rtn int8 gch sym",
                           "gptq int2 g32 asym act=full effort=quick",
                           "gptq int3 g64 sym damp=0.1 effort=reference",
                           "gptq int4 g-1",
                           "gptq int4 g128 sym targets=off",
                           "awq",
                           "awq+gptq int3 g64",
                           "awq int4 g128 sym effort=reference",
                           "rtn w8a8",
                           "gptq w8a8 acts=tensor",
                           "gptq int8 acts=off",
                           "fp8",
                           "fp8 block128",
                           "gptq fp8 tensor acts=tensor",
                           "fp8 acts=off",
                           "fp8 acts=tensor percentile=99.9",
                           "rtn nvfp4",
                           "rtn mxfp4 effort=reference",
                           "gptq nvfp4 acts=tensor",
                           "gptq mxfp4 acts=token",
                           "gptq int4 acts=token4 clip=0.85",
                           "rotate+gptq int4 acts=token4 clip=1",
                           "balance",
                           "rotate+balance+gptq int4 rotation=3",
                           "balance+gptq acts=token online=on"}) {
    const FullRecipe r = resolve(parse_recipe(text));
    EXPECT_EQ(resolve(parse_recipe(r.str())).str(), r.str()) << text;
  }
}

TEST(Recipe, ACacheWithScalesNeedsAFormatThatHoldsThem) {
  EXPECT_FALSE(resolve(parse_recipe("gptq")).fp8_kv_cache);
  const FullRecipe r = resolve(parse_recipe("gptq kv=fp8"));
  EXPECT_TRUE(r.fp8_kv_cache);
  EXPECT_EQ(r.format, "compressed-tensors");
  EXPECT_EQ(resolve(parse_recipe("gptq kv=fp8 format=marlin")).format, "marlin");  // which the plan refuses
  EXPECT_THROW(parse_recipe("gptq kv=int8"), Error);
  EXPECT_THROW(parse_recipe("gptq kv=fp4"), Error);
}

TEST(Recipe, FourBitFloatsSayTheirWholeGrid) {
  const FullRecipe nv = resolve(parse_recipe("rtn nvfp4")), mx = resolve(parse_recipe("rtn mxfp4"));
  EXPECT_EQ(nv.spec, kNvfp4);
  EXPECT_EQ(mx.spec, kMxfp4);
  EXPECT_EQ(nv.format, "compressed-tensors");
  EXPECT_EQ(nv.str(), "rtn nvfp4");
  const Recipe other = overlay(parse_recipe("rtn nvfp4"), parse_recipe("int8"));
  EXPECT_EQ(resolve(other).str(), "rtn int8 g128 sym") << "the group and the scales of nvfp4 go with it";
  EXPECT_EQ(resolve(overlay(parse_recipe("rtn int4 g64"), parse_recipe("nvfp4"))).spec, kNvfp4);
  EXPECT_NE(error_of("rtn nvfp4 g32").find("none of these"), std::string::npos);
  EXPECT_EQ(resolve(parse_recipe("gptq nvfp4")).spec, kNvfp4);
  EXPECT_EQ(resolve(parse_recipe("gptq w4a4")).str(), "gptq nvfp4 acts=tensor");
  EXPECT_NE(error_of("gptq nvfp4 acts=token").find("acts=tensor"), std::string::npos);
  EXPECT_NE(error_of("rtn mxfp4 acts=tensor").find("acts=token"), std::string::npos);
  EXPECT_EQ(resolve(parse_recipe("gptq mxfp4 effort=best")).str(), "gptq mxfp4 effort=best");
  EXPECT_NE(error_of("gptq nvfp4 act=gar").find("act=off"), std::string::npos);
  EXPECT_NE(error_of("gptq act=full format=gguf:q4_k").find("act=off"), std::string::npos);
  EXPECT_NE(error_of("awq mxfp4").find("rtn mxfp4"), std::string::npos);
}

TEST(Recipe, EightBitInputsHaveTheirOwnDefaults) {
  const FullRecipe r = resolve(parse_recipe("gptq w8a8"));
  EXPECT_EQ(r.str(), "gptq int8 gch sym acts=token");
  EXPECT_EQ(r.spec.scale_dtype, DType::f32);
  EXPECT_EQ(r.format, "compressed-tensors");
  EXPECT_FALSE(has(r.needs(), Needs::range));
  const FullRecipe fixed = resolve(parse_recipe("rtn w8a8 acts=tensor"));
  EXPECT_EQ(fixed.spec.activations, ActQuant::tensor);
  EXPECT_TRUE(has(fixed.needs(), Needs::range)) << "a static scale must be calibrated, even for rtn";
  EXPECT_EQ(resolve(parse_recipe("rtn w8a8 acts=off")).format, "marlin");
  EXPECT_FLOAT_EQ(resolve(parse_recipe("rtn w8a8 acts=tensor percentile=99.9")).percentile, 99.9f);
  EXPECT_NE(error_of("rtn w8a8 percentile=99.9").find("acts=tensor"), std::string::npos);
  EXPECT_NE(error_of("rtn w8a8 acts=tensor percentile=0").find("percentile"), std::string::npos);
  EXPECT_NE(error_of("rtn acts=sometimes").find("token"), std::string::npos) << "lists what there is";
}

TEST(Recipe, WhatInputsInInt4Reach) {
  EXPECT_EQ(resolve(parse_recipe("gptq int4 acts=token4")).spec.act_clip, 100) << "of turned ones the plan says more";
  const FullRecipe r = resolve(parse_recipe("gptq int4 acts=token4 clip=0.8"));
  EXPECT_EQ(r.spec.act_clip, 80);
  EXPECT_EQ(r.str(), "gptq int4 g128 sym acts=token4 clip=0.8");
  EXPECT_EQ(resolve(overlay(parse_recipe("gptq int4 acts=token4"), parse_recipe("clip=0.7"))).spec.act_clip, 70);
  EXPECT_NE(error_of("gptq w8a8 clip=0.9").find("acts=token4"), std::string::npos);
  for (const char* wrong : {"clip=0", "clip=1.1", "clip=0.855", "clip=nan", "clip=much"})
    EXPECT_NE(error_of(std::string("gptq int4 acts=token4 ") + wrong).find("whole hundredths"), std::string::npos);
}

TEST(Recipe, BalanceIsForInputsThatAreTurned) {
  const FullRecipe r = resolve(parse_recipe("balance+gptq"));
  EXPECT_EQ(r.str(), "balance+gptq int4 g128 sym acts=token4");
  EXPECT_TRUE(r.turns_inputs);
  EXPECT_NE(error_of("balance+gptq acts=off").find("acts=token4"), std::string::npos);
  EXPECT_NE(error_of("rotate+balance+gptq online=off").find("without online=off"), std::string::npos);
}

TEST(Recipe, Fp8IsAMethodAndAGrid) {
  const FullRecipe r = resolve(parse_recipe("fp8"));
  EXPECT_EQ(r.str(), "fp8 gch acts=token");
  EXPECT_EQ(r.spec.grid, Grid::f8_e4m3);
  EXPECT_EQ(r.spec.scale_dtype, DType::f32);
  EXPECT_EQ(r.format, "compressed-tensors");
  EXPECT_EQ(r.needs(), Needs::nothing) << "per output and per token need no calibration";
  EXPECT_EQ(resolve(parse_recipe("gptq fp8")).str(), "gptq fp8 gch acts=token");
  EXPECT_EQ(resolve(parse_recipe("fp8 format=marlin")).spec.activations, ActQuant::none) << "weight-only";
  EXPECT_EQ(resolve(parse_recipe("fp8 block128")).spec.out_group, 128);
  EXPECT_EQ(resolve(parse_recipe("fp8 tensor")).spec.out_group, kAllOutputs);
  EXPECT_EQ(resolve(overlay(parse_recipe("fp8"), parse_recipe("rtn int8 g128 acts=off"))).str(), "rtn int8 g128 sym");
  EXPECT_NE(error_of("rtn fp8").find("gptq fp8"), std::string::npos);
  EXPECT_NE(error_of("gptq int8 tensor").find("FP8"), std::string::npos);
  EXPECT_NE(error_of("gptq fp8 act=full").find("static"), std::string::npos);
}

TEST(Recipe, AnOverrideWinsWhereItSpeaks) {
  const Recipe r = overlay(parse_recipe("gptq int4 g128 act=gar"), parse_recipe("int8"));
  const FullRecipe f = resolve(r);
  EXPECT_EQ(f.str(), "gptq int8 g128 sym act=gar");
  EXPECT_TRUE(overlay(r, parse_recipe("keep")).keep);
}

TEST(Recipe, SmoothQuantMeansEightBitInputs) {
  EXPECT_EQ(resolve(parse_recipe("smoothquant")).str(), "smoothquant+rtn int8 gch sym acts=token");
  EXPECT_EQ(resolve(parse_recipe("smoothquant+gptq alpha=0.5 acts=tensor")).str(),
            "smoothquant+gptq int8 gch sym acts=tensor alpha=0.5");
  EXPECT_FALSE(resolve(parse_recipe("smoothquant alpha=search")).migration.alpha);
  for (const char* text : {"smoothquant alpha=2", "smoothquant alpha=x", "awq alpha=0.5", "gptq w8a8 alpha=0.5"})
    EXPECT_THROW(resolve(parse_recipe(text)), Error) << text;
}

TEST(Recipe, AChainIsTransformsAndOneMethod) {
  const FullRecipe alone = resolve(parse_recipe("awq"));
  EXPECT_EQ(alone.str(), "awq+rtn int4 g128 asym") << "plain rounding, with zero points";
  EXPECT_TRUE(has(alone.needs(), Needs::gram)) << "the transform needs statistics where rtn needs none";
  EXPECT_EQ(resolve(parse_recipe("awq+rtn")).str(), alone.str());
  EXPECT_EQ(resolve(parse_recipe("awq+gptq")).str(), "awq+gptq int4 g128 sym");
  EXPECT_EQ(resolve(parse_recipe("awq sym")).str(), "awq+rtn int4 g128 sym");
}

TEST(Recipe, AnOverrideMayChangeTheMethodButNotTheTransforms) {
  const Recipe base = parse_recipe("awq+gptq int4 g128");
  EXPECT_EQ(resolve(overlay(base, parse_recipe("rtn int8"))).str(), "awq+rtn int8 g128 asym");
  EXPECT_EQ(resolve(overlay(base, parse_recipe("awq+gptq int8"))).str(), "awq+gptq int8 g128 sym");
  EXPECT_EQ(resolve(overlay(base, parse_recipe("g64"))).str(), "awq+gptq int4 g64 sym");
  try {
    overlay(parse_recipe("gptq"), parse_recipe("awq+gptq"));
    FAIL() << "some linears of a block cannot be transformed alone";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("awq+gptq"), std::string::npos) << e.what();
  }
}

TEST(Recipe, MistakesAreNamed) {
  EXPECT_NE(error_of("gtpq").find("gtpq"), std::string::npos);
  EXPECT_NE(error_of("gptq+awq").find("behind"), std::string::npos);
  EXPECT_NE(error_of("gptq+rtn").find("behind"), std::string::npos);
  EXPECT_NE(error_of("awq+awq").find("twice"), std::string::npos);
  EXPECT_NE(error_of("smoothquantt").find("smoothquantt"), std::string::npos);
  EXPECT_NE(error_of("gptq target-bits=4.25").find("auto"), std::string::npos);
  EXPECT_NE(error_of("auto target-bits=20").find("20"), std::string::npos);
  EXPECT_NE(error_of("gptq g0").find("g0"), std::string::npos);
  EXPECT_NE(error_of("gptq int9").find("int9"), std::string::npos);
  EXPECT_NE(error_of("gptq act=sideways").find("gar"), std::string::npos);
  EXPECT_NE(error_of("gptq colour=red").find("colour"), std::string::npos);
  EXPECT_NE(error_of("gptq damp=2").find("2"), std::string::npos);
  EXPECT_NE(error_of("int4 g128").find("method"), std::string::npos);
  EXPECT_NE(error_of("rtn act=full").find("act=full"), std::string::npos);
  EXPECT_NE(error_of("gptq rtn").find("chain"), std::string::npos);
}

TEST(Recipe, AGgufTypeDecidesTheGrid) {
  const FullRecipe k = resolve(parse_recipe("rtn format=gguf:q4_k"));
  EXPECT_EQ(k.blocks, &gguf::type_q4_k);
  EXPECT_EQ(k.format, "gguf");
  EXPECT_EQ(k.spec, (QuantSpec{.bits = 4, .group = 32, .symmetric = false}));
  EXPECT_EQ(k.str(), "rtn int4 g32 asym format=gguf:q4_k");
  EXPECT_EQ(resolve(parse_recipe(k.str())).blocks, k.blocks);
  EXPECT_EQ(resolve(parse_recipe("gptq format=gguf")).blocks, &gguf::type_q4_0);
  EXPECT_EQ(resolve(parse_recipe("gptq asym format=gguf")).blocks, &gguf::type_q4_1);
  EXPECT_EQ(resolve(parse_recipe("rtn int8 format=gguf")).blocks, &gguf::type_q8_0);
  EXPECT_EQ(resolve(parse_recipe("rtn int6 format=gguf")).blocks, &gguf::type_q6_k);
  EXPECT_NE(error_of("rtn int3 asym format=gguf").find("no type of int3"), std::string::npos);
  EXPECT_NE(error_of("rtn g128 format=gguf:q4_0").find("gguf:q4_0 is int4 g32 sym"), std::string::npos);
  EXPECT_NE(error_of("rtn format=gguf:q9").find("q5_k"), std::string::npos);
  EXPECT_NE(error_of("rtn format=gguf:q9_k").find("unknown TYPE of gguf:TYPE \"q9_k\""), std::string::npos);
  EXPECT_NE(error_of("rtn format=gguf:f16").find("convert to gguf:f16"), std::string::npos);
  EXPECT_NE(error_of("auto format=gguf").find("name a type and a method"), std::string::npos);
  EXPECT_NE(error_of("rtn format=gptq:q4_0").find("only gguf takes a type"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
