#pragma once
// The keys and tensors of one file, while they become a config (config_reader.cpp and its neighbours).
#include <string>
#include <vector>

#include "formats/gguf/file.h"
#include "src/model/gguf/family.h"

namespace fewbit {

struct GgufKeys {
  const gguf::File& file;
  const GgufFamily& family;
  std::string arch;
  int64_t layers = 0;

  const gguf::Metadata& all() const { return file.metadata; }
  std::string key(const std::string& name) const { return arch + "." + name; }
  bool has(const std::string& name) const { return all().has(key(name)); }
  int64_t get(const std::string& name) const { return all().integer(key(name)); }
  int64_t get(const std::string& name, int64_t fallback) const { return all().integer(key(name), fallback); }
  double number(const std::string& name, double fallback) const { return all().number(key(name), fallback); }
  // One integer for every layer, whether the file has one for all or a list. Error{checkpoint} for a list of another
  // length.
  std::vector<int64_t> of_layers(const std::string& name, int64_t fallback) const;
  // The largest of them.
  int64_t most(const std::string& name, int64_t fallback) const;
  const gguf::FileTensor* tensor(const std::string& name) const;
  // Whether there is one; "blk.*.NAME": of any block.
  bool has_tensor(std::string_view name) const;
};

// What config.json says of the family's own kinds of layers, as JSON objects: recurrent ones, latent attention with its
// choice of keys, factors, heads of two sizes. "{}" where the family has none.
std::string layers_from_gguf(const GgufKeys&);

}  // namespace fewbit
