#include "src/model/mtp.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "src/core/strings.h"
#include "src/model/stacked_experts.h"

namespace fewbit {
namespace {

// Where a form keeps what: the block's tensors below `block`, the others by their full names.
struct Form {
  std::string block, norm, joined, embedding_norm, hidden_norm;
};

std::optional<Form> find_form(const ModelSpec& spec, const WeightStore& store) {
  const std::string behind = spec.prefix(spec.layers);
  if (has_linear(store, behind + "eh_proj"))
    return Form{behind, behind + "shared_head.norm.weight", behind + "eh_proj", behind + "enorm.weight",
                behind + "hnorm.weight"};
  if (has_linear(store, "mtp.fc"))
    return Form{"mtp.layers.0.", "mtp.norm.weight", "mtp.fc", "mtp.pre_fc_norm_embedding.weight",
                "mtp.pre_fc_norm_hidden.weight"};
  return std::nullopt;
}

Form form_of(const Checkpoint& c) {
  const ModelSpec& spec = c.spec;
  if (std::optional<Form> form = find_form(spec, c.store)) return *std::move(form);
  const std::string behind = spec.prefix(spec.layers);
  for (const auto& [name, info] : c.store.index().tensors)
    if (name.find("mtp") != std::string::npos || starts_with(name, behind))
      fail(ErrorKind::unsupported,
           fmt::format("--speculate mtp: {} has further layers ('{}'), but not in a form that is known: mtp.fc with "
                       "mtp.layers.0, or eh_proj in the layer behind the last",
                       spec.arch, name));
  fail(ErrorKind::unsupported,
       fmt::format("--speculate mtp: {} has no layer that predicts further tokens: neither mtp.fc nor {}eh_proj",
                   c.dir.string(), behind));
}

// The kind of block that such a layer is: the model's last one that attends to all tokens, with experts where the
// model has some. -1: no layer does.
int kind_of_layer(const ModelSpec& spec) {
  for (int64_t layer = spec.layers - 1; layer >= 0; --layer)
    if (std::ranges::any_of(spec.block(layer), attends)) return spec.kind(layer);
  return -1;
}

}  // namespace

MtpLayer open_mtp(const Checkpoint& c) {
  const Form form = form_of(c);
  MtpLayer out{.block = Checkpoint::open(c.dir),
               .joined = {},
               .embedding_norm = form.embedding_norm,
               .hidden_norm = form.hidden_norm};
  Checkpoint& b = out.block;
  const std::string first = b.spec.prefix(0);
  const auto renamed = [&](const std::string& name) -> std::string {
    if (name == form.norm) return b.spec.final_norm;
    if (name == form.embedding_norm || name == form.hidden_norm || starts_with(name, form.joined + ".")) return name;
    if (starts_with(name, form.block)) return first + name.substr(form.block.size());
    if (starts_with(name, b.spec.block_prefix) || name == b.spec.final_norm) return "";
    return name;
  };
  b.blocks.clear();  // named as the model's own layers
  b.store = std::move(b.store).reindexed([&](const auto&, CheckpointIndex& index, WeightStore::Makers& makers) {
    std::map<std::string, TensorInfo> tensors;
    WeightStore::Makers made;
    for (auto& [name, info] : index.tensors)
      if (const std::string to = renamed(name); !to.empty()) {
        if (const auto it = makers.find(name); it != makers.end()) made[to] = it->second;
        info.name = to;
        tensors[to] = info;
      }
    index.tensors = std::move(tensors);
    makers = std::move(made);
  });
  std::map<std::string, LinearFormat> linears;
  for (auto& [name, format] : b.quantization.linears)
    if (name == form.joined)
      linears[name] = format;
    else if (const std::string to = renamed(name + "."); !to.empty())
      linears[to.substr(0, to.size() - 1)] = format;
  b.quantization.linears = std::move(linears);
  b.others.clear();
  const int kind = kind_of_layer(c.spec);
  if (kind < 0)
    fail(ErrorKind::unsupported, "--speculate mtp: no layer of " + c.spec.arch + " attends to other tokens");
  b.spec.kinds = {b.spec.kinds[static_cast<size_t>(kind)]};
  b.spec.kind_of_layer.clear();
  b.spec.layers = 1;
  b.store = with_single_experts(b.spec, std::move(b.store));
  const int64_t hidden = b.spec.hidden;
  out.joined = {form.joined, kOutsideModel, hidden, 2 * hidden, false};
  std::vector<std::string> packed;
  packed.reserve(b.quantization.linears.size());
  for (const auto& [name, format] : b.quantization.linears) packed.push_back(name);
  std::vector<std::string> complaints = check_against(b.spec, b.store, packed);
  for (const std::string& norm : {form.embedding_norm, form.hidden_norm})
    if (!b.store.has(norm)) complaints.push_back("tensor '" + norm + "' is missing");
  if (!complaints.empty())
    fail(ErrorKind::checkpoint,
         fmt::format("--speculate mtp: the layer behind the last, {}*, named here as block 0:\n{}", form.block,
                     join(complaints, "\n")));
  return out;
}

bool has_linear(const WeightStore& store, const std::string& linear) {
  const auto& tensors = store.index().tensors;
  const auto it = tensors.lower_bound(linear + '.');
  return it != tensors.end() && starts_with(it->first, linear + '.');
}

std::vector<std::vector<NamedLinear>> mtp_linears(const ModelSpec& spec, const WeightStore& store) {
  const std::optional<Form> form = find_form(spec, store);
  const int kind = kind_of_layer(spec);
  if (!form || kind < 0) return {};
  std::vector<std::vector<NamedLinear>> groups = {
      {{form->joined, kOutsideBlocks, spec.hidden, 2 * spec.hidden, false}}};
  const auto add = [&](const std::vector<LinearDef>& items) {
    std::vector<NamedLinear>& group = groups.emplace_back();
    for (const LinearDef& l : items)
      group.push_back({form->block + l.name, kOutsideBlocks, l.out_features, l.in_features, l.bias});
  };
  for (const BlockOp& op : spec.kinds[static_cast<size_t>(kind)])
    if (const auto* linears = std::get_if<Linears>(&op)) {
      add(linears->items);
    } else if (const auto* moe = std::get_if<Moe>(&op)) {
      for (int e = 0; e < moe->experts; ++e) {
        add(moe->wide_of(e));
        add({moe->of_expert(moe->down, e)});
      }
    }
  return groups;
}

}  // namespace fewbit
