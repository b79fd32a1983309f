// Files of tensors: safetensors, their index, and files of token ids.
#include <gtest/gtest.h>

#include <cstring>

#include "formats/container.h"
#include "tests/hostile/contained.h"
#include "tests/hostile/readers.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

// A header with its length in front and `data` zeros behind.
std::string file_of(const std::string& header, size_t data = 0) {
  const uint64_t length = header.size();
  std::string s(8, '\0');
  std::memcpy(s.data(), &length, 8);
  return s + header + std::string(data, '\0');
}

// A header whose length word says something else.
std::string lying(uint64_t length, const std::string& header) {
  std::string s = file_of(header);
  std::memcpy(s.data(), &length, 8);
  return s;
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

// These readers have words of their own.
std::vector<Hostile> in_any_words(std::vector<Hostile> cases) {
  for (Hostile& h : cases) h.says.clear();
  return cases;
}

std::vector<Hostile> framed(std::vector<Hostile> cases) {
  for (Hostile& h : cases) {
    h.bytes = file_of(h.bytes, 4);
    h.taken = false;
  }
  return in_any_words(std::move(cases));
}

std::vector<Hostile> headers() {
  const std::string good = entry("U8", "[4]", "[0,4]");
  std::vector<Hostile> cases = {
      {"no bytes", ""},
      {"seven bytes", "1234567"},
      {"a length and nothing else", std::string(8, '\0')},
      {"a length of all ones", lying(UINT64_MAX, good), "exceeds"},
      {"a length of half of 64 bits", lying(uint64_t{1} << 63, good), "exceeds"},
      {"a length beyond the file", lying(good.size() + 1, good), "cut short"},
      {"a length of the format's limit", lying(100'000'000, good), "cut short"},
      {"a length too short for its header", lying(good.size() - 1, good)},
      {"a hole in front", file_of(entry("U8", "[4]", "[4,8]"), 8), "hole"},
      {"bytes behind the last tensor", file_of(good, 5), "trailing"},
      {"a tensor beyond the file", file_of(good, 3), "outside"},
      {"a tensor that ends before it begins", file_of(entry("U8", "[4]", "[4,0]"), 4)},
      {"a shape beyond 64 bits", file_of(entry("F64", "[4294967296,4294967296]", "[0,0]")), "overflow"},
      {"a shape that overflows to the right size", file_of(entry("U8", "[9223372036854775807,2]", "[0,4]"), 4),
       "overflow"},
      {"an offset beyond 64 bits", file_of(entry("U8", "[4]", "[0,18446744073709551620]"), 4)},
      {"an offset of 63 bits", file_of(entry("U8", "[4]", "[9223372036854775804,9223372036854775807]"), 4)},
      {"three offsets", file_of(entry("U8", "[4]", "[0,4,4]"), 4)},
      {"one offset", file_of(entry("U8", "[4]", "[0]"), 4)},
      {"a thousand dimensions", file_of(entry("U8", std::string("[") + repeated("1,", 2000) + "4]", "[0,4]"), 4)},
      {"seven dimensions", file_of(entry("U8", "[1,1,1,1,1,1,4]", "[0,4]"), 4), "dimensions"},
      {"a negative dimension", file_of(entry("U8", "[-4]", "[0,4]"), 4)},
      {"a dimension with a point", file_of(entry("U8", "[4.0]", "[0,4]"), 4)},
      {"a list in the shape", file_of(entry("U8", "[[4]]", "[0,4]"), 4)},
      {"a shape that is a text", file_of(entry("U8", "\"4\"", "[0,4]"), 4)},
      {"a type that there is not", file_of(entry("Q4", "[4]", "[0,4]"), 4), "unknown dtype"},
      {"a type with escape sequences", file_of(entry("\\u001b[2J", "[4]", "[0,4]"), 4), "\\x1b"},
      {"a type of others", file_of(entry("F4", "[4]", "[0,4]"), 4), "unsupported"},
      {"two tensors on the same bytes",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
               4),
       "overlaps"},
      {"a tensor twice",
       file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
               4),
       "duplicate"},
      {"metadata that is a list", file_of(R"({"__metadata__":[]})")},
      {"metadata with a number", file_of(R"({"__metadata__":{"a":1}})"), "expected a string"},
      {"a tensor that is a number", file_of(R"({"t":1})")},
      {"a tensor without a type", file_of(R"({"t":{"shape":[4],"data_offsets":[0,4]}})", 4), "missing"},
      {"a key that there is not", file_of(R"({"t":{"x":1}})"), "unknown key"},
      {"a name of a megabyte", file_of(repeated("{\"", 1) + std::string(1 << 20, 'n') + "\":1}")},
      {"a name with escape sequences", file_of(R"({"\u001b]0;x\u0007":1})"), "\\x1b"},
  };
  return cases;
}

TEST(HostileTensors, Safetensors) {
  const TempDir dir;
  const auto read = [&](const std::string& bytes) { read_safetensors_bytes(bytes, dir.path()); };
  expect_refused(framed(hostile_json(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})")), read);
  expect_refused(headers(), read);
  std::string many = "{";
  for (int i = 0; i < 50'000; ++i)
    many.append("\"t").append(std::to_string(i)).append(R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)");
  many.back() = '}';
  expect_contained(
      {{"50,000 empty tensors", file_of(many)}, {"a zero in the shape", file_of(entry("U8", "[0,9]", "[0,0]"))}}, read);
}

TEST(HostileTensors, AnIndex) {
  const TempDir dir;
  put(dir.path(), "1.safetensors", file_of(entry("U8", "[4]", "[0,4]"), 4));
  const auto read = [&](const std::string& bytes) {
    put(dir.path(), "model.safetensors.index.json", bytes);
    container_safetensors.open(dir.path());
  };
  const auto map = [](const std::string& body) { return "{\"weight_map\":{" + body + "}}"; };
  std::string many;
  for (int i = 0; i < 100'000; ++i) many.append("\"t").append(std::to_string(i)).append("\":\"1.safetensors\",");
  std::vector<Hostile> cases = in_any_words(hostile_json(map(R"("t":"1.safetensors")")));
  for (Hostile& h : cases)
    if (h.name.find("million empty") != std::string::npos) h.taken = true;  // nothing of it is kept
  expect_refused(cases, read);
  expect_refused({{"a map that is a list", R"({"weight_map":[]})", "weight_map"},
                  {"a map in a list", R"({"weight_map":[{"t":"1.safetensors"}]})", "weight_map"},
                  {"a map further in", R"({"metadata":{"weight_map":{"t":"1.safetensors"}}})", "weight_map"},
                  {"a map twice", R"({"weight_map":{"t":"1.safetensors"},"weight_map":{}})", "duplicate"},
                  {"an empty map", map(""), "", true},
                  {"a number", map("\"t\":1"), "file name"},
                  {"a list", map("\"t\":[]"), "file name"},
                  {"an object", map("\"t\":{}"), "file name"},
                  {"null", map("\"t\":null"), "file name"},
                  {"an empty name", map("\"t\":\"\""), "plain file name"},
                  {"a way up", map("\"t\":\"../1.safetensors\""), "plain file name"},
                  {"a way from the root", map("\"t\":\"/etc/passwd\""), "plain file name"},
                  {"the folder itself", map("\"t\":\".\""), "plain file name"},
                  {"a name with a zero byte", map(R"("t":"1.safetensors\u0000.txt")"), "plain file name"},
                  {"a name with escape sequences", map(R"("t":"\u001b[2J")"), "\\x1b"},
                  {"a name of a megabyte", map(repeated("\"t\":\"", 1) + std::string(1 << 20, 'n') + "\"")},
                  {"the index as a shard", map(R"("t":"model.safetensors.index.json")")},
                  {"100,000 tensors, of which one is there", map(many + "\"t\":\"1.safetensors\""), "missing"}},
                 read);
}

TEST(HostileTensors, TokenIds) {
  const TempDir dir;
  const auto read = [&](const std::string& bytes) { read_token_ids_bytes(bytes, dir.path()); };
  const auto ids = [](const std::string& name, const std::string& dtype, const std::string& shape, size_t bytes) {
    return file_of(std::string(R"({")").append(name) + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape +
                       R"(,"data_offsets":[0,)" + std::to_string(bytes) + "]}}",
                   bytes);
  };
  std::string large = ids("input_ids", "I64", "[1,2]", 16), negative = large;
  large.back() = '\x7f';
  negative.back() = '\xff';
  expect_refused(framed(hostile_json(R"({"input_ids":{"dtype":"I32","shape":[1,1],"data_offsets":[0,4]}})")), read);
  expect_refused({{"another name", ids("ids", "I32", "[1,2]", 8), "input_ids"},
                  {"floats", ids("input_ids", "F32", "[1,2]", 8), "expected i32 or i64"},
                  {"one dimension", ids("input_ids", "I32", "[2]", 8), "expected i32 or i64"},
                  {"no windows", ids("input_ids", "I32", "[0,2]", 0), "expected i32 or i64"},
                  {"windows of one token", ids("input_ids", "I32", "[2,1]", 8), "expected i32 or i64"},
                  {"windows beyond 64 bits", ids("input_ids", "I32", "[4611686018427387904,4]", 0), "overflow"},
                  {"an id beyond the vocabulary", large, "vocabulary"},
                  {"a negative id", negative, "vocabulary"}},
                 read);
}

}  // namespace
}  // namespace fewbit::test
