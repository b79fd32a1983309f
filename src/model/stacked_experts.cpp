// Experts out of their stacks: gate and up, or down, of an expert are whole rows, so a name, an offset and a shape do.
// Where they lie by turns, what an expert's linear takes is gathered when it is asked for.
#include "src/model/stacked_experts.h"

#include <fmt/format.h>

#include <cstring>
#include <set>

#include "src/core/error.h"

namespace fewbit {
namespace {

constexpr int64_t kMxGroup = 32;  // inputs of an MXFP4 block, of 16 bytes

// The tensor `stack` [experts, all rows, columns] to the linears `defs` of every expert, one below the other.
void take_rows(const std::filesystem::path& path, CheckpointIndex& index, const std::string& prefix,
               const std::string& stack, const Moe& moe, const std::vector<const LinearDef*>& defs) {
  const auto at = index.tensors.find(prefix + stack);
  if (at == index.tensors.end()) return;
  int64_t rows = 0;
  for (const LinearDef* d : defs) rows += d->out_features;
  const int64_t columns = defs.front()->in_features;
  const TensorInfo whole = at->second;
  if (const Shape expected{moe.experts, rows, columns}; !(whole.shape == expected))
    fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected shape {} (experts, outputs, inputs), found {}",
                                            path.string(), whole.name, expected.str(), whole.shape.str()));
  index.tensors.erase(at);
  const int64_t row_bytes = whole.bytes / (moe.experts * rows);
  int64_t begin = whole.begin;
  for (int expert = 0; expert < moe.experts; ++expert)
    for (const LinearDef* d : defs) {
      TensorInfo one = whole;
      one.name = prefix + moe.of_expert(*d, expert).name + ".weight";
      one.shape = {d->out_features, columns};
      one.begin = begin;
      one.bytes = d->out_features * row_bytes;
      begin += one.bytes;
      index.tensors[one.name] = one;
    }
}

// Where the elements of a part lie in its stack.
struct Place {
  int64_t begin = 0;                       // bytes: of the expert
  int64_t rows = 0;                        // of it, of all linears
  int64_t first = 0, step = 1, count = 0;  // rows first, first + step, …, so many
  int64_t row = 0, bytes = 0;              // elements of a row, bytes of one
  bool turned = false;                     // rows are columns of [row, rows]

  // Calls copy(offset in the part, offset in the stack, bytes) for all of a part.
  template <class F>
  void each(const F& copy) const {
    for (int64_t o = 0; o < count; ++o) {
      const int64_t r = first + o * step;
      if (!turned) {
        copy(o * row * bytes, begin + r * row * bytes, row * bytes);
        continue;
      }
      for (int64_t i = 0; i < row; ++i) copy((o * row + i) * bytes, begin + (i * rows + r) * bytes, bytes);
    }
  }
};

Place place_of(const ExpertStack& s, size_t part, int64_t element_bytes) {
  const int64_t at = static_cast<int64_t>(part) / s.linears, linear = static_cast<int64_t>(part) % s.linears;
  Place p{.rows = s.part[0] * s.linears, .count = s.part[0], .bytes = element_bytes, .turned = s.turned};
  p.first = s.by_turns ? linear : linear * p.count;
  p.step = s.by_turns ? s.linears : 1;
  p.row = s.part.numel() / p.count;
  p.begin = at * p.rows * p.row * p.bytes;
  return p;
}

void take_turned(const std::filesystem::path& path, CheckpointIndex& index, WeightStore::Makers& makers,
                 const ExpertStack& s) {
  const auto at = index.tensors.find(s.name);
  if (at == index.tensors.end()) return;
  const TensorInfo whole = at->second;
  if (!(whole.shape == s.shape))
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}: expected shape {}, found {}", path.string(), s.name, s.shape.str(), whole.shape.str()));
  index.tensors.erase(at);
  const ConstTensorView all = index.view(whole);
  for (size_t i = 0; i < s.parts.size(); ++i) {
    TensorInfo one = whole;
    one.name = s.parts[i];
    one.shape = s.part;
    one.bytes = s.part.numel() * bytes_of(whole.dtype);
    makers[one.name] = [all, shape = s.part, place = place_of(s, i, bytes_of(whole.dtype))] {
      Tensor t = Tensor::host(all.dtype, shape);
      auto* to = static_cast<uint8_t*>(t.view().data);
      const auto* from = static_cast<const uint8_t*>(all.data);
      place.each([&](int64_t in_part, int64_t in_stack, int64_t bytes) {
        std::memcpy(to + in_part, from + in_stack, static_cast<size_t>(bytes));
      });
      return t;
    };
    index.tensors[one.name] = one;
  }
}

ExpertStack stack_of(const ModelSpec& spec, int64_t layer, const Moe& moe, const std::vector<const LinearDef*>& defs,
                     const std::string& name, const char* single) {
  ExpertStack s{.name = spec.prefix(layer) + name,
                .linears = static_cast<int64_t>(defs.size()),
                .by_turns = moe.stacks == Moe::Stacks::turned_by_turns};
  for (int expert = 0; expert < moe.experts; ++expert)
    for (const LinearDef* d : defs) s.parts.push_back(spec.prefix(layer) + moe.of_expert(*d, expert).name + single);
  return s;
}

// The stacks of linears with one input and as many outputs each.
void add_stacks(const ModelSpec& spec, int64_t layer, const Moe& moe, const std::string& name,
                const std::vector<const LinearDef*>& defs, std::vector<ExpertStack>& all) {
  const int64_t out = defs.front()->out_features, in = defs.front()->in_features;
  const int64_t rows = out * static_cast<int64_t>(defs.size()), groups = (in + kMxGroup - 1) / kMxGroup;
  const auto add = [&](const char* stacked, const char* single, const Shape& shape, const Shape& part, bool turned) {
    ExpertStack s = stack_of(spec, layer, moe, defs, name + stacked, single);
    s.shape = shape;
    s.part = part;
    s.turned = turned;
    all.push_back(std::move(s));
  };
  add("", ".weight", {moe.experts, in, rows}, {out, in}, true);
  if (moe.stacks != Moe::Stacks::turned_by_turns) return;
  add("_blocks", ".blocks", {moe.experts, rows, groups, kMxGroup / 2}, {out, groups * (kMxGroup / 2)}, false);
  add("_scales", ".scales", {moe.experts, rows, groups}, {out, groups}, false);
  if (defs.front()->bias) add("_bias", ".bias", {moe.experts, rows}, {out}, false);
}

}  // namespace

std::vector<ExpertStack> turned_stacks_of(const ModelSpec& spec, int64_t layer) {
  std::vector<ExpertStack> all;
  for (const BlockOp& op : spec.block(layer)) {
    const Moe* m = std::get_if<Moe>(&op);
    if (!m || m->stacks == Moe::Stacks::rows) continue;
    add_stacks(spec, layer, *m, m->stacked_gate_up, {&m->gate, &m->up}, all);
    add_stacks(spec, layer, *m, m->stacked_down, {&m->down}, all);
  }
  return all;
}

std::string refuses_stacks(const ModelSpec& spec, const std::function<bool(const std::string& linear)>& packed) {
  std::set<std::string> experts;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const ExpertStack& s : turned_stacks_of(spec, layer))
      for (const std::string& part : s.by_turns ? s.parts : std::vector<std::string>{})
        experts.insert(part.substr(0, part.rfind('.')));
  if (experts.empty())
    return fmt::format(
        "is for families that stack their experts as gpt-oss does, which {} does not; compressed-tensors holds the "
        "same codes",
        spec.arch);
  std::string kept, other;
  int others = 0;
  for (const NamedLinear& l : linears_of(spec)) {
    const bool expert = experts.count(l.name) > 0;
    if (expert && !packed(l.name)) kept = l.name;
    if (!expert && packed(l.name) && ++others == 1) other = l.name;
  }
  if (!kept.empty()) return fmt::format("holds all experts of a layer in one tensor, and {} would not be packed", kept);
  if (others == 0) return "";
  return fmt::format(
      "holds experts alone, and {} other linears would be packed ({}, …); --keep '*self_attn*' leaves attention as it "
      "is",
      others, other);
}

Tensor stacked(const ExpertStack& s, const std::function<ConstTensorView(const std::string& part)>& get) {
  Tensor all;
  for (size_t i = 0; i < s.parts.size(); ++i) {
    const ConstTensorView part = get(s.parts[i]);
    if (all.empty()) all = Tensor::host(part.dtype, s.shape);
    FEWBIT_ASSERT(part.dtype == all.dtype() && part.shape == s.part);
    auto* to = static_cast<uint8_t*>(all.view().data);
    const auto* from = static_cast<const uint8_t*>(part.data);
    place_of(s, i, bytes_of(part.dtype)).each([&](int64_t in_part, int64_t in_stack, int64_t bytes) {
      std::memcpy(to + in_stack, from + in_part, static_cast<size_t>(bytes));
    });
  }
  return all;
}

namespace {

// Stacks that a family has turned, which transformers 5 writes as rows when it saves a model: their shape says so.
bool written_as_rows(const CheckpointIndex& index, const std::string& name, const LinearDef& d, int64_t linears,
                     const Moe& moe) {
  const auto at = index.tensors.find(name);
  const int64_t rows = linears * d.out_features;
  return at != index.tensors.end() && rows != d.in_features &&
         at->second.shape == Shape{moe.experts, rows, d.in_features};
}

}  // namespace

WeightStore with_single_experts(const ModelSpec& spec, WeightStore store) {
  return std::move(store).reindexed(
      [&](const std::filesystem::path& path, CheckpointIndex& index, WeightStore::Makers& makers) {
        for (int64_t layer = 0; layer < spec.layers; ++layer) {
          const std::string prefix = spec.prefix(layer);
          for (const BlockOp& op : spec.block(layer)) {
            const Moe* m = std::get_if<Moe>(&op);
            if (!m || m->stacked_gate_up.empty() || m->stacks == Moe::Stacks::turned_by_turns) continue;
            const bool rows = m->stacks == Moe::Stacks::rows;
            if (rows || written_as_rows(index, prefix + m->stacked_gate_up, m->gate, 2, *m))
              take_rows(path, index, prefix, m->stacked_gate_up, *m, {&m->gate, &m->up});
            if (rows || written_as_rows(index, prefix + m->stacked_down, m->down, 1, *m))
              take_rows(path, index, prefix, m->stacked_down, *m, {&m->down});
          }
          for (const ExpertStack& s : turned_stacks_of(spec, layer)) take_turned(path, index, makers, s);
        }
      });
}

}  // namespace fewbit
