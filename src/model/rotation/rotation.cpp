#include "src/model/rotation/rotation.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/mapped_file.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/model/archs.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/float_type.h"
#include "src/model/rotation/hadamard_basis.h"

namespace fewbit {
namespace {

using Read = std::function<Tensor()>;

[[noreturn]] void refuse(const Checkpoint& c, const std::string& why) {
  fail(ErrorKind::unsupported, fmt::format("{}: rotate: {}", c.dir.string(), why));
}

// What the whole model must be, besides its blocks.
void require_turnable(const Checkpoint& c) {
  if (c.spec.streams > 1 || token_input_of(c.spec))
    refuse(c, c.spec.arch + " feeds its layers by more than one stream");
  if (c.spec.final_norm_kind == NormKind::layer)
    refuse(c, "Norm " + c.spec.final_norm + " takes a mean away, which a rotation does not keep");
  if (const auto others = unknown_matrices(c); !others.empty())
    refuse(c, fmt::format("{} is of a tower or of MTP layers, which read or feed the residual stream; leave it out "
                          "with --drop",
                          others.front()));
}

// The config with a head of its own.
ConfigView untied(const ConfigView& config) {
  auto j = parse_ordered_json(config.text(), config.where(), kConfigJson);
  j["tie_word_embeddings"] = false;
  if (j.contains("text_config") && j["text_config"].is_object()) j["text_config"]["tie_word_embeddings"] = false;
  return ConfigView::parse(python_json(j, 2), config.where());
}

// Columns times the weight of a norm.
void weigh(Tensor& w, const Tensor& norm, float offset) {
  const int64_t in = w.cols();
  FEWBIT_ASSERT(norm.numel() == in);
  parallel_for(w.numel() / in, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < in; ++i) w.as<float>()[r * in + i] *= norm.as<float>()[i] + offset;
  });
}

class Rotation {
 public:
  Rotation(const Checkpoint& c, uint64_t seed, std::optional<DType> type, bool turns_heads)
      : c_(c),
        seed_(seed),
        type_(type),
        turns_heads_(turns_heads),
        stream_(std::make_shared<HadamardBasis>(c.spec.hidden, seed, "stream")) {
    for (const std::vector<BlockOp>& ops : c.spec.kinds) {
      std::string why_not;
      kinds_.push_back(turned_tensors(c.spec, ops, why_not));
      if (!why_not.empty()) refuse(c, why_not);
      for (auto& [name, t] : kinds_.back())
        if (!turns_heads) t.heads_in = t.heads_out = 0;
    }
  }

  void edit(const ModelSpec& turned, CheckpointIndex& index, WeightStore::Makers& makers) {
    std::map<std::string, Read> made;
    for (int64_t layer = 0; layer < c_.spec.layers; ++layer) turn_layer(layer, index, makers, made);
    const Read norm = reader(c_.spec.final_norm, index, makers);
    const float offset = weight_offset(c_.spec.final_norm_kind);
    const Read embed = reader(c_.spec.embed, index, makers), head = reader(c_.spec.lm_head, index, makers);
    made[c_.spec.embed] = [read = embed, stream = stream_] {
      Tensor w = read();
      stream->turn(w.as<float>(), w.rows(), 1);
      return w;
    };
    made[turned.lm_head] = [read = head, norm, offset, stream = stream_] {
      Tensor w = read();
      weigh(w, norm(), offset);
      stream->turn(w.as<float>(), w.rows(), 1);
      return w;
    };
    made[c_.spec.final_norm] = ones(c_.spec.hidden, 1 - offset);
    if (turned.lm_head != c_.spec.lm_head) {
      TensorInfo info = index.tensors.at(c_.spec.lm_head);
      info.name = turned.lm_head;
      index.tensors[info.name] = info;
    }
    for (auto& [name, make] : made) {
      TensorInfo& info = index.tensors.at(name);
      if (type_) info.dtype = *type_;
      info.bytes = info.shape.numel() * bytes_of(info.dtype);
      makers[name] = [make = std::move(make), type = info.dtype] { return in_float_type(make(), type); };
    }
  }

  std::string says(const ModelSpec& turned) const {
    std::set<int64_t> heads;
    for (const TurnedTensors& kind : kinds_)
      for (const auto& [name, t] : kind)
        if (t.heads_out) heads.insert(t.heads_out);
    std::string s = fmt::format("rotate: residual stream {}", stream_->str());
    for (const int64_t width : heads) s += fmt::format(", values of heads {}", HadamardBasis(width, 0, "").str());
    if (!turns_heads_)
      s += ", values of heads as they are";
    else if (heads.empty())
      s += ", values of heads as they are (no linear makes them alone)";
    s += fmt::format("; seed {}", seed_);
    if (turned.lm_head != c_.spec.lm_head)
      s += fmt::format("; the head, which was the embedding, is a tensor of its own: {} more",
                       human_bytes(c_.store.find(c_.spec.embed)->bytes));
    return s;
  }

 private:
  // A tensor of the model as it is stored, in f32; opened anew, so that nothing stays mapped between two weights.
  Read reader(const std::string& name, const CheckpointIndex& index, const WeightStore::Makers& makers) const {
    const auto at = index.tensors.find(name);
    if (at == index.tensors.end() || !is_float(at->second.dtype) || !at->second.stored.empty())
      refuse(c_, fmt::format("{} is packed in the model ({}); turn the float one", name, c_.format));
    if (const auto made = makers.find(name); made != makers.end())
      return [make = made->second] { return float_values(make()); };
    return [file = index.files[static_cast<size_t>(at->second.file)].path(), info = at->second] {
      const MappedFile mapped = MappedFile::windowed(file);
      return float_values({mapped.at(info.begin, info.bytes), info.dtype, info.shape, {}});
    };
  }

  static Read ones(int64_t n, float one) {
    return [n, one] {
      Tensor t = Tensor::host(DType::f32, {n});
      std::fill_n(t.as<float>(), n, one);
      return t;
    };
  }

  void turn_layer(int64_t layer, const CheckpointIndex& index, const WeightStore::Makers& makers,
                  std::map<std::string, Read>& made) const {
    const std::string prefix = c_.spec.prefix(layer);
    for (const auto& [name, t] : kinds_[static_cast<size_t>(c_.spec.kind(layer))]) {
      const Read read = reader(prefix + name, index, makers);
      if (t.becomes_one)
        made[prefix + name] = ones(index.tensors.at(prefix + name).shape.numel(), t.one);
      else
        made[prefix + name] = turned(t, read, t.norm.empty() ? Read() : reader(prefix + t.norm, index, makers),
                                     fmt::format("values {}", layer));
    }
  }

  Read turned(const TurnedTensor& t, Read read, Read norm, const std::string& heads) const {
    const int64_t head = std::max(t.heads_in, t.heads_out);
    const auto values = head ? std::make_shared<HadamardBasis>(head, seed_, heads) : nullptr;
    return [t, read = std::move(read), norm = std::move(norm), values, stream = stream_] {
      Tensor w = read();
      const int64_t in = w.shape().rank() == 2 ? w.cols() : 1, out = w.numel() / in;
      FEWBIT_ASSERT((!t.reads || in == stream->width()) && (!t.writes || out == stream->width()));
      if (norm) weigh(w, norm(), t.norm_offset);
      float* x = w.as<float>();
      if (t.reads) stream->turn(x, out, 1);
      if (t.heads_in) values->turn(x, w.numel() / t.heads_in, 1);
      if (t.writes) stream->turn(x, 1, in);
      if (t.heads_out) values->turn(x, out / t.heads_out, in);
      return w;
    };
  }

  const Checkpoint& c_;
  uint64_t seed_;
  std::optional<DType> type_;
  bool turns_heads_;
  std::shared_ptr<const HadamardBasis> stream_;
  std::vector<TurnedTensors> kinds_{};
};

}  // namespace

Checkpoint with_rotation(Checkpoint c, uint64_t seed, std::optional<DType> type, bool turns_heads) {
  require_turnable(c);
  Rotation rotation(c, seed, type, turns_heads);
  ConfigView config = untied(c.config);
  ModelSpec turned = build_spec(config);
  if (turned.tied()) refuse(c, c.spec.arch + " has no config for a head that is not the embedding");
  std::string said = rotation.says(turned);
  c.blocks.clear();  // what is stored is not what is read any more
  c.store = std::move(c.store).reindexed([&](const std::filesystem::path&, CheckpointIndex& index,
                                             WeightStore::Makers& makers) { rotation.edit(turned, index, makers); });
  c.config = std::move(config);
  c.spec = std::move(turned);
  c.rotation = std::move(said);
  c.rotation_seed = seed;
  return c;
}

}  // namespace fewbit
