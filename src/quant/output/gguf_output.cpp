#include "src/quant/output/gguf_output.h"

#include <set>

#include "formats/container.h"
#include "formats/same_codes.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/gguf/names.h"
#include "src/quant/convert/convert_plan.h"
#include "src/quant/output/companions.h"
#include "src/quant/plan/gguf_refusals.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

Tensor stored_as(const gguf::BlockType& type, ConstTensorView values) {
  if (!type.plain) return gguf::encode(type, values, {}, gguf::Encoder::searched);
  return float_tensor(values, *type.plain);
}

// Floats as they lie in the checkpoint are widened by the encoder, a few rows at a time.
Tensor linear_stored_as(const gguf::BlockType& type, const Checkpoint& c, const NamedLinear& l) {
  return c.packed(l.name) ? stored_as(type, c.values(l)) : stored_as(type, c.store.get(l.name + ".weight"));
}

}  // namespace

WrittenFile write_gguf_output(const Checkpoint& c, const QuantPlan& plan, const Journal& journal,
                              const fs::path& file) {
  GgufContents given;
  std::vector<CheckpointIndex> blocks;
  for (int64_t layer = 0; layer < journal.sealed_blocks(); ++layer) blocks.push_back(journal.open_block(layer));
  std::set<std::string> linears;  // names of the sealed tensors that are blocks
  for (const PlannedLinear& p : plan.linears) {
    if (p.keep && c.packed(p.linear.name))  // a source in codes that the file has no place for
      given[p.linear.name + ".weight"] = {&gguf::type_f16,
                                          [&c, &p] { return stored_as(gguf::type_f16, c.values(p.linear)); }};
    if (p.keep) continue;
    const gguf::BlockType& type = gguf_type_of(p);
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
  return write_gguf(c, file, given, gguf_tokenizer_of(c));
}

WrittenFile convert_to_gguf(const Checkpoint& c, const fs::path& file, const QuantizationSummary& codes,
                            const gguf::BlockType* type, const GgufMix* mix,
                            const std::function<void(size_t, size_t)>& step) {
  GgufContents given;
  std::map<std::string, const gguf::BlockType*> own;  // of a mix
  if (mix) own = types_of_mix(*mix, c.spec);
  std::vector<NamedLinear> linears = linears_of(c.spec);
  const std::vector<NamedLinear> ends = ends_of(c.spec);
  if (mix) linears.insert(linears.end(), ends.begin(), ends.end());
  size_t done = 0;
  for (const NamedLinear& l : linears) {
    GgufContent& content = given[l.name + ".weight"];
    if (type) {
      const auto at = own.find(l.name);
      const gguf::BlockType& fits =
          gguf_type_for(at == own.end() ? *type : *at->second, l.layer == kOutsideBlocks ? l.in : gguf_run(c.spec, l));
      content = {&fits, [&, l, &fits = fits] {
                   step(done++, linears.size());
                   Tensor bytes = linear_stored_as(fits, c, l);
                   release_linear(c, l.name);
                   return bytes;
                 }};
    } else if (const auto at = codes.linears.find(l.name); at != codes.linears.end()) {
      const LinearFormat& f = at->second;
      const std::string blocks = f.packing->tensors(f.spec, l.out, l.in, false)[0].suffix;
      content = {&gguf::block_type(blocks), [&, l, &f = f] {
                   step(done++, linears.size());
                   PackedLinear packed = f.packing->pack(l.name, on_grid(c.unpack(l.name, l.out, l.in), f.spec));
                   release_linear(c, l.name);
                   return std::move(packed.tensors[0].tensor);
                 }};
    } else {
      given.erase(l.name + ".weight");
    }
  }
  for (const NamedLinear& l : ends)
    if (!mix && c.packed(l.name))
      given[l.name + ".weight"] = {&gguf::type_f16, [&c, l] { return stored_as(gguf::type_f16, c.values(l)); }};
  return write_gguf(c, file, given, gguf_tokenizer_of(c));
}

}  // namespace fewbit
