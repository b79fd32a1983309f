// Random checkpoints in the shape of public models. The generator is a sum of four uniform bytes: its
// distribution is close to a normal one (excess kurtosis -0.3, nothing beyond 3.45 standard deviations), and
// two values cost one hash.
#include "src/model/synth/synth.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/checkpoint_format.h"
#include "formats/container.h"
#include "src/core/half.h"
#include "src/core/parallel.h"
#include "src/core/rng.h"
#include "src/core/strings.h"
#include "src/model/archs.h"
#include "src/model/synth/synth_configs.h"
#include "src/model/synth/synth_shapes.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr float kStd = 0.02f;              // of all weights: the usual initializer_range
constexpr float kByteSumStd = 147.801f;    // of the sum of four uniform bytes: sqrt(4 * (256^2 - 1) / 12)
constexpr int kInt8Step = 16;              // codes between two levels of int8
constexpr float kScale = kStd * 2.7f / 8;  // of int4 groups: absmax of 128 normal values is about 2.7 std

// Values centre + std * (about normal), keyed by name and element.
Tensor random_bf16(uint64_t seed, const std::string& name, const Shape& shape, float centre, float std) {
  const Rng rng(seed, name);
  Tensor t = Tensor::host(DType::bf16, shape);
  const int64_t n = t.numel();
  const float unit = std / kByteSumStd;
  parallel_for((n + 1) / 2, 1 << 16, [&](int64_t begin, int64_t end) {
    bf16* to = t.as<bf16>();
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t r = rng.at(static_cast<uint64_t>(i));
      const uint64_t pairs = (r & 0x00ff00ff00ff00ffull) + ((r >> 8) & 0x00ff00ff00ff00ffull);
      const uint64_t sums = (pairs & 0x0000ffff0000ffffull) + ((pairs >> 16) & 0x0000ffff0000ffffull);
      to[2 * i] = centre + unit * static_cast<float>(static_cast<int>(sums & 0xffff) - 510);
      if (2 * i + 1 < n) to[2 * i + 1] = centre + unit * static_cast<float>(static_cast<int>(sums >> 32) - 510);
    }
  });
  return t;
}

// What a name of --format stands for: fp8 and int8 are what `quantize fp8` and `quantize "rtn w8a8"` write, mxfp4 has
// experts in MXFP4 and all else in bf16, as gpt-oss is published, by names of single experts.
struct SynthFormat {
  const CheckpointFormat* format = nullptr;
  QuantSpec spec{};
  bool experts_alone = false;  // that are packed
};
constexpr std::pair<std::string_view, Grid> kByteFormats[] = {{"fp8", Grid::f8_e4m3}, {"int8", Grid::integer}};
SynthFormat synth_format(const std::string& name) {
  for (const auto& [alias, grid] : kByteFormats) {
    if (alias != name) continue;
    const QuantSpec bytes{
        .grid = grid, .bits = 8, .group = -1, .scale_dtype = DType::f32, .activations = ActQuant::token};
    return {&default_checkpoint_format(bytes, false), bytes};
  }
  if (name == "mxfp4") return {&checkpoint_format("compressed-tensors"), kMxfp4, true};
  return {&checkpoint_format(name), {}};
}

// The codes of the levels -8 … 7 on a grid, and the step between them in scales.
std::array<uint8_t, 16> level_codes(const QuantSpec& spec) {
  std::array<uint8_t, 16> codes{};
  for (size_t i = 0; i < codes.size(); ++i) {
    const int level = static_cast<int>(i) - 8, shifted = spec.mid_code() + level * (spec.bits == 8 ? kInt8Step : 1);
    const int magnitude = std::min(7, std::abs(level));  // the codes of E2M1 rise as their values do
    codes[i] = spec.grid == Grid::f8_e4m3   ? f32_to_f8_e4m3_saturated(static_cast<float>(level))
               : spec.grid == Grid::f4_e2m1 ? static_cast<uint8_t>(level < 0 ? 8 | magnitude : magnitude)
                                            : static_cast<uint8_t>(shifted);
  }
  return codes;
}

// Levels -7 + two uniform 3-bit numbers: mean 0, standard deviation 3.24. With scales around kScale the
// weights have a standard deviation of 0.022 and no common offset.
QuantizedLinear random_codes(uint64_t seed, const NamedLinear& linear, const QuantSpec& spec) {
  const Rng rng(seed, linear.name + ".codes"), scale_rng(seed, linear.name + ".scales");
  const std::array<uint8_t, 16> codes = level_codes(spec);
  const float step = spec.grid == Grid::integer && spec.bits == 8 ? kInt8Step : 1;
  QuantizedLinear q;
  q.spec = spec;
  q.codes = Tensor::host(DType::u8, {linear.out, linear.in});
  const int64_t n = q.codes.numel();
  parallel_for((n + 7) / 8, 1 << 14, [&](int64_t begin, int64_t end) {
    uint8_t* to = q.codes.as<uint8_t>();
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t r = rng.at(static_cast<uint64_t>(i));
      uint64_t eight = (r & 0x0707070707070707ull) + ((r >> 3) & 0x0707070707070707ull) + 0x0101010101010101ull;
      for (int64_t j = 8 * i; j < std::min(n, 8 * i + 8); ++j, eight >>= 8) to[j] = codes[eight & 15];
    }
  });
  q.scales = Tensor::host(DType::f32, {linear.out, spec.groups(linear.in)});
  parallel_for(q.scales.numel(), 1 << 13, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto u = static_cast<float>(scale_rng.uniform_at(static_cast<uint64_t>(i)));
      q.scales.as<float>()[i] = representable_scale(kScale / step * (0.75f + 0.5f * u), spec.scale_dtype);
    }
  });
  return q;
}

// 2:4 sparsity: two of every four inputs get the code of zero, others from quad to quad.
void prune(QuantizedLinear& q) {
  for (int64_t i = 0; i < q.codes.numel(); ++i)
    if ((i + i / 4) % 4 < 2) q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(q.spec.mid_code());
}

// Tensors that multiply what they stand for, beside norms: they are around 1.
std::set<std::string> factors_of(const ModelSpec& spec) {
  std::set<std::string> names;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const BlockOp& op : spec.block(layer)) {
      if (const Scale* s = std::get_if<Scale>(&op)) names.insert(spec.prefix(layer) + s->name);
      if (const Norm* n = std::get_if<Norm>(&op); n && n->bare) names.insert(spec.prefix(layer) + n->name);
      if (const Moe* m = std::get_if<Moe>(&op)) names.insert(spec.prefix(layer) + m->expert_scale);
    }
  return names;
}

// The linears of experts.
std::set<std::string> experts_of(const ModelSpec& spec) {
  std::set<std::string> names;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const BlockOp& op : spec.block(layer))
      if (std::holds_alternative<Moe>(op))
        for (const LinearDef& l : linears_of(op)) names.insert(spec.prefix(layer) + l.name);
  return names;
}

// Adds tensors to the writer and counts.
class Synthesizer {
 public:
  Synthesizer(CheckpointWriter& writer, const ModelSpec& spec, const SynthOptions& options)
      : writer_(writer), spec_(spec), options_(options), format_(synth_format(options.format)) {
    const QuantSpec& codes = format_.spec;
    dense_only_ = format_.format->candidates(codes).empty();
    summary_.dense = routers_of(spec);
    const std::set<std::string> experts = experts_of(spec);
    if (format_.experts_alone && experts.empty())
      fail(ErrorKind::unsupported, "format " + options.format + " packs experts, and " + options.preset + " has none");
    for (const NamedLinear& l : linears_of(spec)) {
      if (dense_only_ || (format_.experts_alone && !experts.contains(l.name))) {
        if (!dense_only_) summary_.dense.push_back(l.name);
        total_ += 2 * l.out * l.in;
        continue;
      }
      std::string why;
      const Packing* p = choose_packing(*format_.format, codes, l.out, l.in, false, &why);
      if (!p) fail(ErrorKind::unsupported, l.name + ": format " + options.format + " cannot take it: " + why);
      summary_.linears[l.name] = {.packing = p, .spec = codes};
      total_ += packed_bytes(*p, codes, l.out, l.in, false);
    }
    for (const NamedDense& d : dense_tensors_of(spec)) total_ += 2 * d.shape.numel();
  }

  // In the order of the layers, so that shards follow it.
  void run(const std::function<void(int64_t, int64_t)>& progress) {
    const auto dense = dense_tensors_of(spec_);
    const auto linears = linears_of(spec_);
    const auto report = [&] {
      if (progress) progress(done_, total_);
    };
    for (const NamedDense& d : dense)
      if (!starts_with(d.name, spec_.block_prefix)) add_dense(d), report();
    for (int64_t layer = 0; layer < spec_.layers; ++layer) {
      for (const NamedDense& d : dense)
        if (starts_with(d.name, spec_.prefix(layer))) add_dense(d);
      for (const NamedLinear& l : linears)
        if (l.layer == layer) add_linear(l), report();
    }
  }

  int64_t bytes() const { return done_; }
  std::string quantization_config() const { return format_.format->write_config(summary_); }

 private:
  void add(const std::string& name, ConstTensorView t) {
    writer_.add(name, t);
    done_ += t.bytes();
  }
  // Integers in [0, below), all different within a row: the experts of a token.
  static Tensor some_integers(const NamedDense& d) {
    Tensor t = Tensor::host(DType::i64, d.shape);
    for (int64_t i = 0; i < t.numel(); ++i) t.as<int64_t>()[i] = (i / d.shape[1] * 7 + i % d.shape[1]) % d.below;
    return t;
  }
  void add_dense(const NamedDense& d) {
    if (d.below > 0) return add(d.name, some_integers(d));
    const bool norm = d.shape.rank() == 1 && ends_with(d.name, ".weight");
    const bool around_one =
        factors_.count(d.name) > 0 || (norm && spec_.final_norm_kind == NormKind::rms);  // Gemma adds the 1 itself
    add(d.name, random_bf16(options_.seed, d.name, d.shape, around_one ? 1.f : 0.f, kStd));
  }
  void add_linear(const NamedLinear& l) {
    if (!summary_.linears.contains(l.name)) {
      add(l.name + ".weight", random_bf16(options_.seed, l.name + ".weight", {l.out, l.in}, 0, kStd));
      return;
    }
    const LinearFormat& f = summary_.linears.at(l.name);
    QuantizedLinear q = random_codes(options_.seed, l, f.spec);
    if (f.packing->two_of_four) prune(q);
    const PackedLinear packed = f.packing->pack(l.name, q);
    for (const NamedTensor& t : packed.tensors) add(t.name, t.tensor);
  }

  CheckpointWriter& writer_;
  const ModelSpec& spec_;
  const SynthOptions& options_;
  SynthFormat format_;
  const std::set<std::string> factors_ = factors_of(spec_);
  QuantizationSummary summary_;
  bool dense_only_ = false;
  int64_t done_ = 0, total_ = 0;
};

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text << '\n';
  out.close();
  if (!out) fail(ErrorKind::io, path.string() + ": cannot write");
}

// Windows of random ids, as `quantize --calib` and `evaluate --data` take them: there is no tokenizer to make some of.
int64_t window_length(const ModelSpec& spec, const SynthOptions& o) {
  const int64_t length = o.seq_len > 0 ? o.seq_len : std::min<int64_t>(2048, spec.max_positions);
  if (length < 2 || length > spec.max_positions)
    fail(ErrorKind::usage, fmt::format("windows of {} tokens: expected 2 to {}, the positions of {}", length,
                                       spec.max_positions, o.preset));
  if (o.tokens < length)
    fail(ErrorKind::usage, fmt::format("{} tokens are less than one window of {}; ask for more tokens or for a shorter "
                                       "window",
                                       o.tokens, length));
  return length;
}

void write_tokens(const fs::path& dir, const ModelSpec& spec, const SynthOptions& o) {
  const int64_t length = window_length(spec, o);
  const Tensor ids = Tensor::host(DType::i32, {o.tokens / length, length});
  Rng rng(o.seed, "input_ids");
  for (int64_t i = 0; i < ids.numel(); ++i)
    ids.as<int32_t>()[i] = static_cast<int32_t>(rng.below(static_cast<uint64_t>(spec.vocab)));
  const fs::path folder = dir / ".calibration";  // the writer's file has a name of its own
  const auto writer = container_safetensors.create(folder, {.shard_bytes = INT64_MAX});
  writer->add("input_ids", ids);
  writer->finish();
  std::error_code error;
  fs::rename(folder / "model.safetensors", dir / "calibration.safetensors", error);
  if (error)
    fail(ErrorKind::io, (dir / "calibration.safetensors").string() + ": cannot rename into place: " + error.message());
  fs::remove(folder, error);
}

}  // namespace

int64_t synthesize(const fs::path& dir, const SynthOptions& options,
                   const std::function<void(int64_t done, int64_t total)>& progress) {
  const bool preset = options.config.empty();
  for (const auto& [what, count] : {std::pair{"layers", options.layers}, {"experts", options.experts}}) {
    if (!preset && count != 0)
      fail(ErrorKind::usage, fmt::format("{}: a config of your own says how many; expected 0, found {}", what, count));
    if (count < 0) fail(ErrorKind::usage, fmt::format("{}: expected at least 1, or 0 for all, found {}", what, count));
  }
  const std::string plain = preset ? synth_preset_config(options) : options.config;
  const ModelSpec spec = build_spec(ConfigView::parse(plain, preset ? "preset " + options.preset : "config"));
  if (options.tokens > 0) window_length(spec, options);  // refused before anything is written
  synth_format(options.format);
  const auto writer = container_safetensors.create(dir, {.shard_bytes = options.shard_bytes});
  Synthesizer synth(*writer, spec, options);
  synth.run(progress);
  writer->finish();
  if (options.tokens > 0) write_tokens(dir, spec, options);
  ordered_json config = ordered_json::parse(plain);
  if (const std::string text = synth.quantization_config(); !text.empty())
    config["quantization_config"] = ordered_json::parse(text);
  if (preset && !find_published(options.preset))
    write_text(dir / "generation_config.json", synth_generation_config(synth_shape(options.preset)));
  write_text(dir / "config.json", config.dump(2));  // last: with it the folder is a checkpoint
  return synth.bytes();
}

}  // namespace fewbit
