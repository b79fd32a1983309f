// The scales of an FP8 cache: every spelling, what is written is read, what cannot be a scale is named.
#include "formats/kv_scales.h"

#include <map>

#include "src/core/half.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

Tensor f32(Shape shape, std::vector<float> values) { return Tensor::host_from<float>(DType::f32, shape, values); }

std::optional<KvScales> read(const std::map<std::string, Tensor>& tensors) {
  return read_kv_scales("l.self_attn", 2, [&](const std::string& name) -> ConstTensorView {
    const auto it = tensors.find(name);
    return it == tensors.end() ? ConstTensorView{} : it->second.view();
  });
}

TEST(KvScales, WhatIsWrittenIsReadBack) {
  for (const KvScales& s : {KvScales{{0.25f}, {0.5f}}, KvScales{{0.25f, 1.5f}, {0.5f, 3.f}}}) {
    std::map<std::string, Tensor> tensors;
    for (NamedTensor& t : kv_scale_tensors("l.self_attn", s)) tensors[t.name] = std::move(t.tensor);
    EXPECT_EQ(tensors.at("l.self_attn.k_scale").shape(), s.k.size() == 1 ? Shape({1}) : Shape({2, 1, 1}));
    const auto found = read(tensors);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->k, s.k);
    EXPECT_EQ(found->v, s.v);
  }
  EXPECT_FALSE(read({}));
}

TEST(KvScales, OtherSpellings) {
  std::map<std::string, Tensor> tensors;
  tensors["l.self_attn.k_proj.k_scale"] = f32({}, {0.5f});  // ModelOpt: a scalar; one serves both
  EXPECT_EQ(read(tensors)->v, std::vector<float>{0.5f});
  tensors["l.self_attn.v_proj.output_scale"] = f32({1}, {2});
  EXPECT_EQ(read(tensors)->v, std::vector<float>{2});
  const std::vector<bf16> half = {bf16(0.125f)};
  tensors["l.self_attn.v_scale"] = Tensor::host_from<bf16>(DType::bf16, {1}, half);
  EXPECT_EQ(read(tensors)->v, std::vector<float>{0.125f});
}

TEST(KvScales, WhatCannotBeAScaleIsNamed) {
  const auto message = [](Shape shape, std::vector<float> values) -> std::string {
    std::map<std::string, Tensor> tensors;
    tensors["l.self_attn.k_scale"] = f32(shape, std::move(values));
    try {
      read(tensors);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message({3}, {1, 1, 1}).find("l.self_attn.k_scale': expected one scale or one for each of 2 heads"),
            std::string::npos);
  for (const float bad : {0.f, -1.f, INFINITY, NAN})
    EXPECT_NE(message({1}, {bad}).find("expected positive scales"), std::string::npos) << bad;
}

}  // namespace
}  // namespace fewbit::test
