// GGUF: counts, lengths, types, sizes and offsets that say untrue things, and metadata of models that cannot be.
#include <gtest/gtest.h>

#include <cstring>

#include "src/model/checkpoint.h"
#include "src/text/tokenizer.h"
#include "tests/hostile/contained.h"
#include "tests/hostile/readers.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

// A file that is put together by hand: what no writer would write.
class Raw {
 public:
  Raw() { s_ = "GGUF"; }
  template <class T>
  Raw& put(T v) {
    s_.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  Raw& text(const std::string& t) {
    put<uint64_t>(t.size());
    s_ += t;
    return *this;
  }
  Raw& bytes(const std::string& b) {
    s_ += b;
    return *this;
  }
  // Version, counts.
  Raw& head(uint64_t tensors, uint64_t keys, uint32_t version = 3) { return put(version).put(tensors).put(keys); }
  Raw& u32(const std::string& key, uint32_t v) { return text(key).put<uint32_t>(4).put(v); }
  Raw& u64(const std::string& key, uint64_t v) { return text(key).put<uint32_t>(10).put(v); }
  Raw& f32(const std::string& key, float v) { return text(key).put<uint32_t>(6).put(v); }
  Raw& string(const std::string& key, const std::string& v) { return text(key).put<uint32_t>(8).text(v); }
  Raw& array(const std::string& key, uint32_t type, uint64_t count) {
    return text(key).put<uint32_t>(9).put(type).put(count);
  }
  Raw& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    text(name).put<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) put(d);
    return put(type).put(offset);
  }
  std::string str(size_t zeros = 0) const { return s_ + std::string(zeros, '\0'); }

 private:
  std::string s_;
};

std::vector<Hostile> structures() {
  constexpr uint64_t kHuge = uint64_t{1} << 62;
  const auto one = [](const std::vector<uint64_t>& dims, uint32_t type = 0, uint64_t offset = 0, size_t zeros = 256) {
    return Raw().head(1, 0).tensor("t", dims, type, offset).str(zeros);
  };
  return {
      {"no bytes", "", "GGUF"},
      {"three bytes", "GGU", "GGUF"},
      {"the magic alone", "GGUF", "ends inside"},
      {"another magic", "GGML" + std::string(64, '\0'), "GGUF"},
      {"a version of the past", Raw().head(0, 0, 1).str(), "version"},
      {"a version to come", Raw().head(0, 0, 99).str(), "version"},
      {"a file of the other byte order", Raw().head(0, 0, 3U << 24).str(), "big-endian"},
      {"2^62 tensors", Raw().head(kHuge, 0).str(64), "truncated"},
      {"2^62 keys", Raw().head(0, kHuge).str(64), "truncated"},
      {"all tensors of 64 bits", Raw().head(UINT64_MAX, UINT64_MAX).str(64), "truncated"},
      {"a million keys of nothing", Raw().head(0, 1'000'000).str(13'000'000), ""},
      {"a key of 2^62 bytes", Raw().head(0, 1).put(kHuge).str(64), "ends inside"},
      {"a key that wraps around", Raw().head(0, 1).put(UINT64_MAX).str(64), "ends inside"},
      {"an empty key", Raw().head(0, 1).u32("", 1).str(), "empty"},
      {"a key twice", Raw().head(0, 2).u32("a", 1).u32("a", 1).str(), "twice"},
      {"a type that there is not", Raw().head(0, 1).text("a").put<uint32_t>(13).str(64), "value type"},
      {"a type of all ones", Raw().head(0, 1).text("a").put(UINT32_MAX).str(64), "value type"},
      {"a text of 2^62 bytes", Raw().head(0, 1).text("a").put<uint32_t>(8).put(kHuge).str(64), "ends inside"},
      {"an array of 2^62 bytes", Raw().head(0, 1).array("a", 0, kHuge).str(64), "truncated"},
      {"an array of 2^62 texts", Raw().head(0, 1).array("a", 8, kHuge).str(64), "truncated"},
      {"an array of 2^62 doubles, which wraps around", Raw().head(0, 1).array("a", 12, kHuge).str(64), "truncated"},
      {"an array of arrays", Raw().head(0, 1).array("a", 9, 1).str(64), "arrays of type 9"},
      {"arrays in arrays",
       Raw().head(0, 1).text("a").bytes(repeated(std::string("\x09\0\0\0\x01\0\0\0\0\0\0\0", 12), 100'000)).str()},
      {"an array of a type that there is not", Raw().head(0, 1).array("a", 13, 1).str(64), "arrays of type 13"},
      {"an alignment of zero", Raw().head(0, 1).u32("general.alignment", 0).str(), "power of two"},
      {"an alignment of three", Raw().head(0, 1).u32("general.alignment", 3).str(), "power of two"},
      {"an alignment of 2^31", Raw().head(0, 1).u32("general.alignment", 1U << 31).str(), "power of two"},
      {"an alignment that is a text", Raw().head(0, 1).string("general.alignment", "32").str(), "integer"},
      {"a part of several", Raw().head(0, 1).u32("split.count", 7).str(), "parts"},
      {"a tensor without a name", Raw().head(1, 0).tensor("", {1}, 0, 0).str(64), "no name"},
      {"a name with escape sequences", Raw().head(1, 0).tensor("\x1b]0;owned\x07", {1}, 99, 0).str(64), "\\x1b"},
      {"a name of a megabyte", Raw().head(1, 0).tensor(std::string(1 << 20, 'n'), {1}, 99, 0).str(64)},
      {"a name that is no UTF-8", Raw().head(1, 0).tensor("\xff\xfe", {1}, 99, 0).str(64), "\\xff"},
      {"no dimensions", one({}), "dimensions"},
      {"five dimensions", one({1, 1, 1, 1, 1}), "dimensions"},
      {"two billion dimensions", Raw().head(1, 0).text("t").put<uint32_t>(1U << 31).str(64), "dimensions"},
      {"dimensions of zero", one({0, 0}), "at least 1"},
      {"a row of nothing", one({0, 4}), "at least 1"},
      {"no rows", one({4, 0}), "at least 1"},
      {"a dimension of 2^63", one({uint64_t{1} << 63}), "overflow"},
      {"dimensions whose product wraps around to 0", one({uint64_t{1} << 32, uint64_t{1} << 32}), "overflow"},
      {"dimensions whose bytes wrap around", one({(uint64_t{1} << 61) + 1, 2}), "overflow"},
      {"the largest dimension", one({INT64_MAX}), "overflow"},
      {"a type of tensors that there is not", one({1}, 99), "type 99"},
      {"rows that are no whole blocks", one({31}, 2), "whole blocks"},
      {"an offset beyond the file", one({8}, 0, 1 << 20), "outside"},
      {"an offset of 2^63", one({8}, 0, uint64_t{1} << 63), "offset"},
      {"an offset that wraps around", one({8}, 0, UINT64_MAX - 31), "offset"},
      {"an offset that is not aligned", one({8}, 0, 7), "multiple"},
      {"more bytes than the file has", one({1 << 20}), "outside"},
      {"a tensor twice", Raw().head(2, 0).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).str(256), "twice"},
      {"tensors on the same bytes", Raw().head(2, 0).tensor("a", {16}, 0, 0).tensor("b", {16}, 0, 32).str(256),
       "overlaps"},
      {"cut in a tensor's entry", Raw().head(1, 0).text("t").put<uint32_t>(1).put<uint64_t>(1).str(), "ends inside"},
      {"a table and no data", Raw().head(1, 0).tensor("t", {8}, 0, 0).str(), "outside"},
      {"nothing but a head", Raw().head(0, 0).str(), "general.architecture"},
      {"an architecture that is a number", Raw().head(0, 1).u32("general.architecture", 7).str(), "string"},
      {"an architecture that there is not", Raw().head(0, 1).string("general.architecture", "fancy\x1b[2J").str(),
       "\\x1b"},
      {"an architecture that is no UTF-8", Raw().head(0, 1).string("general.architecture", "\xff\xfe").str(), "\\xff"},
  };
}

// A model of 64 features without most of its tensors; `change` gets another value.
std::string model(const std::string& change, uint64_t value, const std::string& arch = "llama") {
  const std::vector<std::pair<std::string, uint64_t>> keys = {
      {"block_count", 2},           {"embedding_length", 64},        {"feed_forward_length", 128},
      {"context_length", 256},      {"attention.head_count", 4},     {"attention.head_count_kv", 2},
      {"attention.key_length", 16}, {"rope.dimension_count", 16},    {"expert_count", 0},
      {"expert_used_count", 0},     {"attention.sliding_window", 0}, {"vocab_size", 32}};
  Raw r;
  r.head(1, keys.size() + 2);
  r.string("general.architecture", arch).f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  for (const auto& [key, v] : keys) r.u64(arch + "." + key, key == change ? value : v);
  return r.tensor("token_embd.weight", {64, 32}, 0, 0).str(64 * 32 * 4 + 256);
}

std::vector<Hostile> models() {
  std::vector<Hostile> cases = {{"a model of which most is missing", model("", 0), "found nothing"}};
  for (const char* arch : {"llama", "gemma3", "qwen3moe", "gpt-oss"})
    for (const char* key : {"block_count", "embedding_length", "feed_forward_length", "context_length",
                            "attention.head_count", "attention.head_count_kv", "attention.key_length",
                            "rope.dimension_count", "expert_count", "expert_used_count", "attention.sliding_window"})
      for (const uint64_t v :
           {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{4000}, uint64_t{100'000}, (uint64_t{1} << 31) - 1,
            uint64_t{1} << 31, uint64_t{1} << 40, uint64_t{INT64_MAX}, UINT64_MAX})
        cases.push_back({std::string(arch) + ": " + key + " of " + std::to_string(v), model(key, v, arch)});
  return cases;
}

TEST(HostileGguf, Structures) {
  const TempDir dir;
  expect_refused(structures(), [&](const std::string& bytes) { read_gguf_bytes(bytes, dir.path()); });
}

TEST(HostileGguf, Models) {
  const TempDir dir;
  expect_refused(models(), [&](const std::string& bytes) { Checkpoint::open(put(dir.path(), "m.gguf", bytes)); });
}

TEST(HostileGguf, Tokenizers) {
  const TempDir dir;
  const auto tokens = [](uint64_t count, const std::string& texts, const std::string& model = "gpt2",
                         uint64_t keys = 3) {
    return Raw()
        .head(0, keys)
        .string("tokenizer.ggml.model", model)
        .string("tokenizer.ggml.pre", "gpt-2")
        .array("tokenizer.ggml.tokens", 8, count)
        .bytes(texts);
  };
  const std::string a = std::string("\1\0\0\0\0\0\0\0a", 9), bad = std::string("\2\0\0\0\0\0\0\0\xff\xfe", 10);
  const auto merges = [&](const std::string& merge) {
    return tokens(1, a, "gpt2", 4).array("tokenizer.ggml.merges", 8, 1).text(merge).str();
  };
  expect_refused(
      {{"no model", Raw().head(0, 0).str(), "tokenizer.ggml"},
       {"a model that there is not", tokens(1, a, "fancy\x1b").str(), "\\x1b"},
       {"tokens that are numbers",
        Raw().head(0, 2).string("tokenizer.ggml.model", "gpt2").array("tokenizer.ggml.tokens", 4, 1).put(1U).str()},
       {"more tokens than bytes", tokens(1 << 30, a).str(), "truncated"},
       {"a merge of what there is not", merges("x y")},
       {"a merge without a space", merges("xy")},
       {"an empty merge", merges("")},
       {"types for other tokens", tokens(1, a, "gpt2", 4).array("tokenizer.ggml.token_type", 5, 2).put(1).put(1).str(),
        "token_type"},
       {"scores for none", tokens(1, a, "llama").str(), "scores"},
       {"a rule that there is not",
        Raw()
            .head(0, 3)
            .string("tokenizer.ggml.model", "gpt2")
            .string("tokenizer.ggml.pre", "x\x1b")
            .array("tokenizer.ggml.tokens", 8, 1)
            .bytes(a)
            .str(),
        "\\x1b"}},
      [&](const std::string& bytes) { Tokenizer::open(put(dir.path(), "t.gguf", bytes)); });
  expect_contained({{"a token that is no UTF-8", tokens(1, bad).str()},
                    {"no tokens", tokens(0, "").str()},
                    {"the same token 1,000 times", tokens(1000, repeated(a, 9000)).str()},
                    {"a first token beyond", tokens(1, a, "gpt2", 5)
                                                 .u64("tokenizer.ggml.bos_token_id", UINT64_MAX)
                                                 .u64("tokenizer.ggml.add_bos_token", 1)
                                                 .str()}},
                   [&](const std::string& bytes) {
                     const Tokenizer t = Tokenizer::open(put(dir.path(), "t.gguf", bytes));
                     t.decode(t.encode("a b"));
                   });
}

}  // namespace
}  // namespace fewbit::test
