#pragma once
// Tokenizer: encode and decode with a tokenizer.json (Hugging Face tokenizers' file format) or the metadata of a .gguf;
// docs/tokenizers.md says what of them is understood.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fewbit {

enum class Special : uint8_t { add, none };  // add what the post-processor adds (BOS …), or not

class Tokenizer {
 public:
  // Reads a tokenizer.json (or <dir>/tokenizer.json), or the metadata of a .gguf file (or of the one in a
  // folder without tokenizer.json). Error{io|checkpoint|unsupported} names the key that is not understood.
  static Tokenizer open(const std::filesystem::path& path);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // UTF-8 text to ids. Special tokens written in the text are recognised as such. Invalid UTF-8 bytes are
  // treated as U+FFFD.
  std::vector<int32_t> encode(std::string_view text, Special special = Special::add) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  int64_t vocab_size() const;  // largest id + 1, added tokens included
  std::optional<int32_t> id_of(std::string_view token) const;
  std::string token(int32_t id) const;
  std::optional<int32_t> bos() const;  // the first of prefix(), if anything
  // What the post-processor puts in front of a text and behind it; good as long as the tokenizer.
  std::span<const int32_t> prefix() const;
  std::span<const int32_t> suffix() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fewbit
