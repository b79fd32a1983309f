#include "src/quant/gguf_output.h"

#include <fmt/format.h>

#include <set>

#include "formats/container.h"
#include "src/core/half.h"
#include "src/core/strings.h"
#include "src/text/gguf_tokenizer.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// From the folder's tokenizer.json, or from the metadata of the .gguf file that the model is.
gguf::Metadata tokenizer_of(const Checkpoint& c) {
  if (fs::is_directory(c.dir)) return tokenizer_to_gguf(c.dir, c.spec.vocab);
  const MappedFile file(c.dir);
  const gguf::File parsed = gguf::parse(file.bytes(), c.dir.string());
  gguf::Metadata out;
  for (const auto& [key, value] : parsed.metadata.values())
    if (starts_with(key, "tokenizer.")) out.set(key, value);
  return out;
}

Tensor stored_as(const gguf::BlockType& type, Tensor values) {
  if (!type.plain) return gguf::encode(type, values, {}, gguf::Encoder::searched);
  if (type.plain == DType::f32) return values;
  Tensor out = Tensor::host(*type.plain, values.shape());
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (type.plain == DType::f16)
      out.as<f16>()[i] = values.as<float>()[i];
    else
      out.as<bf16>()[i] = values.as<float>()[i];
  }
  return out;
}

}  // namespace

void write_gguf_output(const Checkpoint& c, const QuantPlan& plan, const Journal& journal,
                       const fs::path& file) {
  GgufContents given;
  std::vector<CheckpointIndex> blocks;
  for (int64_t layer = 0; layer < journal.sealed_blocks(); ++layer)
    blocks.push_back(container_safetensors.open(journal.block_file(layer)));
  std::set<std::string> linears;  // names of the sealed tensors that are blocks
  for (const PlannedLinear& p : plan.linears) {
    if (p.keep) continue;
    const gguf::BlockType& type = p.blocks ? *p.blocks : *p.recipe.blocks;
    const bool end = p.linear.layer == kOutsideBlocks;
    const CheckpointIndex& block = end ? blocks.back() : blocks[static_cast<size_t>(p.linear.layer)];
    const std::string name = p.linear.name + '.' + std::string(type.name);
    const ConstTensorView sealed = block.view(block.tensors.at(name));
    given[p.linear.name + ".weight"] = {&type, [sealed] { return clone_host(sealed); }};
    linears.insert(name);
  }
  for (const CheckpointIndex& block : blocks)
    for (const auto& [name, info] : block.tensors) {
      if (linears.count(name)) continue;
      given[name] = {&gguf::type_f32, [v = block.view(info)] { return float_values(v); }};
    }
  write_gguf(c, file, given, tokenizer_of(c));
}

void convert_to_gguf(const Checkpoint& c, const fs::path& file, const gguf::BlockType* type) {
  GgufContents given;
  std::vector<std::string> refusals;
  for (const NamedLinear& l : linears_of(c.spec)) {
    const std::string weight = l.name + ".weight";
    if (type) {
      const gguf::BlockType& fits = gguf_type_for(*type, l.in);
      given[weight] = {&fits, [&c, l, &fits] { return stored_as(fits, c.values(l)); }};
    } else if (c.packed(l.name)) {
      const LinearFormat& f = c.quantization.linears.at(l.name);
      std::string why;
      const Packing* p = choose_packing(format_gguf, f.spec, l.out, l.in, f.act_order, &why);
      if (!p) {
        refusals.push_back(fmt::format("{}: {}", l.name, why));
        continue;
      }
      const std::string blocks = p->tensors(f.spec, l.out, l.in, false)[0].suffix;
      given[weight] = {&gguf::block_type(blocks), [&c, l, p] {
                         PackedLinear packed = p->pack(l.name, c.unpack(l.name, l.out, l.in));
                         return std::move(packed.tensors[0].tensor);
                       }};
    }
  }
  for (const NamedLinear& l : ends_of(c.spec))
    if (c.packed(l.name))
      given[l.name + ".weight"] = {&gguf::type_f16, [&c, l] { return stored_as(gguf::type_f16, c.values(l)); }};
  if (!refusals.empty())
    fail(
        ErrorKind::unsupported,
        fmt::format("{} linears have codes that no GGUF type holds; name a type to store their values in\n{}",
                    refusals.size(), join(refusals, "\n")));
  write_gguf(c, file, given, tokenizer_of(c));
}

}  // namespace fewbit
