#pragma once
// A value of a tokenizer.json together with its place in the file, for messages. Internal to src/text.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fewbit {

// Limits of a file whose parts cost memory or time for every text. All are far above what a real one has.
// Ids are below; the largest published vocabularies have some 300,000. A small file may name a large one, and each id
// below it takes some 40 bytes.
inline constexpr int64_t kMaxTokenId = int64_t{1} << 21;
inline constexpr size_t kMaxTokenBytes = 1024;     // of a token that is looked for at every place of a text
inline constexpr size_t kMaxContentBytes = 4096;   // of a text that a step puts in
inline constexpr size_t kMaxPatternBytes = 65536;  // of a regular expression
inline constexpr size_t kMaxSteps = 64;            // of a normalizer, pre-tokenizer or decoder
inline constexpr int kMaxDepth = 8;                // of Sequences in one another

class JsonNode {
 public:
  // A member that is there and not null.
  bool has(const char* name) const;
  JsonNode at(const char* name) const;  // Error{checkpoint} where it is missing
  std::vector<JsonNode> items() const;  // of a list
  JsonNode item(size_t i) const;
  bool is_object() const;
  bool is_zero() const;      // the number 0
  size_t list_size() const;  // Error{checkpoint} where it is no list

  // Each Error{checkpoint} where the value is of another kind.
  std::string text() const;
  std::string text_up_to(size_t bytes) const;
  bool flag() const;
  int64_t number() const;
  int32_t id() const;
  bool flag(const char* name, bool otherwise) const;
  std::string text(const char* name, const char* otherwise) const;
  std::string type() const { return at("type").text(); }

  // The members of an object from tokens to ids.
  void each_id(const std::function<void(const std::string& token, int32_t id)>& take) const;
  // Item `i` of a list, nothing where it is of another kind: a text; two texts; a text and a finite number.
  std::optional<std::string_view> text_at(size_t i) const;
  std::optional<std::pair<std::string_view, std::string_view>> texts_at(size_t i) const;
  std::optional<std::pair<std::string_view, double>> scored_at(size_t i) const;

  std::string where() const { return key_.empty() ? file_ : file_ + ": " + key_; }
  [[noreturn]] void expected(const std::string& what) const;     // Error{checkpoint} with what was found
  [[noreturn]] void refuse(const std::string& supported) const;  // Error{unsupported} with what was found
  void check_depth(int depth) const;                             // Error{unsupported} above kMaxDepth

 private:
  friend class JsonFile;
  JsonNode(const void* value, std::string file, std::string key);
  std::string excerpt() const;

  const void* value_;  // of JSON's library, which no header names
  std::string file_, key_;
};

// The parsed file; nodes point into it.
class JsonFile {
 public:
  // Error{io}, Error{checkpoint} where it is no JSON or more than formats/guarded_json.h allows.
  explicit JsonFile(const std::filesystem::path& path);
  ~JsonFile();
  JsonNode root() const;

 private:
  struct Tree;
  std::unique_ptr<Tree> tree_;
  std::string path_;
};

}  // namespace fewbit
