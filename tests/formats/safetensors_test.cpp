// The safetensors container: identity over write and read, the worked example byte for byte, and hostile
// files.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include "src/core/half.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

void write_file(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
std::string with_length(const std::string& header, uint64_t length) {
  std::string word(8, '\0');
  std::memcpy(word.data(), &length, 8);
  return word + header;
}
std::string raw(const std::string& header, size_t data_bytes) {
  return with_length(header, header.size()) + std::string(data_bytes, 'x');
}
std::string numbered(int i) { return fmt::format("t{}", i); }
size_t entries(const fs::path& dir) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

// One tensor of each dtype, plus an empty one and a scalar.
std::vector<std::pair<std::string, Tensor>> variety() {
  std::vector<std::pair<std::string, Tensor>> out;
  uint8_t fill = 1;
  for (const DTypeInfo& d : kDTypes) {
    Tensor t = Tensor::host(d.dtype, {3, 5});
    for (int64_t i = 0; i < t.bytes(); ++i) static_cast<uint8_t*>(t.view().data)[i] = fill++;
    out.emplace_back("layer.\"" + std::string(d.name) + "\"/\xc3\xa9", std::move(t));
  }
  out.emplace_back("empty", Tensor::host(DType::f32, {4, 0}));
  out.emplace_back("scalar", Tensor::host_zeros(DType::f16, Shape{}));
  return out;
}

void expect_same(const CheckpointIndex& index, const std::vector<std::pair<std::string, Tensor>>& tensors) {
  ASSERT_EQ(index.tensors.size(), tensors.size());
  for (const auto& [name, t] : tensors) {
    ASSERT_TRUE(index.tensors.count(name)) << name;
    EXPECT_EQ(first_difference(index.view(index.tensors.at(name)), t), "") << name;
  }
}

TEST(Safetensors, WriteReadIdentity) {
  TempDir dir;
  const auto tensors = variety();
  auto writer = container_safetensors.create(dir.path(), {});
  for (const auto& [name, t] : tensors) writer->add(name, t);
  EXPECT_FALSE(fs::exists(dir / "model.safetensors"));
  writer->finish();
  EXPECT_EQ(entries(dir.path()), 1u);
  const CheckpointIndex index = container_for(dir.path()).open(dir.path());
  expect_same(index, tensors);
  EXPECT_EQ(index.metadata.at("format"), "pt");
  expect_same(container_for(dir / "model.safetensors").open(dir / "model.safetensors"), tensors);
}

TEST(Safetensors, ShardsAreNamedIndexedAndWithinTheLimit) {
  TempDir dir;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (int i = 0; i < 7; ++i) {
    tensors.emplace_back(numbered(9 - i), random_normal(DType::f32, {i == 3 ? 64 : 10, 8}, i));
  }
  auto writer = container_safetensors.create(dir.path(), {.shard_bytes = 800});
  for (const auto& [name, t] : tensors) writer->add(name, t);
  writer->finish();
  EXPECT_EQ(entries(dir.path()),
            6u);  // 2 + 1 + (the one that is larger than a shard) + 2 + 1 tensors, and the index
  EXPECT_TRUE(fs::exists(dir / "model-00001-of-00005.safetensors"));
  EXPECT_NE(bytes_of_file(dir / "model.safetensors.index.json").find("\"total_size\": 3968"), std::string::npos);
  const CheckpointIndex index = container_safetensors.open(dir.path());
  EXPECT_EQ(index.files.size(), 5u);
  expect_same(index, tensors);
}

TEST(Safetensors, WorkedExampleByteForByte) {
  TempDir dir;
  const float a[] = {1, 2};
  const int32_t b[] = {3, 4};
  const f16 c[] = {f16(0.5f)};
  auto writer = container_safetensors.create(dir.path(), {});
  writer->add("c", Tensor::host_from<f16>(DType::f16, {1}, c));
  writer->add("a", Tensor::host_from<float>(DType::f32, {2}, a));
  writer->add("b", Tensor::host_from<int32_t>(DType::i32, {1, 2}, b));
  writer->finish();
  const std::string json = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"I32","shape":[1,2],"data_offsets":[8,16]},)"
                           R"("c":{"dtype":"F16","shape":[1],"data_offsets":[16,18]}})";
  ASSERT_EQ(json.size(), 196u);
  const char data[] = "\x00\x00\x80\x3f\x00\x00\x00\x40\x03\x00\x00\x00\x04\x00\x00\x00\x00\x38";
  EXPECT_EQ(bytes_of_file(dir / "model.safetensors"), with_length(json + "    ", 200) + std::string(data, 18));
}

TEST(Safetensors, AnUnfinishedWriterLeavesNothing) {
  TempDir dir;
  {
    auto writer = container_safetensors.create(dir.path(), {.shard_bytes = 100});
    for (int i = 0; i < 4; ++i) writer->add(numbered(i), random_normal(DType::f32, {20}, i));
    EXPECT_GT(entries(dir.path()), 0u);
  }
  EXPECT_EQ(entries(dir.path()), 0u);
}

TEST(Safetensors, RewritingReplacesWhatAReaderWouldPrefer) {
  TempDir dir;
  const auto write = [&](int64_t shard_bytes, uint64_t seed) {
    auto writer = container_safetensors.create(dir.path(), {.shard_bytes = shard_bytes});
    for (const char* name : {"a", "b"}) writer->add(name, random_normal(DType::f32, {20}, seed));
    writer->finish();
    const auto index = container_safetensors.open(dir.path());
    EXPECT_EQ(first_difference(index.view(index.tensors.at("a")), random_normal(DType::f32, {20}, seed)), "");
  };
  write(1000, 1);
  write(100, 2);
  write(1000, 3);
}

TEST(Safetensors, TheWriterRefusesBadNames) {
  TempDir dir;
  auto writer = container_safetensors.create(dir.path(), {});
  const Tensor t = Tensor::host_zeros(DType::f32, {2});
  writer->add("a", t);
  EXPECT_THROW(writer->add("a", t), Error);
  EXPECT_THROW(writer->add("__metadata__", t), Error);
  EXPECT_THROW(writer->add("\xff", t), Error);
}

TEST(Safetensors, WhitespaceAroundTheHeaderAndOddLengthsAreValid) {
  TempDir dir;
  write_file(dir / "a.safetensors", raw(" \n{\"a\":{\"shape\":[3],\"dtype\":\"U8\",\"data_offsets\":[0,3]}} ", 3));
  EXPECT_EQ(container_safetensors.open(dir / "a.safetensors").tensors.at("a").bytes, 3);
  EXPECT_EQ(container_for(dir.path()).open(dir.path()).tensors.size(), 1u);  // the one file of a folder
  write_file(dir / "a.safetensors", raw("{}", 0));
  EXPECT_TRUE(container_safetensors.open(dir / "a.safetensors").tensors.empty());
}

struct Hostile {
  const char* name;
  std::string bytes;
  const char* word;  // must appear in the message
};

std::vector<Hostile> hostile_files() {
  const auto one = [](const std::string& body, size_t data) { return raw("{\"a\":{" + body + "}}", data); };
  const auto shaped = [&](const std::string& shape, const std::string& offsets) {
    return one("\"dtype\":\"U8\",\"shape\":" + shape + ",\"data_offsets\":" + offsets, 4);
  };
  const auto two = [](const std::string& a, const std::string& b) {
    return raw("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + a +
                   "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + b + "}}",
               8);
  };
  const std::string good = "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}";
  return {
      {"empty file", "", "too short"},
      {"seven bytes", "1234567", "too short"},
      {"length over the limit", with_length("{}", 100'000'001), "limit"},
      {"length lies", with_length("{}", 3), "cut short"},
      {"length near 2^64", with_length("{}", ~uint64_t{0}), "limit"},
      {"header length zero", with_length("", 0), "JSON"},
      {"not JSON", raw("{\"a\":", 0), "JSON"},
      {"text after the object", raw("{} {}", 0), "JSON"},
      {"byte order mark", raw("\xef\xbb\xbf{}", 0), "byte order mark"},
      {"not UTF-8", raw("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4), "UTF-8"},
      {"an array", raw("[]", 0), "object"},
      {"a number", raw("3", 0), "object"},
      {"deep nesting", raw(std::string(100000, '['), 0), "object"},
      {"nested arrays", shaped(std::string(100000, '['), "[0,4]"), "array"},
      {"tensor is not an object", raw("{\"a\":3}", 0), "object"},
      {"unknown dtype", one("\"dtype\":\"Q9\",\"shape\":[4],\"data_offsets\":[0,4]", 4), "unknown dtype \"Q9\""},
      {"foreign dtype", one("\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]", 4), "unsupported dtype \"F4\""},
      {"dtype is a number", one("\"dtype\":3,\"shape\":[4],\"data_offsets\":[0,4]", 4), "a string"},
      {"shape is a number", shaped("4", "[0,4]"), "array"},
      {"negative shape", shaped("[-4]", "[0,4]"), "non-negative"},
      {"fractional shape", shaped("[4.0]", "[0,4]"), "non-negative"},
      {"shape of strings", shaped("[\"4\"]", "[0,4]"), "non-negative"},
      {"shape beyond 64 bits", shaped("[18446744073709551616]", "[0,4]"), "non-negative"},
      {"shape beyond signed 64 bits", shaped("[9223372036854775808]", "[0,4]"), "overflows"},
      {"shape product overflows", shaped("[4294967296,4294967296]", "[0,4]"), "overflows"},
      {"too many dimensions", shaped("[1,1,1,1,1,1,4]", "[0,4]"), "dimensions"},
      {"negative offset", shaped("[4]", "[-1,3]"), "non-negative"},
      {"fractional offset", shaped("[4]", "[0,4e0]"), "non-negative"},
      {"one offset", shaped("[4]", "[0]"), "2 integers"},
      {"offsets reversed", shaped("[0]", "[4,0]"), "outside"},
      {"offsets beyond the file", shaped("[5]", "[0,5]"), "outside"},
      {"wrong size for shape", shaped("[3]", "[0,4]"), "wrong size"},
      {"overlap", two("[0,4]", "[2,6]"), "overlaps"},
      {"the same bytes twice", two("[0,4]", "[0,4]"), "overlaps"},
      {"hole between", raw("{" + good + ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]}}", 8), "hole"},
      {"hole at the front", shaped("[3]", "[1,4]"), "hole"},
      {"trailing bytes", raw("{" + good + "}", 5), "trailing"},
      {"trailing bytes without tensors", raw("{}", 5), "trailing"},
      {"missing bytes", raw("{" + good + "}", 3), "outside"},
      {"duplicate tensor", raw("{" + good + "," + good + "}", 4), "duplicate key 'a'"},
      {"duplicate field", one("\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]", 4),
       "duplicate"},
      {"duplicate metadata key", raw("{\"__metadata__\":{\"a\":\"1\",\"a\":\"1\"}," + good + "}", 4), "duplicate"},
      {"missing field", one("\"dtype\":\"U8\",\"shape\":[4]", 4), "missing"},
      {"unknown field", one("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"x\":[1]", 4), "unknown key"},
      {"metadata of numbers", raw("{\"__metadata__\":{\"a\":1}," + good + "}", 4), "a string"},
      {"metadata of objects", raw("{\"__metadata__\":{\"a\":{}}," + good + "}", 4), "a string"},
      {"metadata of null", raw("{\"__metadata__\":{\"a\":null}," + good + "}", 4), "a string"},
      {"metadata is a string", raw("{\"__metadata__\":\"x\"," + good + "}", 4), "object"},
  };
}

// The Error's message, which must be one line naming the path; "" when nothing was thrown.
std::string message_of(const std::function<void()>& body, const std::string& must_name) {
  try {
    body();
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    EXPECT_NE(what.find(must_name), std::string::npos) << what;
    return what;
  }
  return "";
}

TEST(Safetensors, HostileFilesAreRefused) {
  TempDir dir;
  const fs::path file = dir / "a.safetensors";
  for (const Hostile& h : hostile_files()) {
    write_file(file, h.bytes);
    const std::string what = message_of([&] { container_safetensors.open(file); }, file.string());
    EXPECT_NE(what.find(h.word), std::string::npos) << h.name << ": " << what;
  }
}

struct HostileIndex {
  const char* name;
  std::string index;
  const char* word;
};

TEST(Safetensors, HostileIndexesAreRefused) {
  const auto file = [](const std::string& tensor) {
    return raw("{\"" + tensor + "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
  };
  const auto map = [](const std::string& body) { return "{\"metadata\":{},\"weight_map\":{" + body + "}}"; };
  TempDir dir;
  write_file(dir / "1.safetensors", file("a"));
  write_file(dir / "2.safetensors", file("b"));
  write_file(dir / "3.safetensors", file("a"));
  const std::string index = "model.safetensors.index.json";
  write_file(dir / index, map("\"a\":\"1.safetensors\",\"b\":\"2.safetensors\""));
  EXPECT_EQ(container_safetensors.open(dir.path()).tensors.size(),
            2u);  // 3.safetensors is not of this checkpoint
  const HostileIndex cases[] = {
      {"not JSON", "{", "JSON"},
      {"no map", "{}", "weight_map"},
      {"map is a list", "{\"weight_map\":[]}", "weight_map"},
      {"value is a number", map("\"a\":1"), "file name"},
      {"path upwards", map("\"a\":\"../1.safetensors\""), "plain file name"},
      {"absolute path", map("\"a\":\"/etc/passwd\""), "plain file name"},
      {"shard missing", map("\"a\":\"4.safetensors\""), "missing"},
      {"tensor missing in its shard", map("\"a\":\"1.safetensors\",\"z\":\"1.safetensors\""), "missing"},
      {"tensor in another shard", map("\"a\":\"2.safetensors\",\"b\":\"1.safetensors\""), "missing in its shard"},
      {"same tensor in two shards", map("\"a\":\"1.safetensors\",\"c\":\"3.safetensors\""), "also in"},
      {"duplicate name", map("\"a\":\"1.safetensors\",\"a\":\"1.safetensors\""), "duplicate"},
  };
  for (const HostileIndex& h : cases) {
    write_file(dir / index, h.index);
    const std::string what = message_of([&] { container_safetensors.open(dir.path()); }, dir.path().string());
    EXPECT_NE(what.find(h.word), std::string::npos) << h.name << ": " << what;
  }
  write_file(dir / "1.safetensors", raw("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                                        "\"c\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
                                        4));
  write_file(dir / index, map("\"a\":\"1.safetensors\""));
  const std::string what = message_of([&] { container_safetensors.open(dir.path()); }, "'c'");
  EXPECT_NE(what.find("not in the index"), std::string::npos) << what;
}

TEST(Safetensors, PathsWithoutWeightsAreRefusedByName) {
  TempDir dir;
  const std::string here = dir.path().string();
  EXPECT_NE(message_of([&] { container_for(dir.path()); }, here).find("safetensors"), std::string::npos);
  EXPECT_NE(message_of([&] { container_for(dir / "none"); }, here).find("no such"), std::string::npos);
  write_file(dir / "1.safetensors", raw("{}", 0));
  write_file(dir / "2.safetensors", raw("{}", 0));
  EXPECT_NE(message_of([&] { container_safetensors.open(dir.path()); }, here).find("found 2"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
