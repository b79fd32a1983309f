#include "src/quant/output/out_shards.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "formats/kv_scales.h"
#include "src/core/file_io.h"
#include "src/core/inline_parallel.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

std::string stem(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.') + 1); }

int64_t bytes_in(const TensorInfo& t) { return t.shape.numel() * bytes_of(t.dtype); }

// What a file must hold to end for its digest's sake: a fifth of a second of one.
constexpr int64_t kWorthAFile = int64_t{256} << 20;

}  // namespace

void remove_all_but_shards(const Journal& journal) {
  std::set<fs::path> shards;
  for (int64_t k = 0; k < journal.shards(); ++k) shards.insert(journal.shard_file(k));
  std::vector<fs::path> others;
  std::error_code ec;
  for (fs::directory_iterator it(journal.dir() / kBuilt, ec), end; !ec && it != end; it.increment(ec))
    if (!shards.count(it->path())) others.push_back(it->path());
  for (const fs::path& p : others) fs::remove_all(p, ec);
}

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
  foresee(plan);
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

// Whether a file with so many bytes ends in front of the unit that comes, for its digest's sake.
bool OutShards::ends_before(int64_t unit, int64_t bytes) const {
  if (bytes < kWorthAFile) return false;
  if (unit <= ckpt_.spec.layers) {
    int64_t block = unit - 1;
    while (block >= 10 && block % 10 == 0) block /= 10;
    return unit > 10 && block == 1;
  }
  int64_t own = 0;
  for (const TensorInfo* info : of_model_.back()) own += bytes_in(*info);
  return own >= kWorthAFile;
}

// The tensors of every shard, by the rule of take(). Experts that are stacked are not foreseen, nor is a vector that a
// transform stores in another type.
void OutShards::foresee(const QuantPlan& plan) {
  if (stacked_) return;
  const ModelSpec& spec = ckpt_.spec;
  std::vector<std::map<std::string, TensorInfo>> units(of_model_.size());
  const auto add = [&](int64_t unit, TensorInfo info) {
    info.bytes = bytes_in(info);
    units[static_cast<size_t>(unit)].emplace(info.name, std::move(info));
  };
  for (const PlannedLinear& p : plan.linears) {
    if (p.keep || !p.packing) continue;
    const NamedLinear& l = p.linear;
    const bool full = p.recipe.act_order == ActOrder::full;
    for (const TensorPlan& t : p.packing->tensors(p.recipe.spec, l.out, l.in, full))
      add(1 + (l.layer == kOutsideBlocks ? spec.layers : l.layer),
          {.name = l.name + '.' + t.suffix, .dtype = t.dtype, .shape = t.shape});
  }
  for (int64_t layer = 0; plan.fp8_kv_cache && layer < spec.layers; ++layer)
    if (own_attention_of(spec.block(layer)))
      for (const NamedTensor& t :
           kv_scale_tensors(spec.prefix(layer) + attention_module(spec.block(layer)), {.k = {1}, .v = {1}}))
        add(1 + layer, {.name = t.name, .dtype = t.tensor.dtype(), .shape = t.tensor.shape()});
  for (size_t unit = 0; unit < units.size(); ++unit)
    for (const TensorInfo* info : of_model_[unit]) add(static_cast<int64_t>(unit), *info);
  std::set<std::string> seen;
  int64_t bytes = 0;
  foreseen_.emplace_back();
  const auto next = [&] {
    foreseen_.emplace_back();
    bytes = 0;
  };
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (ends_before(static_cast<int64_t>(unit), bytes)) next();
    for (auto& [name, info] : units[unit]) {
      if (!seen.insert(name).second) continue;
      if (!foreseen_.back().empty() && bytes + info.bytes > shard_bytes_) next();
      bytes += info.bytes;
      foreseen_.back().push_back(std::move(info));
    }
  }
}

// The shard of that number where it was foreseen with this tensor, which it does not have yet.
OpenShard* OutShards::foreseen(int64_t shard, const TensorInfo& t) {
  if (shard < journal_.shards() || shard >= static_cast<int64_t>(foreseen_.size())) return nullptr;
  const std::vector<TensorInfo>& all = foreseen_[static_cast<size_t>(shard)];
  auto it = open_.find(shard);
  if (it == open_.end()) {
    if (std::none_of(all.begin(), all.end(), [&](const TensorInfo& i) { return i.name == t.name; })) return nullptr;
    it = open_.emplace(shard, OpenShard(journal_.shard_file(shard), all)).first;
  }
  return it->second.wants(t) ? &it->second : nullptr;
}

// What stands in front of the blocks, and behind them what is the model's own.
void OutShards::begin() {
  std::error_code ec;
  fs::create_directories(journal_.dir() / kBuilt, ec);
  remove_all_but_shards(journal_);
  // The last file is the head's where it holds nothing of a block: it is filled beside the others.
  const auto last = static_cast<int64_t>(foreseen_.size()) - 1;
  const std::vector<const TensorInfo*>& own = of_model_.back();
  if (last > journal_.shards() && !own.empty() && foreseen_.back().size() == own.size() && foreseen(last, *own.front()))
    fill_own(last, own);
  take(next_++);
  Blocks none;
  for (const TensorInfo* info : own)
    for (int64_t shard = 0; shard < static_cast<int64_t>(foreseen_.size()); ++shard)
      if (shard != own_shard_)
        if (OpenShard* open = foreseen(shard, *info)) put(*open, {*info, kModel}, none);
}

void OutShards::fill_own(int64_t shard, std::vector<const TensorInfo*> own) {
  own_shard_ = shard;
  own_ = std::async(std::launch::async, [this, open = &open_.at(shard), own = std::move(own)] {
    const InlineParallel alone;
    Blocks none;
    for (const TensorInfo* info : own)
      if (open->wants(*info)) put(*open, {*info, kModel}, none);
  });
}

// Rethrows what went wrong there.
void OutShards::wait_for_own() {
  if (own_.valid()) own_.get();
  own_shard_ = -1;
}

void OutShards::advance(int64_t sealed) {
  if (next_ == 0) begin();
  while (next_ <= ckpt_.spec.layers && next_ <= sealed) take(next_++);
}

void OutShards::take(int64_t unit) {
  const int64_t block = unit - 1;
  std::map<std::string, Waiting> tensors;
  if (unit > 0 && block < journal_.covered_blocks()) return;
  if (ends_before(unit, waiting_bytes_)) write(block);
  Blocks blocks;
  if (unit > 0 && (block < ckpt_.spec.layers || journal_.sealed(block))) {
    blocks.emplace(block, journal_.open_block(block));
    for (const auto& [name, info] : blocks.at(block).tensors) tensors.emplace(name, Waiting{info, block});
  }
  for (const TensorInfo* info : of_model_[static_cast<size_t>(unit)])
    tensors.emplace(info->name, Waiting{*info, kModel});
  if (stacked_ && unit > 0 && block < ckpt_.spec.layers) stack(block, tensors);
  for (auto& [name, t] : tensors) {
    if (!written_.insert(name).second) continue;
    t.info.bytes = bytes_in(t.info);
    if (!waiting_.empty() && waiting_bytes_ + t.info.bytes > shard_bytes_) write(std::max<int64_t>(0, block));
    waiting_bytes_ += t.info.bytes;
    if (OpenShard* open = foreseen(journal_.shards(), t.info)) put(*open, t, blocks);
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

// The bytes of a tensor, whose memory is given back behind it.
void OutShards::put(OpenShard& shard, const Waiting& w, Blocks& blocks) const {
  const std::string& name = w.info.name;
  if (w.block == kModel) {
    shard.put(name, ckpt_.store.get(name));
    return ckpt_.store.release(name);
  }
  if (!blocks.count(w.block)) blocks.emplace(w.block, journal_.open_block(w.block));
  const CheckpointIndex& from = blocks.at(w.block);
  if (w.stack) {
    const Tensor stack = stacked(*w.stack, [&](const std::string& part) -> ConstTensorView {
      const auto at = from.tensors.find(part);
      return at == from.tensors.end() ? ckpt_.store.get(part) : from.view(at->second);
    });
    shard.put(name, stack);
    for (const std::string& part : w.stack->parts)
      if (ckpt_.store.has(part)) ckpt_.store.release(part);
    return;
  }
  const TensorInfo& at = from.tensors.at(name);
  shard.put(name, from.view(at));
  from.files[static_cast<size_t>(at.file)].forget(at.begin, at.bytes);
}

// What waits becomes a shard. The first `covered` blocks have nothing that is not in shards then.
void OutShards::write(int64_t covered) {
  const int64_t number = journal_.shards();
  if (number == own_shard_) wait_for_own();
  std::vector<TensorInfo> infos;
  infos.reserve(waiting_.size());
  for (const Waiting& w : waiting_) infos.push_back(w.info);
  auto it = open_.find(number);
  if (it != open_.end() && !it->second.holds(infos)) {
    open_.erase(it);
    it = open_.end();
  }
  if (it == open_.end()) it = open_.emplace(number, OpenShard(journal_.shard_file(number), infos)).first;
  {
    Blocks blocks;  // closed before their files go, or their room would stay taken
    for (const Waiting& w : waiting_)
      if (it->second.wants(w.info)) put(it->second, w, blocks);
  }
  WrittenFile written = it->second.finish();
  open_.erase(it);
  waiting_.clear();
  waiting_bytes_ = 0;
  journal_.seal_shard(covered, std::move(written));
}

void OutShards::finish() {
  advance(journal_.sealed_blocks());
  wait_for_own();
  if (next_ == 1 + ckpt_.spec.layers) take(next_++);
  if (!waiting_.empty() || journal_.shards() == 0) write(journal_.sealed_blocks());
  for (const auto& [shard, foreseen] : open_) fs::remove(journal_.shard_file(shard));  // that there is not after all
  open_.clear();
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
