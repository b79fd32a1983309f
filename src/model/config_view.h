#pragma once
// ConfigView: typed, checked access to config.json. The only JSON reader of model code; both spellings of the
// ecosystem are read here (rope_theta / rope_scaling / torch_dtype and rope_parameters / dtype).
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

class ConfigView {
 public:
  // Reads <dir>/config.json; Error{io|checkpoint} with the path and the place of a syntax error.
  static ConfigView open(const std::filesystem::path& dir);
  static ConfigView parse(const std::string& json_text, const std::string& where);
  ConfigView(ConfigView&&) noexcept;
  ConfigView& operator=(ConfigView&&) noexcept;
  ~ConfigView();

  const std::string& text() const;   // the JSON as read
  const std::string& where() const;  // the path, for messages
  std::string architecture() const;  // architectures[0]
  // Of a model around a language model (vision): the text_config as a config of its own, with the class name of the
  // whole and what only the whole says of heads and special tokens. A config without one is returned as it is.
  ConfigView text_model() const;
  // The same with the keys of this JSON object where it has none: what a config class has by itself. Published configs
  // of models around a language model leave that out of text_config.
  ConfigView with_defaults(const std::string& json_object) const;

  // The object `key` as a config of its own; Error{checkpoint} where it is none.
  ConfigView section(const std::string& key) const;

  bool has(const std::string& key) const;       // present and not null
  bool mentions(const std::string& key) const;  // present, maybe as null
  // Required values: Error{checkpoint} "path: key: expected an integer, found …".
  int64_t i64(const std::string& key) const;
  double f64(const std::string& key) const;
  std::string str(const std::string& key) const;
  // Optional values: the default where absent or null, an Error where of the wrong type.
  int64_t i64(const std::string& key, int64_t fallback) const;
  double f64(const std::string& key, double fallback) const;
  bool flag(const std::string& key, bool fallback) const;
  std::string str(const std::string& key, const std::string& fallback) const;
  std::vector<int64_t> i64_list(const std::string& key) const;      // a number counts as a list of one; absent: {}
  std::vector<std::string> str_list(const std::string& key) const;  // absent: {}
  // The two ends of an interval, of which either may be infinite; absent: all numbers. Every other number is finite.
  std::pair<double, double> interval(const std::string& key) const;
  // Refuses what we do not implement: Error{unsupported} with key, found and the accepted value.
  void must_equal(const std::string& key, const std::string& value) const;  // absent passes
  void must_be_false(const std::string& key) const;                         // absent passes
  void must_be_true(const std::string& key) const;                          // absent passes

  // Rotary parameters of head_dim features (rope types default, linear, llama3, yarn, longrope, and factors of a
  // GGUF file), either spelling. An unknown rope type is refused by name. `section` picks a layer type's entry
  // where rope_parameters is nested (Gemma 3); `partial` is the family's partial_rotary_factor where the config
  // has none.
  RopeParams rope(int64_t head_dim, const std::string& section = "", double partial = 1) const;
  // The same without any scaling of the config: its theta alone.
  RopeParams unscaled_rope(int64_t head_dim) const;
  // The same two with the theta of another key of the config, where layers have one of their own.
  RopeParams rope_of_theta(int64_t head_dim, const std::string& key, double fallback, bool scaled) const;
  // A number among the rotary parameters, by its name there.
  double rope_number(const std::string& key, double fallback) const;
  // What the config says of that, either spelling, before any arithmetic. `values`: the JSON object of a
  // type's own keys.
  struct RopeText {
    std::string type;
    double theta, partial;
    std::string values;
  };
  RopeText rope_text(const std::string& section = "") const;

 private:
  struct Impl;
  explicit ConfigView(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fewbit
