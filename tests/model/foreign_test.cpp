// Checkpoints of HQQ and torchao: hand-made codes in the documented layouts, and the values that their formulas give.
#include "src/model/foreign/foreign.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/core/half.h"
#include "src/model/checkpoint.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kLinear = "model.layers.1.self_attn.v_proj";  // [128, 256] of the demo model
constexpr int64_t kOut = 128, kIn = 256, kCount = kOut * kIn;

struct Part {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
};
template <class T>
Part part(const std::string& name, const char* dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  Part p{name, dtype, std::move(shape), std::vector<char>(values.size() * sizeof(T))};
  std::memcpy(p.bytes.data(), values.data(), p.bytes.size());
  return p;
}

int code_at(int64_t i, int codes) { return static_cast<int>((i * 7 + i / 11) % codes); }
std::vector<bf16> some_bf16(int64_t n, float first, float step) {
  std::vector<bf16> v;
  for (int64_t i = 0; i < n; ++i) v.emplace_back(first + step * static_cast<float>(i % 89));
  return v;
}

// The demo model with one linear as another program stores it.
class Foreign : public ::testing::Test {
 protected:
  void write(const char* method, std::vector<Part> parts, const Json& metadata) {
    fs::remove_all(model_);
    fs::copy(in_source("calib_data/demo-model"), model_, fs::copy_options::recursive);
    Json config = Json::parse(std::ifstream(model_ / "config.json"));
    config["quantization_config"] = {{"quant_method", method}};
    std::ofstream(model_ / "config.json") << config.dump(1);
    const WeightStore demo = WeightStore::open(in_source("calib_data/demo-model"));
    for (const auto& [name, info] : demo.index().tensors) {
      if (name == kLinear + ".weight") continue;
      const ConstTensorView v = demo.get(name);
      const auto* at = static_cast<const char*>(v.data);
      std::vector<int64_t> shape;
      for (int d = 0; d < v.shape.rank(); ++d) shape.push_back(v.shape[d]);
      parts.push_back({name,
                       v.dtype == DType::bf16  ? "BF16"
                       : v.dtype == DType::f16 ? "F16"
                                               : "F32",
                       shape,
                       {at, at + v.bytes()}});
    }
    Json header;
    if (!metadata.empty()) header["__metadata__"] = metadata;
    size_t end = 0;
    for (const Part& p : parts) {
      header[p.name] = {{"dtype", p.dtype}, {"shape", p.shape}, {"data_offsets", {end, end + p.bytes.size()}}};
      end += p.bytes.size();
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::ofstream file(model_ / "model.safetensors", std::ios::binary);
    const uint64_t size = text.size();
    file.write(reinterpret_cast<const char*>(&size), 8) << text;
    for (const Part& p : parts) file.write(p.bytes.data(), static_cast<std::streamsize>(p.bytes.size()));
  }

  std::vector<Part> hqq(Part codes, const std::string& packing, int group, int axis, int64_t groups) {
    const std::vector<int64_t> shape = axis == 1 ? std::vector<int64_t>{groups, 1} : std::vector<int64_t>{1, groups};
    const auto word = [](const std::string& name, const std::string& text) {
      return part(name, "U8", {static_cast<int64_t>(text.size())}, std::vector<char>(text.begin(), text.end()));
    };
    const std::string at = kLinear + '.';
    codes.name = at + "W_q";
    return {std::move(codes),
            part(at + "scale", "BF16", shape, some_bf16(groups, 0.01f, 0.003f)),
            part(at + "zero", "BF16", shape, some_bf16(groups, 1.5f, 0.07f)),
            part<int32_t>(at + "group_size", "I32", {}, {group}),
            part<int32_t>(at + "nbits", "I32", {}, {4}),
            part<int32_t>(at + "axis", "I32", {}, {axis}),
            part<int64_t>(at + "shape", "I64", {2}, {kOut, kIn}),
            part<uint8_t>(at + "quant_scale", "U8", {}, {0}),
            part<uint8_t>(at + "quant_zero", "U8", {}, {0}),
            part<uint8_t>(at + "encoded_state_dict", "U8", {}, {1}),
            word(at + "packing", packing),
            word(at + "compute_dtype", "torch.bfloat16")};
  }

  // Of the weight that is decoded, against `value(o, i)`.
  template <class Value>
  void expect_values(const char* method, const Value& value) {
    const Checkpoint c = Checkpoint::open(model_);
    EXPECT_EQ(c.format, method);
    const ConstTensorView w = c.store.expect(kLinear + ".weight", {DType::bf16}, {kOut, kIn});
    for (int64_t i = 0; i < kCount; ++i)
      ASSERT_EQ(static_cast<float>(w.as<bf16>()[i]), round_to_bf16(value(i / kIn, i % kIn))) << method << " " << i;
  }
  static float hqq_value(int code, int64_t group) {
    const float zero = round_to_bf16(1.5f + 0.07f * static_cast<float>(group % 89));
    const float scale = round_to_bf16(0.01f + 0.003f * static_cast<float>(group % 89));
    return round_to_bf16(static_cast<float>(code) - zero) * scale;
  }

  TempDir dir_;
  fs::path model_ = dir_ / "model";
};

// Row r of the matrix of groups has the field r / (rows / 2) of its byte, the first in the high nibble.
TEST_F(Foreign, HqqOfFourBitsHasTheFirstRowsInTheHighNibbles) {
  const int64_t group = 64, rows = kCount / group;
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < kCount / 2; ++i)
    bytes.push_back(static_cast<uint8_t>(code_at(i, 16) << 4 | code_at(i + kCount / 2, 16)));
  write("hqq", hqq(part("", "U8", {rows / 2, group}, bytes), "4bit_u8", 64, 1, rows), {});
  expect_values("hqq",
                [&](int64_t o, int64_t i) { return hqq_value(code_at(o * kIn + i, 16), (o * kIn + i) / group); });
}

TEST_F(Foreign, HqqAlongTheOtherAxisHasAScaleForEachColumn) {
  const int64_t group = 64, columns = kCount / group;
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < kCount; ++i) bytes.push_back(static_cast<uint8_t>(code_at(i, 256)));
  write("hqq", hqq(part("", "U8", {group, columns}, bytes), "8bit_u8", 64, 0, columns), {});
  expect_values("hqq",
                [&](int64_t o, int64_t i) { return hqq_value(code_at(o * kIn + i, 256), (o * kIn + i) % columns); });
}

// 512 rows are 52 of ten fields; the last fields of the last eight rows are empty.
TEST_F(Foreign, HqqOfThreeBitsHasTenRowsInAWord) {
  const int64_t group = 64, rows = kCount / group, words = (rows + 9) / 10;
  std::vector<int32_t> packed(static_cast<size_t>(words * group));
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t row = i / group;
    packed[static_cast<size_t>(row % words * group + i % group)] |= code_at(i, 8) << (27 - 3 * (row / words));
  }
  write("hqq", hqq(part("", "I32", {words, group}, packed), "3bit_32", 64, 1, rows), {});
  expect_values("hqq", [&](int64_t o, int64_t i) { return hqq_value(code_at(o * kIn + i, 8), (o * kIn + i) / group); });
}

Json torchao(const char* type, std::vector<int64_t> block) {
  const Json entry = {{"_type", type},
                      {"_data", {{"block_size", block}, {"dtype", {{"_type", "torch.dtype"}, {"_data", "bfloat16"}}}}},
                      {"_tensor_data_names", {"qdata", "scale", "zero_point"}}};
  return {{kLinear + ".weight", entry.dump()}, {"tensor_names", Json::array({kLinear + ".weight"}).dump()}};
}
const std::string kPart = kLinear + "._weight_";

TEST_F(Foreign, TorchaoInt8HasAScaleForEachOutput) {
  std::vector<int8_t> codes;
  for (int64_t i = 0; i < kCount; ++i) codes.push_back(static_cast<int8_t>(code_at(i, 256) - 128));
  const auto scales = some_bf16(kOut, 0.001f, 0.0004f);
  write("torchao", {part(kPart + "qdata", "I8", {kOut, kIn}, codes), part(kPart + "scale", "BF16", {kOut, 1}, scales)},
        torchao("Int8Tensor", {1, kIn}));
  expect_values("torchao", [&](int64_t o, int64_t i) {
    return static_cast<float>(code_at(o * kIn + i, 256) - 128) * static_cast<float>(scales[static_cast<size_t>(o)]);
  });
}

TEST_F(Foreign, TorchaoIntxHasGroupsAndZeros) {
  const int64_t group = 32, groups = kIn / group;
  std::vector<int8_t> codes, zeros;
  for (int64_t i = 0; i < kCount; ++i) codes.push_back(static_cast<int8_t>(code_at(i, 16) - 8));
  for (int64_t g = 0; g < kOut * groups; ++g) zeros.push_back(static_cast<int8_t>(code_at(g, 7) - 3));
  const auto scales = some_bf16(kOut * groups, 0.01f, 0.002f);
  write("torchao",
        {part(kPart + "qdata", "I8", {kOut, kIn}, codes), part(kPart + "scale", "BF16", {kOut, groups}, scales),
         part(kPart + "zero_point", "I8", {kOut, groups}, zeros)},
        torchao("IntxUnpackedToInt8Tensor", {1, group}));
  expect_values("torchao", [&](int64_t o, int64_t i) {
    const auto g = static_cast<size_t>(o * groups + i / group);
    return static_cast<float>(code_at(o * kIn + i, 16) - 8 - zeros[g]) * static_cast<float>(scales[g]);
  });
}

TEST_F(Foreign, TorchaoInt4HasTheFirstCodeInTheLowNibble) {
  const int64_t group = 64, groups = kIn / group;
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < kCount; i += 2)
    bytes.push_back(static_cast<uint8_t>((code_at(i, 16) - 8) & 15) |
                    static_cast<uint8_t>(((code_at(i + 1, 16) - 8) & 15) << 4));
  const auto scales = some_bf16(groups * kOut, 0.01f, 0.002f), zeros = some_bf16(groups * kOut, -0.2f, 0.006f);
  write("torchao",
        {part(kPart + "qdata", "I8", {kOut, kIn / 2}, bytes), part(kPart + "scale", "BF16", {groups, kOut}, scales),
         part(kPart + "zero_point", "BF16", {groups, kOut}, zeros)},
        torchao("Int4Tensor", {1, group}));
  expect_values("torchao", [&](int64_t o, int64_t i) {
    const auto g = static_cast<size_t>(i / group * kOut + o);
    return static_cast<float>(code_at(o * kIn + i, 16) - 8) * static_cast<float>(scales[g]) +
           static_cast<float>(zeros[g]);
  });
}

TEST_F(Foreign, TorchaoFloat8IsScaledInF32) {
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < kCount; ++i) codes.push_back(static_cast<uint8_t>(code_at(i, 126) | (i % 2 << 7)));
  std::vector<float> scales;
  for (int64_t o = 0; o < kOut; ++o) scales.push_back(0.001f + 0.0001f * static_cast<float>(o));
  write("torchao",
        {part(kPart + "qdata", "F8_E4M3", {kOut, kIn}, codes), part(kPart + "scale", "F32", {kOut, 1}, scales)},
        torchao("Float8Tensor", {1, kIn}));
  expect_values("torchao", [&](int64_t o, int64_t i) {
    return f8_e4m3_to_f32(codes[static_cast<size_t>(o * kIn + i)]) * scales[static_cast<size_t>(o)];
  });
}

TEST_F(Foreign, WhatDoesNotFitIsNamed) {
  const auto said = [&](ErrorKind kind) { return message_of([&] { Checkpoint::open(model_); }, kind); };
  const std::vector<Part> parts = {part(kPart + "qdata", "I8", {kOut, kIn}, std::vector<int8_t>(kCount)),
                                   part(kPart + "scale", "BF16", {3}, some_bf16(3, 1, 0))};
  write("torchao", parts, torchao("Int8Tensor", {1, kIn}));
  EXPECT_NE(
      said(ErrorKind::checkpoint).find("_weight_scale': expected f16 or bf16 or f32 of 128 elements, found bf16 [3]"),
      std::string::npos);
  write("torchao", parts, torchao("Int8Tensor", {0, kIn}));
  EXPECT_NE(said(ErrorKind::checkpoint).find("expected blocks that divide [128, 256], found [0, 256]"),
            std::string::npos);
  write("torchao", parts, torchao("Int4TilePackedTo4dTensor", {1, 32}));
  const std::string tiles = said(ErrorKind::unsupported);
  EXPECT_NE(tiles.find("Int4TilePackedTo4dTensor is not read"), std::string::npos) << tiles;
  write("torchao", parts, {{kLinear + ".weight", R"({"_type": 3})"}});
  EXPECT_NE(said(ErrorKind::unsupported).find("metadata without a _type"), std::string::npos);
  const std::vector<uint8_t> bytes(kCount / 2);
  write("hqq", hqq(part("", "U8", {256, 64}, bytes), "4bit_u8", 48, 1, 512), {});
  EXPECT_NE(said(ErrorKind::checkpoint).find("group_size': expected a divisor of 32768, found 48"), std::string::npos);
  write("hqq", hqq(part("", "U8", {256, 64}, bytes), "8bit_u8", 64, 1, 512), {});
  EXPECT_NE(said(ErrorKind::checkpoint).find("W_q': expected 32768 bytes"), std::string::npos);
  write("hqq", hqq(part("", "U8", {256, 64}, bytes), "5bit", 64, 1, 512), {});
  EXPECT_NE(said(ErrorKind::checkpoint).find("found \"5bit\""), std::string::npos);
}

TEST(ForeignInputs, TheConfigSaysWhetherTheyAreRoundedAtRunTime) {
  const auto note = [](const Json& type, const char* method = "torchao") {
    return unrounded_inputs_note(
        Json{{"quantization_config", {{"quant_method", method}, {"quant_type", type}}}}.dump());
  };
  const auto config = [](const char* name) { return Json{{"default", {{"_type", name}, {"_data", Json::object()}}}}; };
  for (const char* name : {"Int8DynamicActivationInt8WeightConfig", "Float8DynamicActivationFloat8WeightConfig",
                           "Float8StaticActivationFloat8WeightConfig"})
    EXPECT_NE(note(config(name)).find(name), std::string::npos) << name;
  EXPECT_NE(note("int8_dynamic_activation_int8_weight"), "");
  const Json modules = {{"module_fqn_to_config", {{"_default", config("Int8DynamicActivationIntxWeightConfig")}}}};
  EXPECT_NE(note({{"default", {{"_type", "ModuleFqnToConfig"}, {"_data", modules}}}}), "");
  for (const char* name : {"Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "Int4WeightOnlyConfig"})
    EXPECT_EQ(note(config(name)), "") << name;
  EXPECT_EQ(note("int4_weight_only"), "");
  EXPECT_EQ(note(Json()), "");
  EXPECT_EQ(note(config("Int8DynamicActivationInt8WeightConfig"), "hqq"), "");
  EXPECT_EQ(unrounded_inputs_note("{}"), "");
}

}  // namespace
}  // namespace fewbit::test
