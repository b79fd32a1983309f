#include "formats/checkpoint_format.h"
#include "formats/gguf/file.h"
#include "src/model/archs.h"
#include "src/model/gguf/config.h"
#include "src/model/gguf/names.h"
#include "src/text/gguf_tokenizer.h"
#include "tests/hostile/readers.h"

namespace fewbit::test {

void read_config_bytes(const std::string& bytes, const Scratch&) {
  const ConfigView config = ConfigView::parse(bytes, "config.json");
  const ModelSpec spec = build_spec(config);
  std::vector<std::string> names;
  for (const NamedLinear& l : linears_of(spec)) names.push_back(l.name);
  for (const NamedLinear& l : ends_of(spec)) names.push_back(l.name);
  dense_tensors_of(spec);
  std::string format;
  read_quantization(
      bytes, {}, names, [](const std::string&) { return ConstTensorView{}; }, &format);
}

void read_gguf_bytes(const std::string& bytes, const Scratch&) {
  const std::vector<uint8_t> file(bytes.begin(), bytes.end());
  const gguf::File parsed = gguf::parse(file, "hostile.gguf");
  const ConfigView config = ConfigView::parse(config_from_gguf(parsed, {}), "hostile.gguf");
  const ModelSpec spec = build_spec(config);
  check_gguf_rows(spec, std::ssize(file), "hostile.gguf");
  gguf_tensors(spec);
}

}  // namespace fewbit::test
