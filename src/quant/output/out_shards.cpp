#include "src/quant/output/out_shards.h"

#include <charconv>
#include <map>

#include "src/core/file_io.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

std::string stem(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.') + 1); }

}  // namespace

OutShards::OutShards(const Checkpoint& c, const QuantPlan& plan, Journal& journal, int64_t shard_bytes)
    : ckpt_(c),
      journal_(journal),
      shard_bytes_(shard_bytes),
      of_model_(static_cast<size_t>(c.spec.layers) + 2),
      stacked_(plan.format->stacked) {
  std::set<std::string> replaced;
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep) replaced.insert(p.linear.name);
  for (const auto& [name, info] : c.store.index().tensors)
    if (!holds_weights(c, name) || !replaced.count(name.substr(0, name.rfind('.'))))
      of_model_[static_cast<size_t>(unit_of(name))].push_back(&info);
  for (int64_t k = 0; k < journal.shards(); ++k)
    for (const auto& [name, info] : container_safetensors.open(journal.shard_file(k)).tensors) written_.insert(name);
}

// Unit 0 stands in front of the blocks, unit 1 + n is block n, and the last one comes behind them.
int64_t OutShards::unit_of(const std::string& tensor) const {
  const ModelSpec& spec = ckpt_.spec;
  if (starts_with(tensor, spec.block_prefix)) {
    int64_t layer = -1;
    const char* end = tensor.data() + tensor.size();
    const auto [rest, error] = std::from_chars(tensor.data() + spec.block_prefix.size(), end, layer);
    if (error == std::errc() && rest != end && *rest == '.' && layer >= 0 && layer < spec.layers) return 1 + layer;
  }
  const bool head = !spec.tied() && starts_with(tensor, stem(spec.lm_head));
  return head || starts_with(tensor, stem(spec.final_norm)) ? 1 + spec.layers : 0;
}

void OutShards::advance() {
  if (next_ == 0) take(next_++);
  while (next_ <= ckpt_.spec.layers && next_ <= journal_.sealed_blocks()) take(next_++);
}

void OutShards::take(int64_t unit) {
  const int64_t block = unit - 1;
  std::map<std::string, Waiting> tensors;
  if (unit > 0 && block < journal_.covered_blocks()) return;
  if (unit > 0 && journal_.sealed(block))
    for (const auto& [name, info] : journal_.open_block(block).tensors) tensors.emplace(name, Waiting{info, block});
  for (const TensorInfo* info : of_model_[static_cast<size_t>(unit)])
    tensors.emplace(info->name, Waiting{*info, kModel});
  if (stacked_ && unit > 0 && block < ckpt_.spec.layers) stack(block, tensors);
  for (auto& [name, t] : tensors) {
    if (!written_.insert(name).second) continue;
    const int64_t bytes = t.info.shape.numel() * bytes_of(t.info.dtype);
    if (!waiting_.empty() && waiting_bytes_ + bytes > shard_bytes_) write(std::max<int64_t>(0, block));
    t.info.bytes = bytes;
    waiting_bytes_ += bytes;
    waiting_.push_back(std::move(t));
  }
}

// Puts a layer's experts into their stacks.
void OutShards::stack(int64_t layer, std::map<std::string, Waiting>& tensors) const {
  for (ExpertStack& s : turned_stacks_of(ckpt_.spec, layer)) {
    const auto first = tensors.find(s.parts.front());
    if (first == tensors.end()) continue;
    TensorInfo info{.name = s.name, .dtype = first->second.info.dtype, .shape = s.shape};
    for (const std::string& part : s.parts) tensors.erase(part);
    const std::string name = s.name;
    tensors.emplace(name, Waiting{std::move(info), layer, std::move(s)});
  }
}

// What waits becomes a shard. The first `covered` blocks have nothing that is not in shards then.
void OutShards::write(int64_t covered) {
  const fs::path file = journal_.shard_file(journal_.shards());
  std::error_code ec;
  fs::create_directories(file.parent_path(), ec);
  WrittenFile written;
  {
    std::map<int64_t, CheckpointIndex> blocks;  // closed before their files go, or their room would stay taken
    std::vector<ShardTensor> tensors;
    Tensor stack;  // the one that is being written
    for (const Waiting& w : waiting_) {
      const std::string& name = w.info.name;
      if (w.block != kModel && !blocks.count(w.block)) blocks.emplace(w.block, journal_.open_block(w.block));
      if (w.block == kModel) {
        tensors.push_back({w.info, [&] { return ckpt_.store.get(name); }, [&] { ckpt_.store.release(name); }});
      } else if (w.stack) {
        const CheckpointIndex& from = blocks.at(w.block);
        tensors.push_back({w.info,
                           [&] {
                             stack = stacked(*w.stack, [&](const std::string& part) -> ConstTensorView {
                               const auto at = from.tensors.find(part);
                               return at == from.tensors.end() ? ckpt_.store.get(part) : from.view(at->second);
                             });
                             return stack.view();
                           },
                           [&] {
                             stack.reset();
                             for (const std::string& part : w.stack->parts)
                               if (ckpt_.store.has(part)) ckpt_.store.release(part);
                           }});
      } else {
        const CheckpointIndex& from = blocks.at(w.block);
        const TensorInfo& at = from.tensors.at(name);
        tensors.push_back({w.info, [&] { return from.view(at); },
                           [&] { from.files[static_cast<size_t>(at.file)].forget(at.begin, at.bytes); }});
      }
    }
    written = write_shard(file, tensors);
  }
  waiting_.clear();
  waiting_bytes_ = 0;
  journal_.seal_shard(covered, std::move(written));
}

void OutShards::finish() {
  advance();
  if (next_ == 1 + ckpt_.spec.layers) take(next_++);
  if (!waiting_.empty() || journal_.shards() == 0) write(journal_.sealed_blocks());
  int64_t total = 0;
  std::vector<ShardNames> names;
  for (int64_t k = 0; k < journal_.shards(); ++k) {
    ShardNames& of_shard = names.emplace_back();
    for (const auto& [name, info] : container_safetensors.open(journal_.shard_file(k)).tensors) {
      of_shard.push_back(name);
      total += info.bytes;
    }
  }
  const fs::path folder = journal_.shard_file(0).parent_path();
  journal_.name_shards();
  if (names.size() > 1) write_shard_index(folder / "model.safetensors.index.json", names, total);
}

}  // namespace fewbit
