// Windows of a safetensors file: both types, the first ones alone, refusals with the place.
#include "src/text/files/token_file.h"

#include <gtest/gtest.h>

#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

class TokenFile : public ::testing::Test {
 protected:
  template <class T>
  std::filesystem::path write(DType dtype, const Shape& shape, const std::vector<T>& ids,
                              const std::string& name = "input_ids") {
    const auto writer = container_safetensors.create(dir.path(), {});
    writer->add(name, Tensor::host_from<T>(dtype, shape, ids));
    writer->finish();
    return dir / "model.safetensors";
  }
  std::string refusal(const std::filesystem::path& path) {
    return message_of([&] { read_token_file(path, 0, 0, 100); }, ErrorKind::checkpoint);
  }
  TempDir dir;
};

TEST_F(TokenFile, TakesTheFirstWindowsAndTokens) {
  const auto path = write<int32_t>(DType::i32, {3, 4}, {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23});
  EXPECT_TRUE(is_token_file(path));
  EXPECT_EQ(token_file_shape(path).windows, 3);
  EXPECT_EQ(token_file_shape(path).tokens, 4);
  EXPECT_EQ(read_token_file(path, 0, 0, 24).ids, (Ids{0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23}));
  const Windows w = read_token_file(path, 2, 3, 24);
  EXPECT_EQ(w.ids, (Ids{0, 1, 2, 10, 11, 12}));
  EXPECT_EQ(w.count, 2);
  EXPECT_EQ(w.length, 3);
  EXPECT_EQ(w.source, path.string());
  EXPECT_EQ(read_token_file(path, 9, 9, 24).count, 3);
}

TEST_F(TokenFile, TakesWideIds) {
  EXPECT_EQ(read_token_file(write<int64_t>(DType::i64, {1, 3}, {7, 0, 99}), 0, 0, 100).ids, (Ids{7, 0, 99}));
}

TEST_F(TokenFile, RefusesWithThePlace) {
  std::string what = refusal(write<int32_t>(DType::i32, {2, 2}, {1, 2, 3, 100}));
  EXPECT_NE(what.find("input_ids[1, 1] is 100"), std::string::npos) << what;
  EXPECT_NE(what.find("[0, 100)"), std::string::npos) << what;
  EXPECT_NE(refusal(write<int32_t>(DType::i32, {1, 2}, {1, -2})).find("is -2"), std::string::npos);
  // As 32 bits this would be the id 1.
  what = refusal(write<int64_t>(DType::i64, {1, 2}, {(int64_t{1} << 32) + 1, 2}));
  EXPECT_NE(what.find("input_ids[0, 0] is 4294967297"), std::string::npos) << what;
  EXPECT_EQ(read_token_file(write<int32_t>(DType::i32, {2, 2}, {1, 2, 3, 100}), 1, 0, 100).count, 1)
      << "what is not taken is not looked at";
  EXPECT_NE(refusal(write<float>(DType::f32, {1, 2}, {1, 2})).find("f32"), std::string::npos);
  EXPECT_NE(refusal(write<int32_t>(DType::i32, {2, 1}, {1, 2})).find("tokens >= 2"), std::string::npos);
  EXPECT_NE(refusal(write<int32_t>(DType::i32, {4}, {1, 2, 3, 4})).find("[windows"), std::string::npos);
  EXPECT_NE(refusal(write<int32_t>(DType::i32, {1, 2}, {1, 2}, "ids")).find("no tensor input_ids"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
