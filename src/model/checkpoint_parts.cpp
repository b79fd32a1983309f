#include "src/model/checkpoint_parts.h"

#include <algorithm>
#include <map>
#include <set>

#include "src/core/half.h"
#include "src/core/strings.h"
#include "src/model/family.h"

namespace fewbit {

std::vector<NamedLinear> projects_of(const ModelSpec& spec) {
  std::vector<NamedLinear> out;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const BlockOp& op : spec.block(layer))
      if (const Project* p = std::get_if<Project>(&op))
        out.push_back({spec.prefix(layer) + p->name, kOutsideModel, p->out_features, p->in_features, false});
  return out;
}

std::vector<std::string> unknown_matrices(const Checkpoint& c) {
  std::set<std::string> known = {"lm_head.weight"};
  for (const NamedDense& t : dense_tensors_of(c.spec)) known.insert(t.name);
  for (const NamedLinear& l : linears_of(c.spec)) known.insert(l.name + ".weight");
  std::vector<std::string> names;
  for (const auto& [name, info] : c.store.index().tensors)
    if (info.shape.rank() == 2 && ends_with(name, ".weight") && !known.count(name) &&
        !c.packed(name.substr(0, name.size() - 7)))
      names.push_back(name.substr(0, name.size() - 7));
  return names;
}

std::vector<std::string> unknown_stacks(const Checkpoint& c) {
  std::vector<std::string> names;
  for (const auto& [name, info] : c.store.index().tensors)
    if (info.shape.rank() == 3 && glob_match("*.experts.*_proj", name)) names.push_back(name);
  return names;
}

namespace {

// Of a stack "….experts.gate_up_proj": "….experts", then "….experts.0.gate_proj" and so on.
std::vector<std::string> modules_of_stack(const std::string& stack, int64_t experts) {
  const size_t dot = stack.rfind('.');
  const std::string all = stack.substr(0, dot), linear = stack.substr(dot + 1);
  std::vector<std::string> names = {all};
  for (int64_t e = 0; e < experts; ++e)
    for (const char* part : {"gate_proj", "up_proj", "down_proj"})
      if (linear == part || (linear == "gate_up_proj" && part != std::string("down_proj")))
        names.push_back(all + '.' + std::to_string(e) + '.' + part);
  return names;
}

}  // namespace

std::vector<std::string> always_dense(const Checkpoint& c) {
  std::vector<std::string> names = routers_of(c.spec);
  names.erase(std::remove_if(names.begin(), names.end(), [&](const std::string& name) { return c.packed(name); }),
              names.end());
  const Family* family = find_family(c.spec.arch);
  std::vector<std::string> unknown = unknown_matrices(c);
  for (const std::string& stack : unknown_stacks(c))
    for (std::string& name : modules_of_stack(stack, c.store.find(stack)->shape[0]))
      if (std::find(unknown.begin(), unknown.end(), name) == unknown.end()) unknown.push_back(std::move(name));
  for (std::string& name : unknown) {
    if (family && !starts_with(name, "model.") && !kept_outside(*family, name).empty())
      names.push_back("model." + name);
    names.push_back(std::move(name));
  }
  const auto without_suffix = [](const std::string& weight) { return weight.substr(0, weight.rfind('.')); };
  if (const TokenInput* t = token_input_of(c.spec)) names.push_back(without_suffix(t->projection));
  const std::string head = without_suffix(c.spec.lm_head);  // formats know of "lm_head" themselves
  if (!c.spec.tied() && head != "lm_head" && !c.packed(head)) names.push_back(head);
  return names;
}

bool holds_codes(const Checkpoint& c, const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  if (dot == std::string::npos || !c.packed(tensor.substr(0, dot))) return false;
  for (const char* other : {".bias", ".k_scale", ".v_scale", ".q_scale", ".output_scale"})
    if (tensor.compare(dot, std::string::npos, other) == 0) return false;
  return true;
}

bool holds_weights(const Checkpoint& c, const std::string& tensor) {
  return holds_codes(c, tensor) || (ends_with(tensor, ".weight") && !c.packed(tensor.substr(0, tensor.size() - 7)));
}

int64_t stored_weight_bytes(const Checkpoint& c, const NamedLinear& l) {
  const auto it = c.quantization.linears.find(l.name);
  if (it == c.quantization.linears.end()) {
    const TensorInfo* weight = c.store.find(l.name + ".weight");
    return weight ? weight->bytes : 0;
  }
  const LinearFormat& f = it->second;
  int64_t bytes = 0;
  for (const TensorPlan& t : f.packing->tensors(f.spec, l.out, l.in, f.act_order))
    if (const TensorInfo* info = c.store.find(l.name + '.' + t.suffix)) bytes += info->bytes;
  return bytes;
}

Checkpoint without_tensors(Checkpoint c, const std::vector<std::string>& globs, std::vector<std::string>& dropped) {
  std::set<std::string> needed, linears, gone;
  for (const NamedDense& t : dense_tensors_of(c.spec)) needed.insert(t.name);
  for (const NamedLinear& l : linears_of(c.spec)) linears.insert(l.name);
  for (const NamedLinear& l : ends_of(c.spec)) linears.insert(l.name);
  for (const std::string& glob : globs) {
    bool some = false;
    for (const auto& [name, info] : c.store.index().tensors) {
      const std::string module = name.substr(0, std::min(name.rfind('.'), name.size()));
      if (!glob_match(glob, name) && !glob_match(glob, module)) continue;
      if (needed.count(name) || (linears.count(module) && holds_weights(c, name)))
        fail(ErrorKind::usage, "--drop " + glob + ": matches '" + name + "', which the language model needs");
      some = true;
      gone.insert(name);
    }
    if (!some) fail(ErrorKind::usage, "--drop " + glob + ": no tensor of " + c.dir.string() + " has such a name");
  }
  std::vector<NamedLinear> others;
  for (NamedLinear& l : c.others) {
    const LinearFormat& f = c.quantization.linears.at(l.name);
    size_t left = 0, all = 0;
    for (const TensorPlan& t : f.packing->tensors(f.spec, l.out, l.in, f.act_order)) {
      const std::string name = l.name + '.' + t.suffix;
      all += c.store.has(name);
      left += c.store.has(name) && !gone.count(name);
    }
    if (left > 0 && left < all)
      fail(ErrorKind::usage, "--drop: '" + l.name + "' would lose a part of its tensors; drop '" + l.name + "*'");
    if (left > 0)
      others.push_back(std::move(l));
    else
      c.quantization.linears.erase(l.name);
  }
  c.others = std::move(others);
  c.store = std::move(c.store).reindexed([&](const auto&, CheckpointIndex& index, WeightStore::Makers& makers) {
    for (const std::string& name : gone) {
      index.tensors.erase(name);
      makers.erase(name);
    }
  });
  const auto& tensors = c.store.index().tensors;
  c.quantization.fp8_kv_cache =
      c.quantization.fp8_kv_cache && std::any_of(tensors.begin(), tensors.end(), [](const auto& t) {
        return ends_with(t.first, ".k_scale") || ends_with(t.first, ".v_scale");
      });
  dropped.assign(gone.begin(), gone.end());
  return c;
}

namespace {

// The values of packed tensors, out of views that files stay behind.
Tensor bf16_values(const std::map<std::string, ConstTensorView>& parts, const NamedLinear& l, const LinearFormat& f,
                   const std::string& file) {
  const QuantizedLinear q = f.packing->unpack(l.name, f.spec, l.out, l.in, [&](const std::string& name) {
    const auto at = parts.find(name);
    return at == parts.end() ? ConstTensorView{} : at->second;
  });
  if (const std::string what = check(q); !what.empty())
    fail(ErrorKind::checkpoint, file + ": linear '" + l.name + "' is damaged: " + what);
  const Tensor values = dequantize_reference(q);
  Tensor out = Tensor::host(DType::bf16, {l.out, l.in});
  for (int64_t i = 0; i < values.numel(); ++i) out.as<bf16>()[i] = bf16(values.as<float>()[i]);
  return out;
}

}  // namespace

Checkpoint as_source_of(Checkpoint c, const CheckpointFormat& format) {
  std::set<std::string> of_model;
  for (const NamedLinear& l : projects_of(c.spec)) of_model.insert(l.name);
  const auto known = [&](const LinearFormat& f) {
    const auto candidates = format.candidates(f.spec);
    return std::find(candidates.begin(), candidates.end(), f.packing) != candidates.end();
  };
  std::vector<NamedLinear> plain;
  for (const NamedLinear& l : c.others)
    if (of_model.count(l.name) && !known(c.quantization.linears.at(l.name))) plain.push_back(l);
  c.store = std::move(c.store).reindexed([&](const auto& path, CheckpointIndex& index, WeightStore::Makers& makers) {
    for (const NamedLinear& l : plain) {
      const LinearFormat f = c.quantization.linears.at(l.name);
      std::map<std::string, ConstTensorView> parts;
      TensorInfo made;
      for (const TensorPlan& t : f.packing->tensors(f.spec, l.out, l.in, f.act_order)) {
        const std::string name = l.name + '.' + t.suffix;
        const auto at = index.tensors.find(name);
        if (at == index.tensors.end()) continue;
        made = at->second;
        parts.emplace(name, index.view(made));
        index.tensors.erase(at);
      }
      made.name = l.name + ".weight", made.dtype = DType::bf16, made.shape = {l.out, l.in};
      made.bytes = made.shape.numel() * bytes_of(made.dtype);
      makers[made.name] = [parts, l, f, file = path.string()] { return bf16_values(parts, l, f, file); };
      index.tensors[made.name] = made;
    }
  });
  for (const NamedLinear& l : plain) {
    c.quantization.linears.erase(l.name);
    c.others.erase(std::find_if(c.others.begin(), c.others.end(), [&](const auto& o) { return o.name == l.name; }));
  }
  return c;
}

void release_linear(const Checkpoint& c, const std::string& linear) {
  c.store.release(linear + ".weight");
  const auto it = c.quantization.linears.find(linear);
  if (it == c.quantization.linears.end()) return;
  const LinearFormat& f = it->second;
  for (const TensorPlan& t : f.packing->tensors(f.spec, 256, 256, f.act_order))
    c.store.release(linear + '.' + t.suffix);
}

}  // namespace fewbit
