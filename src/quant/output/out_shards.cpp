#include "src/quant/output/out_shards.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "src/core/file_io.h"
#include "src/core/inline_parallel.h"
#include "src/model/checkpoint_parts.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// Full shards whose digest is still being taken. Each has a thread and a buffer of a mebibyte; blocks do not come so
// fast that more would help.
constexpr size_t kFinishing = 3;

int64_t bytes_in(const TensorInfo& t) { return t.shape.numel() * bytes_of(t.dtype); }

}  // namespace

void remove_all_but_shards(const Journal& journal) {
  std::set<fs::path> shards = journal.files_of_ranges();
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
      stacked_(plan.format->stacked),
      codes_last_(codes_come_last(plan)),
      full_(journal.shards()) {
  std::set<std::string> replaced;
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep) replaced.insert(p.linear.name);
  for (const auto& [name, info] : c.store.index().tensors)
    if (!holds_weights(c, name) || !replaced.count(name.substr(0, name.rfind('.'))))
      of_model_[static_cast<size_t>(unit_of(name))].push_back(&info);
  for (int64_t k = 0; k < journal.shards(); ++k)
    for (const auto& [name, info] : container_safetensors.open(journal.shard_file(k)).tensors) written_.insert(name);
  foresee(plan);
  for (size_t shard = 0; shard < foreseen_.size(); ++shard)
    for (const TensorInfo& t : foreseen_[shard]) place_of_.emplace(t.name, Foreseen{static_cast<int64_t>(shard), &t});
  go_on();
  if (!place_of_.empty())
    journal_.place_blocks_by(
        [this](int64_t layer, const std::vector<NamedTensor>& tensors) { return place(layer, tensors); });
}

// What blocks of an earlier run lie in is gone on with where it was begun as this run would, else set aside.
void OutShards::go_on() {
  std::error_code ec;
  fs::create_directories(journal_.dir() / kBuilt, ec);
  remove_all_but_shards(journal_);
  std::map<int64_t, TensorDigests> there;
  const int64_t sealed = journal_.sealed_blocks();
  for (int64_t layer = 0; layer < sealed; ++layer)
    for (const SealedRange& r : journal_.ranges(layer))
      if (r.shard >= journal_.shards()) there[r.shard].emplace(r.tensor, r.digest);
  for (auto& [shard, digests] : there) {
    with_blocks_.insert(shard);
    const fs::path file = journal_.shard_file(shard);
    const bool kept = journal_.file_of_ranges(shard) == file;
    std::optional<OpenShard> open;
    if (kept && shard < static_cast<int64_t>(foreseen_.size()))
      open = OpenShard::go_on(file, foreseen_[static_cast<size_t>(shard)], std::move(digests));
    if (open) {
      open_.emplace(shard, std::make_shared<OpenShard>(*std::move(open)));
      continue;
    }
    otherwise_ = true;
    if (kept && fs::exists(file, ec)) journal_.set_aside(shard);
  }
  for (int64_t layer = journal_.covered_blocks(); layer < sealed; ++layer) {
    std::vector<TensorInfo> tensors;
    const SealedRanges ranges = journal_.ranges(layer);
    for (const SealedRange& r : ranges)
      if (open_.count(r.shard) || r.shard < journal_.shards())
        if (const auto at = place_of_.find(r.tensor); at != place_of_.end() && at->second.shard == r.shard)
          tensors.push_back(*at->second.tensor);
    if (!ranges.empty() && tensors.size() == ranges.size()) placed_.emplace(layer, std::move(tensors));
  }
}

// The shard of that number where it was foreseen with this tensor, which it does not have yet. Under `guard_`.
OutShards::Shard OutShards::foreseen(int64_t shard, const TensorInfo& t) {
  const auto at = place_of_.find(t.name);
  if (otherwise_ || at == place_of_.end() || at->second.shard != shard || shard < full_) return nullptr;
  auto it = open_.find(shard);
  if (it == open_.end())
    it = open_
             .emplace(shard,
                      std::make_shared<OpenShard>(journal_.shard_file(shard), foreseen_[static_cast<size_t>(shard)]))
             .first;
  return it->second->wants(t) ? it->second : nullptr;
}

// What stands in front of the blocks and behind them is put into its files by a thread for each of them, for as long as
// it takes.
void OutShards::begin() {
  std::map<int64_t, std::vector<const TensorInfo*>> of_shard;
  for (const auto* own : {&of_model_.front(), &of_model_.back()})
    for (const TensorInfo* info : *own)
      if (const auto at = place_of_.find(info->name); at != place_of_.end()) {
        const std::lock_guard lock(guard_);
        Shard to = foreseen(at->second.shard, *info);
        if (!to) continue;
        of_shard[at->second.shard].push_back(info);
        beside_[at->second.shard].shard = std::move(to);
      }
  for (auto& [shard, own] : of_shard) {
    Beside& b = beside_.at(shard);
    for (const TensorInfo* info : own) b.names.insert(info->name);
    b.done = std::async(std::launch::async, [this, to = b.shard, own = std::move(own)] {
      const InlineParallel alone;
      Blocks none;
      for (const TensorInfo* info : own) put(*to, {*info, kModel}, none);
    });
  }
  take(next_++);
}

bool OutShards::beside(int64_t shard, const std::string& tensor) const {
  const auto at = beside_.find(shard);
  return at != beside_.end() && at->second.names.count(tensor);
}

// What is still being put into a shard that is full, and its names. Where the shard will be begun anew, nothing: then
// it has ended, for nobody may write into a file that goes.
std::future<void> OutShards::let_go_beside(int64_t shard, const std::vector<TensorInfo>& infos,
                                           std::set<std::string>& names) {
  const auto at = beside_.find(shard);
  if (at == beside_.end()) return {};
  Beside b = std::move(at->second);
  beside_.erase(at);
  if (b.shard->holds(infos)) {
    names = std::move(b.names);
    return std::move(b.done);
  }
  if (b.done.valid()) b.done.get();
  return {};
}

void OutShards::advance(int64_t sealed) {
  if (next_ == 0) begin();
  seal_finished(kFinishing);
  while (next_ <= ckpt_.spec.layers && next_ <= sealed) take(next_++);
  journal_.make_safe_in_time();
}

void OutShards::take(int64_t unit) {
  const int64_t block = unit - 1;
  std::map<std::string, Waiting> tensors;
  if (unit > 0 && block < journal_.covered_blocks()) return;
  if (ends_before(unit, waiting_bytes_)) write(block);
  Blocks blocks;
  if (unit > 0 && (block < ckpt_.spec.layers || journal_.sealed(block)))
    for (TensorInfo& info : tensors_of(block, blocks)) {
      const std::string name = info.name;
      tensors.emplace(name, Waiting{std::move(info), block});
    }
  for (const TensorInfo* info : of_model_[static_cast<size_t>(unit)])
    tensors.emplace(info->name, Waiting{*info, kModel});
  if (stacked_ && unit > 0 && block < ckpt_.spec.layers) stack(block, tensors);
  for (auto& [name, t] : tensors) {
    if (!written_.insert(name).second) continue;
    t.info.bytes = bytes_in(t.info);
    if (!waiting_.empty() && waiting_bytes_ + t.info.bytes > shard_bytes_) write(std::max<int64_t>(0, block));
    waiting_bytes_ += t.info.bytes;
    Shard open;
    {
      const std::lock_guard lock(guard_);
      open = foreseen(number(), t.info);
    }
    if (open && !beside(number(), name)) put(*open, t, blocks);
    waiting_.push_back(std::move(t));
  }
  catch_up();
}

// The tensors of a sealed block, which is opened unless it lies in shards that are open.
std::vector<TensorInfo> OutShards::tensors_of(int64_t block, Blocks& blocks) {
  {
    const std::lock_guard lock(guard_);
    if (const auto placed = placed_.find(block); placed != placed_.end()) return placed->second;
  }
  std::vector<TensorInfo> all;
  for (const auto& [name, info] : blocks.emplace(block, journal_.open_block(block)).first->second.tensors)
    all.push_back(info);
  return all;
}

// Tensors that blocks were put into the next shard with are not in its digest yet.
void OutShards::catch_up() {
  Shard next;
  {
    const std::lock_guard lock(guard_);
    if (const auto it = open_.find(number()); it != open_.end()) next = it->second;
  }
  if (next) next->catch_up();
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

// The shard of that number with these tensors. One that was foreseen otherwise is set aside where blocks lie in it.
OutShards::Shard OutShards::begun_for(int64_t number, const std::vector<TensorInfo>& infos) {
  const std::lock_guard lock(guard_);
  if (const auto it = open_.find(number); it != open_.end()) {
    if (it->second->holds(infos)) return it->second;
    open_.erase(it);
    otherwise_ = true;
    if (with_blocks_.count(number)) journal_.set_aside(number);
  }
  return open_.emplace(number, std::make_shared<OpenShard>(journal_.shard_file(number), infos)).first->second;
}

// What waits becomes a shard. The first `covered` blocks have nothing that is not in shards then.
void OutShards::write(int64_t covered) {
  const int64_t full = number();
  std::vector<TensorInfo> infos;
  infos.reserve(waiting_.size());
  for (const Waiting& w : waiting_) infos.push_back(w.info);
  std::set<std::string> coming;
  auto beside = std::make_shared<std::future<void>>(let_go_beside(full, infos, coming));
  const Shard shard = begun_for(full, infos);
  {
    Blocks blocks;  // closed before their files go, or their room would stay taken
    for (const Waiting& w : waiting_)
      if (!coming.count(w.info.name) && shard->wants(w.info)) put(*shard, w, blocks);
  }
  finishing_.push_back({covered, std::async(std::launch::async, [shard, beside, file = journal_.shard_file(full)] {
                          if (beside->valid()) beside->get();
                          WrittenFile written = shard->finish();
                          sync_file(file);  // what the seal waits for
                          return written;
                        })});
  {
    const std::lock_guard lock(guard_);
    open_.erase(full);
    full_ = full + 1;
  }
  waiting_.clear();
  waiting_bytes_ = 0;
  seal_finished(kFinishing);
}

// Seals the shards that are finished, in their order, and waits until no more than `most` are not. What went wrong
// beside is thrown here.
void OutShards::seal_finished(size_t most) {
  const auto ready = [](const auto& f) {
    return f.valid() && f.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  for (auto& [shard, b] : beside_)
    if (ready(b.done)) b.done.get();
  while (!finishing_.empty() && (finishing_.size() > most || ready(finishing_.front().file))) {
    WrittenFile written = finishing_.front().file.get();
    const int64_t covered = finishing_.front().covered;
    finishing_.pop_front();  // before the journal counts it
    journal_.seal_shard(covered, std::move(written));
  }
}

void OutShards::finish() {
  advance(journal_.sealed_blocks());
  if (next_ == 1 + ckpt_.spec.layers) take(next_++);
  if (!waiting_.empty() || number() == 0) write(journal_.sealed_blocks());
  seal_finished(0);
  for (auto& [shard, b] : beside_)
    if (b.done.valid()) b.done.get();
  beside_.clear();
  for (const auto& [shard, foreseen] : open_) fs::remove(journal_.shard_file(shard));  // that there is not after all
  open_.clear();
  remove_all_but_shards(journal_);
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
