// GGUF: blocks against the bytes and values of gguf-py (goldens/gguf_reference), the searched encoders
// against the plain ones, files written and read, and damaged files.
#include <cmath>
#include <cstring>
#include <fstream>

#include "formats/gguf/block_codes.h"
#include "formats/gguf/file.h"
#include "formats/gguf/locate.h"
#include "formats/gguf/open_block.h"
#include "src/core/half.h"
#include "src/core/rng.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;
using gguf::BlockType;
using gguf::Encoder;

constexpr const char* kGoldens = "goldens/gguf_reference.safetensors";

std::string upper(std::string_view name) {
  std::string s(name);
  for (char& c : s) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return s;
}

// The goldens' tensor of bytes as rows of blocks.
Tensor blocks_of(const Golden& g, const BlockType& t, const std::string& name) {
  Tensor raw = g.get(name + ".bytes");
  const int64_t bytes = raw.bytes(), row = gguf::row_bytes(t, g.get(name + ".dequantized").shape()[-1]);
  Tensor out = Tensor::host(DType::u8, {bytes / row, row});
  std::memcpy(out.view().data, raw.view().data, static_cast<size_t>(bytes));
  return out;
}

// Names of the goldens: those of ggml, "Q4_K", "IQ4_NL".
const BlockType* type_named(const std::string& golden) {
  for (const BlockType* t : gguf::block_types())
    if (upper(t->name) == golden) return t;
  return nullptr;
}

TEST(GgufBlocks, DecodeEveryGoldenBitForBit) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden g(kGoldens);
  int checked = 0;
  for (const std::string& name : g.names()) {
    const size_t dot = name.find(".bytes");
    if (dot == std::string::npos) continue;
    const std::string golden = name.substr(0, dot);
    const BlockType* t = type_named(golden);
    ASSERT_NE(t, nullptr) << golden;
    ++checked;
    const Tensor expected = g.get(golden + ".dequantized");
    if (t->plain) {
      const Tensor raw = g.get(name);
      const ConstTensorView as_stored{raw.view().data, *t->plain, expected.shape(), {}};
      EXPECT_EQ(first_difference(to_f32(as_stored), expected), "") << golden;
      continue;
    }
    const Tensor blocks = blocks_of(g, *t, golden);
    const Tensor found = gguf::decode(*t, blocks, expected.shape()[-1]);
    EXPECT_EQ(first_difference(found.view().reshaped(expected.shape()), expected), "") << golden;
  }
  EXPECT_EQ(checked, 14);
}

TEST(GgufBlocks, PlainEncodersMatchTheReferenceBitForBit) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden g(kGoldens);
  const Tensor x = g.get("x");
  for (const char* name : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0"}) {
    const BlockType& t = gguf::block_type(name);
    EXPECT_EQ(first_difference(gguf::encode(t, x, {}, Encoder::plain), blocks_of(g, t, upper(name))), "") << name;
  }
}

TEST(GgufBlocks, TheWorkedExampleOfThePage) {
  Tensor x = Tensor::host(DType::f32, {1, 32});
  for (int i = 0; i < 32; ++i) x.as<float>()[i] = 0.5f * static_cast<float>(i % 16 - 8);
  std::vector<uint8_t> expected = {0x00, 0x38};
  for (int v = 0; v < 16; ++v) expected.push_back(static_cast<uint8_t>(v * 0x11));
  const Tensor blocks = gguf::encode(gguf::type_q4_0, x, {}, Encoder::plain);
  EXPECT_EQ(std::vector<uint8_t>(blocks.as<uint8_t>(), blocks.as<uint8_t>() + blocks.bytes()), expected);
  EXPECT_EQ(first_difference(gguf::decode(gguf::type_q4_0, blocks, 32), x), "");
}

std::vector<const BlockType*> written_types() {
  std::vector<const BlockType*> out;
  for (const BlockType* t : gguf::block_types())
    if (t->encode) out.push_back(t);
  return out;
}

// sum importance (x - decoded)^2 / sum importance x^2
double weighted_error(const BlockType& t, const Tensor& x, const Tensor& importance, Encoder encoder) {
  const Tensor blocks = gguf::encode(t, x, importance, encoder);
  const Tensor back = gguf::decode(t, blocks, x.cols());
  double error = 0, energy = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double w = importance.as<float>()[i % x.cols()], v = x.as<float>()[i];
    error += w * (v - back.as<float>()[i]) * (v - back.as<float>()[i]);
    energy += w * v * v;
  }
  return error / energy;
}

Tensor uneven_importance(int64_t cols) {
  Tensor h = random_normal(DType::f32, {cols}, 7);
  for (int64_t i = 0; i < cols; ++i) h.as<float>()[i] = std::exp(1.5f * h.as<float>()[i]);
  return h;
}

// Bytes that gguf-py 0.19.0 made of the values, some of which lie between two codes.
TEST(GgufBlocks, Mxfp4IsThatOfTheReference) {
  const auto encoded = [](int step, int modulus, float divisor) {
    Tensor x = Tensor::host(DType::f32, {1, 32});
    for (int i = 0; i < 32; ++i) x.as<float>()[i] = static_cast<float>((i * step) % modulus - modulus / 2) / divisor;
    const Tensor blocks = gguf::encode(gguf::type_mxfp4, x, {}, Encoder::plain);
    std::string hex;
    for (int64_t i = 0; i < blocks.numel(); ++i) {
      char two[3];
      std::snprintf(two, sizeof two, "%02x", blocks.as<uint8_t>()[i]);
      hex += two;
    }
    return hex;
  };
  EXPECT_EQ(encoded(37, 64, 8), "7fce519d641bd530be529ce42ac540ad53");
  EXPECT_EQ(encoded(29, 61, 3000), "762fe016e9067a966ba56cb56dc45dc35e");
}

// Every bit of a block belongs to a field, and each field comes back to its place.
TEST(GgufBlocks, OpenedBlocksCloseToTheSameBytes) {
  Rng rng(41);
  for (const BlockType* t : gguf::block_types()) {
    if (!t->open) continue;
    for (int n = 0; n < 50; ++n) {
      std::vector<uint8_t> block(static_cast<size_t>(t->bytes)), back(block.size());
      for (uint8_t& byte : block) byte = static_cast<uint8_t>(rng.next());
      // A d that is NaN would not come back; where it lies, decoding shows.
      std::vector<float> values(static_cast<size_t>(t->elements));
      t->decode(block.data(), values.data());
      if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) continue;
      t->open->store(t->open->load(block.data()), back.data());
      EXPECT_EQ(block, back) << t->name;
    }
  }
}

TEST(GgufBlocks, FloatsAsTheyLieEncodeAsTheirValues) {
  const Tensor x = random_normal(DType::f32, {11, 512}, 12);  // a remainder of rows
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    std::vector<uint8_t> bytes(static_cast<size_t>(1 + x.numel() * bytes_of(dtype)));  // at an odd address
    Tensor values = Tensor::host(DType::f32, x.shape());
    for (int64_t i = 0; i < x.numel(); ++i) {
      float& v = values.as<float>()[i] = x.as<float>()[i];
      uint16_t half = 0;
      if (dtype == DType::bf16) half = bf16(v).bits, v = bf16(v);
      if (dtype == DType::f16) half = f16(v).bits, v = f16(v);
      std::memcpy(bytes.data() + 1 + i * bytes_of(dtype), dtype == DType::f32 ? static_cast<void*>(&v) : &half,
                  static_cast<size_t>(bytes_of(dtype)));
    }
    const ConstTensorView lying{.data = bytes.data() + 1, .dtype = dtype, .shape = x.shape()};
    EXPECT_EQ(first_difference(gguf::encode(gguf::type_q4_0, lying, {}, Encoder::searched),
                               gguf::encode(gguf::type_q4_0, values, {}, Encoder::searched)),
              "")
        << name_of(dtype);
  }
}

TEST(GgufBlocks, TheSearchBeatsPlainRounding) {
  const Tensor x = random_normal(DType::f32, {32, 1024}, 3, 0.02f), h = uneven_importance(1024);
  for (const BlockType* t : written_types()) {
    const bool coarse = t->grid->bits == 8 || t == &gguf::type_mxfp4;  // little or nothing to choose
    const double plain = weighted_error(*t, x, h, Encoder::plain);
    const double searched = weighted_error(*t, x, h, Encoder::searched);
    EXPECT_LT(searched, plain * (coarse ? 1.0 : tol::kSearchedBlocks)) << t->name;
    EXPECT_LT(plain, std::pow(0.25, t->grid->bits - 1)) << t->name;  // 6 dB a bit, with room for outliers
  }
}

TEST(GgufBlocks, TheSearchIsNeverWorseThanPlainInABlock) {
  for (const float scale : {1e-6f, 1e-2f, 100.f}) {
    const Tensor x = random_normal(DType::f32, {64, 256}, 11, scale), h = uneven_importance(256);
    for (int64_t row = 0; row < 64; ++row)  // spikes, ramps and runs of zeros
      for (int64_t i = 0; i < 256; ++i)
        if (row % 4 == 1)
          x.as<float>()[row * 256 + i] *= i % 37 == 0 ? 30.f : 1.f;
        else if (row % 4 == 2)
          x.as<float>()[row * 256 + i] = scale * static_cast<float>(i);
        else if (row % 4 == 3 && i % 64 < 40)
          x.as<float>()[row * 256 + i] = 0;
    for (const BlockType* t : written_types())
      for (int64_t row = 0; row < 64; ++row) {
        const Tensor one = clone_host(x.view().row_range(row, row + 1));
        EXPECT_LE(weighted_error(*t, one, h, Encoder::searched),
                  weighted_error(*t, one, h, Encoder::plain) * (1 + 1e-6))
            << t->name << " row " << row << " scale " << scale;
      }
  }
}

TEST(GgufBlocks, ConstantBlocksAndZerosComeBack) {
  Tensor x = Tensor::host_zeros(DType::f32, {3, 256});
  std::fill_n(x.as<float>() + 256, 256, 0.5f);
  std::fill_n(x.as<float>() + 512, 256, -0.5f);
  for (const BlockType* t : written_types())
    for (const Encoder encoder : {Encoder::plain, Encoder::searched}) {
      const Tensor back = gguf::decode(*t, gguf::encode(*t, x, {}, encoder), 256);
      EXPECT_LT(relative_error(back, x), 0.01) << t->name;
      for (int64_t i = 0; i < 256; ++i) ASSERT_EQ(back.as<float>()[i], 0.f) << t->name;
    }
}

TEST(GgufBlocks, DecodedValuesOfSimpleBlocksEncodeToThemselves) {
  const Tensor x = random_normal(DType::f32, {8, 512}, 5);
  for (const BlockType* t : written_types()) {
    if (!gguf::has_codes(*t)) continue;  // a K-quant's two levels of scales are not found again exactly
    const Tensor once = gguf::decode(*t, gguf::encode(*t, x, {}, Encoder::searched), 512);
    const Tensor twice = gguf::decode(*t, gguf::encode(*t, once, {}, Encoder::searched), 512);
    EXPECT_LT(relative_error(twice, once), tol::kReencodedBlocks) << t->name;
  }
}

// --- files
// ----------------------------------------------------------------------------------------------------

using Bytes = std::vector<uint8_t>;

Bytes read_all(const fs::path& p) {
  const std::string bytes = bytes_of_file(p);
  return {bytes.begin(), bytes.end()};
}

gguf::Metadata every_kind() {
  gguf::Metadata m;
  m.set("general.architecture", std::string("llama"));
  m.set("a.u8", uint8_t{200});
  m.set("a.i16", int16_t{-5});
  m.set("a.u32", uint32_t{7});
  m.set("a.f32", 0.5f);
  m.set("a.flag", true);
  m.set("a.u64", uint64_t{1} << 40);
  m.set("a.f64", 0.25);
  m.set("a.words", gguf::Array(std::vector<std::string>{"x", "", "\xc4\xa0y"}));
  m.set("a.types", gguf::Array(std::vector<int32_t>{1, -3}));
  m.set("a.scores", gguf::Array(std::vector<float>{0.f, -1.5f}));
  m.set("a.flags", gguf::Array(std::vector<bool>{true, false}));
  return m;
}

std::vector<gguf::TensorToWrite> two_tensors(const Tensor& dense, const Tensor& blocks) {
  return {{"dense", &gguf::type_f32, {3, 5}, [&] { return clone_host(dense); }},
          {"blocks", &gguf::type_q4_0, {2, 64}, [&] { return clone_host(blocks); }}};
}

class GgufFile : public ::testing::Test {
 protected:
  void SetUp() override {
    dense_ = random_normal(DType::f32, {3, 5}, 1);
    blocks_ = gguf::encode(gguf::type_q4_0, random_normal(DType::f32, {2, 64}, 2), {}, Encoder::plain);
    gguf::write(path(), every_kind(), two_tensors(dense_, blocks_));
    bytes_ = read_all(path());
  }
  fs::path path() const { return dir_ / "m.gguf"; }
  std::string message(const Bytes& bytes, ErrorKind kind = ErrorKind::checkpoint) const {
    try {
      gguf::parse(bytes, "m.gguf");
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), kind) << e.what();
      return e.what();
    }
    return "";
  }
  // The offset of the table entry of a tensor, behind its name.
  size_t entry(const std::string& name) const {
    const auto it = std::search(bytes_.begin(), bytes_.end(), name.begin(), name.end());
    return static_cast<size_t>(it - bytes_.begin()) + name.size();
  }
  TempDir dir_;
  Tensor dense_, blocks_;
  Bytes bytes_;
};

TEST_F(GgufFile, ComesBackAsWritten) {
  const gguf::File f = gguf::parse(bytes_, "m.gguf");
  EXPECT_EQ(f.metadata.values(), every_kind().values());
  ASSERT_EQ(f.tensors.size(), 2u);
  EXPECT_EQ(f.tensors[0].shape, (Shape{3, 5}));
  EXPECT_EQ(f.tensors[1].type, &gguf::type_q4_0);
  EXPECT_EQ(f.tensors[1].bytes, 72);
  for (const gguf::FileTensor& t : f.tensors) EXPECT_EQ(t.begin % gguf::kAlignment, 0);
  EXPECT_EQ(bytes_.size() % gguf::kAlignment, 0u);
  EXPECT_EQ(std::memcmp(bytes_.data() + f.tensors[1].begin, blocks_.view().data, 72), 0);
  const CheckpointIndex index = container_for(dir_.path()).open(dir_.path());
  EXPECT_EQ(first_difference(index.view(index.tensors.at("dense")), dense_), "");
  EXPECT_EQ(first_difference(index.view(index.tensors.at("blocks")), blocks_), "");
  EXPECT_EQ(index.metadata.at("general.architecture"), "llama");
}

TEST_F(GgufFile, HeaderBytesAreThoseOfThePaper) {
  const uint8_t expected[] = {'G', 'G', 'U', 'F', 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 20, 0};
  EXPECT_EQ(std::memcmp(bytes_.data(), expected, sizeof expected), 0);
  const size_t at = entry("blocks");  // rank 2, dims {64, 2}: the contiguous one first; type 2
  const uint8_t table[] = {2, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 64};
  EXPECT_EQ(std::memcmp(bytes_.data() + at, table, sizeof table), 0);
}

TEST_F(GgufFile, TheContainerWritesWhatItReads) {
  TempDir other;
  const auto writer = container_gguf.create(other.path(), {});
  writer->add("a", dense_);
  const Tensor half = random_normal(DType::bf16, {4, 2, 3}, 9);
  writer->add("b", half);
  writer->finish();
  const CheckpointIndex index = container_gguf.open(other.path());
  EXPECT_EQ(first_difference(index.view(index.tensors.at("a")), dense_), "");
  EXPECT_EQ(first_difference(index.view(index.tensors.at("b")), half), "");
}

TEST_F(GgufFile, DamageIsNamed) {
  Bytes b = bytes_;
  b[0] = 'X';
  EXPECT_NE(message(b).find("not a GGUF file"), std::string::npos);
  b = bytes_;
  b[4] = 1;
  EXPECT_NE(message(b, ErrorKind::unsupported).find("version 2 or 3 expected, found 1"), std::string::npos);
  b = bytes_;
  std::memcpy(b.data() + 4, "\0\0\0\3", 4);
  EXPECT_NE(message(b, ErrorKind::unsupported).find("big-endian"), std::string::npos);
  b = bytes_;
  b[15] = 0x7f;  // 2^62 tensors
  EXPECT_NE(message(b).find("truncated or damaged"), std::string::npos);
  b = bytes_;
  b[entry("blocks") + 20] = 99;
  EXPECT_NE(message(b, ErrorKind::unsupported).find("'blocks': tensors of type 99"), std::string::npos);
  b = bytes_;
  b[entry("blocks") + 4] = 63;  // values in a row
  EXPECT_NE(message(b).find("rows of 63 values are no whole blocks of q4_0"), std::string::npos);
  b = bytes_;
  b[entry("blocks") + 24] = 65;  // offset
  EXPECT_NE(message(b).find("multiple of 32, found 65"), std::string::npos);
  b = bytes_;
  b[entry("blocks") + 26] = 1;
  EXPECT_NE(message(b).find("lie outside the file"), std::string::npos);
  b = bytes_;
  b[entry("blocks") + 24] = 32;
  EXPECT_NE(message(b).find("overlaps tensor 'dense'"), std::string::npos);
  b = bytes_;
  std::memcpy(b.data() + entry("a.u32") - 5, "a.i16", 5);
  EXPECT_NE(message(b).find("'a.i16': empty or there twice"), std::string::npos);
}

TEST_F(GgufFile, EveryTruncationIsRefused) {
  const gguf::File whole = gguf::parse(bytes_, "m.gguf");
  const auto end = static_cast<size_t>(whole.tensors[1].begin + whole.tensors[1].bytes);
  for (size_t n = 0; n < end; ++n)
    ASSERT_NE(message(Bytes(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(n))), "") << n;
}

TEST_F(GgufFile, NamesAndSplitFilesAreRefused) {
  const auto kind_of = [&](const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  auto tensors = two_tensors(dense_, blocks_);
  tensors[1].name = "dense";
  EXPECT_NE(kind_of([&] { gguf::write(path(), {}, tensors); }).find("written twice"), std::string::npos);
  tensors[1].name = std::string(64, 'x');
  EXPECT_NE(kind_of([&] { gguf::write(path(), {}, tensors); }).find("1 to 63 bytes"), std::string::npos);
  gguf::Metadata m;
  m.set("split.count", uint16_t{3});
  gguf::write(dir_ / "b.gguf", m, two_tensors(dense_, blocks_));
  EXPECT_NE(message(read_all(dir_ / "b.gguf"), ErrorKind::unsupported).find("one of 3 parts"), std::string::npos);
  EXPECT_NE(kind_of([&] { gguf::locate(dir_.path()); }).find("expected one .gguf file, found 2"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
