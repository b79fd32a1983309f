// Models as GGUF files: written and read back, tensor by tensor; files that are not of the architecture they
// claim; blocks that become packed linears and blocks that are decoded.
#include "src/model/gguf/checkpoint.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "formats/gguf/file.h"
#include "src/core/half.h"
#include "src/core/strings.h"
#include "src/model/archs.h"
#include "src/model/gguf/config.h"
#include "src/model/gguf/names.h"
#include "src/model/gguf/writer.h"
#include "src/model/synth/synth.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

template <class Op>
const Op& op_of(const ModelSpec& spec) {
  for (const BlockOp& op : spec.kinds.front())
    if (const Op* found = std::get_if<Op>(&op)) return *found;
  throw std::runtime_error("no such op");
}

TEST(GgufNames, LlamaRowsAreInterleavedPerHead) {
  Tensor rows = Tensor::host(DType::f32, {8, 1});  // two heads of four features
  for (int i = 0; i < 8; ++i) rows.as<float>()[i] = static_cast<float>(i);
  const GgufOrder order = paired_rows(2, 4);
  const Tensor there = reordered(rows, order, GgufDirection::to_gguf);
  const float expected[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(there.as<float>()[i], expected[i]) << i;
  EXPECT_EQ(first_difference(reordered(there, order, GgufDirection::from_gguf), rows), "");
}

TEST(GgufConfig, AWindowCutsTheContext) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/mistral-swa");
  const Checkpoint c = Checkpoint::open(reference("goldens/models/mistral-swa"));
  const gguf::Metadata m = gguf_metadata(c.config, c.spec);
  EXPECT_EQ(m.integer("llama.context_length"), 16);
  EXPECT_EQ(m.text("general.architecture"), "llama");
}

std::string refusal_of(const nlohmann::json& config) {
  const ConfigView view = ConfigView::parse(config.dump(), "config.json");
  try {
    gguf_metadata(view, build_spec(view));
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::unsupported);
    return e.what();
  }
  return "";
}

nlohmann::json tiny_config(const std::string& preset) {
  const TempDir dir;
  synthesize(dir / "m", {.preset = preset}, {});
  return nlohmann::json::parse(std::ifstream(dir / "m/config.json"));
}

TEST(GgufConfig, GemmaSaysItsWindowsCapsAndRotations) {
  const auto metadata = [](const nlohmann::json& config) {
    const ConfigView view = ConfigView::parse(config.dump(), "config.json");
    return gguf_metadata(view, build_spec(view));
  };
  const gguf::Metadata second = metadata(tiny_config("tiny-gemma2"));
  EXPECT_EQ(second.text("general.architecture"), "gemma2");
  EXPECT_EQ(second.integer("gemma2.attention.sliding_window"), 16);
  EXPECT_FALSE(second.has("gemma2.attention.sliding_window_pattern"));  // the usual one
  EXPECT_EQ(second.number("gemma2.attn_logit_softcapping"), 50);
  EXPECT_EQ(second.number("gemma2.final_logit_softcapping"), 30);
  EXPECT_EQ(second.integer("gemma2.context_length"), 2048);  // not cut: the window has a key
  nlohmann::json config = tiny_config("tiny-gemma3");
  const gguf::Metadata third = metadata(config);
  EXPECT_EQ(third.number("gemma3.rope.freq_base"), 1e6);
  EXPECT_EQ(third.number("gemma3.rope.freq_base_swa"), 1e4);
  EXPECT_FALSE(third.has("gemma3.attention.sliding_window_pattern"));
  EXPECT_FALSE(third.has("gemma3.final_logit_softcapping"));
  config["sliding_window_pattern"] = 2;
  EXPECT_EQ(metadata(config).flags("gemma3.attention.sliding_window_pattern"),
            (std::vector<bool>{true, false, true, false, true, false}));
}

TEST(GgufConfig, WhatAFileCannotSayIsRefused) {
  const auto changed = [](const char* preset, const char* key, const nlohmann::json& value) {
    nlohmann::json c = tiny_config(preset);
    EXPECT_EQ(refusal_of(c), "");
    c[key] = value;
    return refusal_of(c);
  };
  const auto says = [](const std::string& s, const char* what) { return s.find(what) != std::string::npos; };
  EXPECT_TRUE(says(changed("tiny-gemma2", "query_pre_attn_scalar", 100), "an attention scale of 0.1"));
  EXPECT_TRUE(says(changed("tiny-gemma2", "tie_word_embeddings", false), "a head that is not the embedding"));
  EXPECT_TRUE(says(changed("tiny-gemma2", "attn_logit_softcapping", nullptr), "without a soft cap"));
  EXPECT_TRUE(says(changed("tiny-gemma3", "attn_logit_softcapping", 20.0), "a soft cap on attention scores"));
  EXPECT_TRUE(says(changed("tiny-gemma3", "attention_bias", true), "the bias of self_attn.o_proj"));
  EXPECT_TRUE(says(changed("tiny", "partial_rotary_factor", 0.5), "a rotation of 16 features of 32"));
  EXPECT_EQ(changed("tiny-phi3", "partial_rotary_factor", 0.5), "");
}

// LongRoPE as llama.cpp's files have it: two tensors, the factor on cos and sin, the limit.
TEST(GgufConfig, LongRopeComesBack) {
  const TempDir dir;
  synthesize(dir / "m", {.preset = "tiny-phi3"}, {});
  nlohmann::json config = nlohmann::json::parse(std::ifstream(dir / "m/config.json"));
  nlohmann::json within = nlohmann::json::array(), beyond = within;
  for (int i = 0; i < 24; ++i) {
    within.push_back(1 + 0.1 * i);
    beyond.push_back(1.3 * (i + 1));
  }
  config["partial_rotary_factor"] = 0.75;
  config["original_max_position_embeddings"] = 128;
  config["rope_scaling"] = {{"type", "su"}, {"short_factor", within}, {"long_factor", beyond}};
  std::ofstream(dir / "m/config.json") << config;
  const Checkpoint before = Checkpoint::open(dir / "m");
  write_gguf(before, dir / "m.gguf", {}, {});
  const Checkpoint after = Checkpoint::open(dir / "m.gguf");
  const RopeParams &a = op_of<Rope>(after.spec).params, &b = op_of<Rope>(before.spec).params;
  EXPECT_GT(b.attention_scale, 1.f);
  EXPECT_EQ(a.attention_scale, b.attention_scale);
  EXPECT_EQ(a.original_positions, 128);
  for (const auto& [found, expected] : {std::pair{&a.inv_freq, &b.inv_freq}, {&a.long_inv_freq, &b.long_inv_freq}}) {
    ASSERT_EQ(found->size(), 24u);
    for (size_t i = 0; i < found->size(); ++i) EXPECT_LE(std::fabs((*found)[i] / (*expected)[i] - 1), tol::kF32Op) << i;
  }
  EXPECT_NE(a.inv_freq, a.long_inv_freq);
  write_gguf(after, dir / "again.gguf", {}, {});  // a config made from metadata says the same
  EXPECT_EQ(op_of<Rope>(Checkpoint::open(dir / "again.gguf").spec).params.long_inv_freq, a.long_inv_freq);

  const MappedFile mapped(dir / "m.gguf");
  const gguf::File f = gguf::parse(mapped.bytes(), "m.gguf");
  const auto without = [&](const std::string& tensor, const std::function<void(gguf::Metadata&)>& change,
                           ErrorKind kind) {
    std::vector<gguf::TensorToWrite> tensors;
    for (const gguf::FileTensor& t : f.tensors)
      if (t.name != tensor)
        tensors.push_back({t.name, t.type, t.shape, [&mapped, t] {
                             Tensor bytes = Tensor::host(DType::u8, {t.bytes});
                             std::copy_n(mapped.bytes().data() + t.begin, t.bytes, bytes.as<uint8_t>());
                             return bytes;
                           }});
    gguf::Metadata m = f.metadata;
    if (change) change(m);
    gguf::write(dir / "n.gguf", m, tensors);
    return message_of([&] { Checkpoint::open(dir / "n.gguf"); }, kind);
  };
  EXPECT_NE(without("rope_factors_short.weight", {}, ErrorKind::checkpoint)
                .find("tensor 'rope_factors_short.weight': expected beside rope_factors_long.weight, found nothing"),
            std::string::npos);
  EXPECT_NE(without(
                "", [](auto& m) { m.set("phi3.rope.scaling.factor", 2.f); }, ErrorKind::unsupported)
                .find("phi3.rope.scaling.factor is not supported"),
            std::string::npos);
  EXPECT_EQ(without(
                "", [](auto& m) { m.set("phi3.rope.scaling.type", std::string("longrope")); }, ErrorKind::checkpoint),
            "");

  nlohmann::json llama = tiny_config("tiny");
  llama["rope_scaling"] = {{"type", "longrope"},
                           {"original_max_position_embeddings", 128},
                           {"short_factor", std::vector<double>(16, 1)},
                           {"long_factor", std::vector<double>(16, 2)}};
  EXPECT_NE(refusal_of(llama).find("LongRoPE cannot be said in GGUF of architecture llama"), std::string::npos);
}

// A tiny dense model of the built-in shapes, with blocks for some linears.
class GgufBlocksModel : public ::testing::Test {
 protected:
  void SetUp() override {
    synthesize(dir_ / "model", {.preset = "tiny"}, {});
    source_.emplace(Checkpoint::open(dir_ / "model"));
  }
  Tensor f32(const std::string& linear) const { return to_f32(source_->store.get(linear + ".weight")); }
  void write(const std::map<std::string, const gguf::BlockType*>& types, gguf::Encoder encoder) {
    GgufContents given;
    for (const auto& [linear, type] : types)
      given[linear + ".weight"] = {type, [this, linear = linear, type = type, encoder] {
                                     return gguf::encode(*type, f32(linear), {}, encoder);
                                   }};
    write_gguf(*source_, path(), given, {});
  }
  fs::path path() const { return dir_ / "m.gguf"; }
  std::string message(const std::function<void()>& body) const {
    try {
      body();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  TempDir dir_;
  std::optional<Checkpoint> source_;
};

constexpr const char* kQ = "model.layers.0.self_attn.q_proj";
constexpr const char* kV = "model.layers.0.self_attn.v_proj";
constexpr const char* kUp = "model.layers.1.mlp.up_proj";

TEST_F(GgufBlocksModel, SimpleBlocksArePackedAndOthersDecoded) {
  write({{kQ, &gguf::type_q4_0}, {kV, &gguf::type_q4_1}, {kUp, &gguf::type_q8_0}}, gguf::Encoder::plain);
  const Checkpoint c = Checkpoint::open(path());
  EXPECT_TRUE(c.packed(kQ));
  EXPECT_FALSE(c.packed(kV));  // float minima
  EXPECT_TRUE(c.packed(kUp));
  for (const char* linear : {kQ, kUp}) {  // q's rows are interleaved in the file
    const Tensor w = f32(linear);
    const gguf::BlockType& type = linear == kQ ? gguf::type_q4_0 : gguf::type_q8_0;
    const Tensor expected = gguf::decode(type, gguf::encode(type, w, {}, gguf::Encoder::plain), w.cols());
    EXPECT_EQ(first_difference(dequantize_reference(c.unpack(linear, w.rows(), w.cols())), expected), "") << linear;
  }
  const Tensor v = f32(kV);
  EXPECT_EQ(first_difference(
                c.store.get(std::string(kV) + ".weight"),
                gguf::decode(gguf::type_q4_1, gguf::encode(gguf::type_q4_1, v, {}, gguf::Encoder::plain), v.cols())),
            "");
  EXPECT_EQ(c.store.find(std::string(kV) + ".weight")->stored, "q4_1");
  EXPECT_EQ(c.store.find(std::string(kV) + ".weight")->bytes, v.numel() / 32 * 20);
}

TEST_F(GgufBlocksModel, AnIntegerGridInQ41IsPacked) {
  QuantizedLinear q;
  q.spec = {.group = 32, .symmetric = false};
  const Tensor v = f32(kV);
  q.codes = Tensor::host_zeros(DType::u8, v.shape());
  for (int64_t i = 0; i < v.numel(); ++i) q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(i * 7 % 16);
  q.scales = Tensor::host(DType::f32, {v.rows(), v.cols() / 32});
  q.zeros = Tensor::host(DType::u8, q.scales.shape());
  for (int64_t i = 0; i < q.scales.numel(); ++i) {
    q.scales.as<float>()[i] = round_to_f16(0.01f + 0.001f * static_cast<float>(i % 13));
    q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(i % 16);
  }
  GgufContents given;
  given[std::string(kV) + ".weight"] = {&gguf::type_q4_1, [&] {
                                          PackedLinear p = packing_gguf_q4_1.pack(kV, q);
                                          return std::move(p.tensors[0].tensor);
                                        }};
  write_gguf(*source_, path(), given, {});
  const Checkpoint c = Checkpoint::open(path());
  ASSERT_TRUE(c.packed(kV));
  EXPECT_EQ(content_hash(c.unpack(kV, v.rows(), v.cols())), content_hash(q));
}

TEST_F(GgufBlocksModel, WhatIsNotOfTheArchitectureIsNamed) {
  write_gguf(*source_, path(), {}, {});
  const MappedFile mapped(path());
  gguf::File f = gguf::parse(mapped.bytes(), path().string());
  const auto rewritten = [&](const std::function<void(std::vector<gguf::TensorToWrite>&, gguf::Metadata&)>& change) {
    std::vector<gguf::TensorToWrite> tensors;
    for (const gguf::FileTensor& t : f.tensors)
      tensors.push_back({t.name, t.type, t.shape, [&mapped, t] {
                           Tensor bytes = Tensor::host(DType::u8, {t.bytes});
                           std::copy_n(mapped.bytes().data() + t.begin, t.bytes, bytes.as<uint8_t>());
                           return bytes;
                         }});
    gguf::Metadata m = f.metadata;
    change(tensors, m);
    gguf::write(dir_ / "n.gguf", m, tensors);
    return message([&] { Checkpoint::open(dir_ / "n.gguf"); });
  };
  const std::string complaints = rewritten([](auto& t, auto&) {
    t.back().name = "blk.0.surprise.weight";  // was the head, without which the model is tied
    t[1].name = "blk.0.attn_nrom.weight";
  });
  EXPECT_EQ(split(complaints, '\n').size(), 3u) << complaints;
  EXPECT_NE(complaints.find("'blk.0.surprise.weight': is no tensor of this architecture"), std::string::npos);
  EXPECT_NE(complaints.find("'blk.0.attn_norm.weight': expected [128], found nothing"), std::string::npos);
  EXPECT_NE(rewritten([](auto&, auto& m) { m.set("general.architecture", std::string("mamba")); }).find("\"mamba\""),
            std::string::npos);
  EXPECT_NE(rewritten([](auto&, auto& m) {
              m.set("llama.rope.scaling.type", std::string("longrope"));
            }).find("supported: none, linear, yarn"),
            std::string::npos);
  EXPECT_NE(rewritten([](auto&, auto& m) {
              m.set("llama.block_count", std::string("two"));
            }).find("llama.block_count: expected an integer, found string"),
            std::string::npos);
}

TEST(GgufTypes, FallBackAsLlamaCppDoes) {
  EXPECT_EQ(&gguf_type_for(gguf::type_q4_k, 512), &gguf::type_q4_k);
  EXPECT_EQ(&gguf_type_for(gguf::type_q4_k, 384), &gguf::type_q5_0);
  EXPECT_EQ(&gguf_type_for(gguf::type_q5_k, 384), &gguf::type_q5_1);
  EXPECT_EQ(&gguf_type_for(gguf::type_q6_k, 384), &gguf::type_q8_0);
  EXPECT_EQ(&gguf_type_for(gguf::type_q6_k, 100), &gguf::type_f16);
  EXPECT_EQ(&gguf_type_for(gguf::type_q4_0, 48), &gguf::type_f16);
}

}  // namespace
}  // namespace fewbit::test
