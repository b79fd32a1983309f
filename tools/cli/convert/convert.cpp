// `convert inspect CKPT` and `convert synth --preset NAME OUT`.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "formats/gguf/locate.h"
#include "formats/recognise.h"
#include "src/core/strings.h"
#include "src/model/foreign/foreign.h"
#include "src/model/synth/synth.h"
#include "tools/cli/convert/convert_commands.h"
#include "tools/cli/options.h"

namespace fewbit::cli {
namespace {

struct InspectArgs {
  Common common;
  std::string ckpt;
  bool tensors = false, checksums = false;
};

// CRC-32 (IEEE 802.3, as in zip files) of a tensor's bytes.
std::string crc32(ConstTensorView v) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t n = 0; n < 256; ++n) {
      uint32_t c = n;
      for (int k = 0; k < 8; ++k) c = (c & 1) ? 0xedb88320u ^ (c >> 1) : c >> 1;
      t[n] = c;
    }
    return t;
  }();
  uint32_t crc = 0xffffffffu;
  const auto* p = static_cast<const uint8_t*>(v.data);
  for (int64_t i = 0; i < v.bytes(); ++i) crc = table[(crc ^ p[i]) & 255] ^ (crc >> 8);
  return fmt::format("{:08x}", ~crc);
}

// Of every weight's values as f32, whatever form the file has them in: two checkpoints that hold the same
// values show the same sums.
nlohmann::ordered_json checksums_of(const Checkpoint& c) {
  nlohmann::ordered_json sums;
  for (const NamedDense& t : dense_tensors_of(c.spec))
    if (c.store.has(t.name)) sums[t.name] = crc32(float_values(c.store.get(t.name)));
  for (const NamedLinear& l : c.linears()) sums[l.name + ".weight"] = crc32(c.values(l));
  return sums;
}

// The type of a tensor as the file has it.
std::string_view type_of(const TensorInfo& t) { return t.stored.empty() ? name_of(t.dtype) : t.stored; }

nlohmann::ordered_json json_of(const CheckpointIndex& index) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& [name, t] : index.tensors) {
    const auto dims = t.shape.dims();
    list.push_back({{"name", name},
                    {"dtype", type_of(t)},
                    {"shape", std::vector<int64_t>(dims.begin(), dims.end())},
                    {"bytes", t.bytes}});
  }
  return list;
}

std::string table_of(const CheckpointIndex& index) {
  std::string table;
  for (const auto& [name, t] : index.tensors)
    table += fmt::format("  {:<60} {:<5} {:<18} {:>12}\n", name, type_of(t), t.shape.str(), human_bytes(t.bytes));
  return table;
}

// One weight file without its config: what its tensors tell.
void inspect_file(const InspectArgs& a) {
  const WeightStore store = WeightStore::open(a.ckpt);
  const Recognised r = recognise(store.index());
  std::string kinds;
  for (const auto& [packing, n] : r.packed) kinds += fmt::format("  {} linears: {}\n", n, packing);
  if (r.dense > 0) kinds += fmt::format("  {} dense matrices\n", r.dense);
  if (r.unknown > 0) kinds += fmt::format("  {} modules of integers in no packing known here\n", r.unknown);
  nlohmann::ordered_json j = {{"format", r.packed.empty() ? "dense" : r.packed.begin()->first},
                              {"architecture", nullptr},
                              {"parameters", nullptr},
                              {"bytes", store.total_bytes()},
                              {"files", 1},
                              {"tensors", json_of(store.index())},
                              {"quantized", r.packed}};
  say(a.common, fmt::format("{}: one file without config.json, {} in {} tensors; what they tell:\n", a.ckpt,
                            human_bytes(store.total_bytes()), store.index().tensors.size()) +
                    kinds + (a.tensors ? table_of(store.index()) : ""));
  write_json(a.common, j.dump(1) + "\n");
}

// Of a refused folder, what it says of itself comes before the refusal.
Checkpoint open_or_describe(const Common& common, const std::filesystem::path& model) {
  try {
    return Checkpoint::open(model);
  } catch (const Error& e) {
    const bool told = e.kind() == ErrorKind::unsupported || e.kind() == ErrorKind::checkpoint;
    if (told && std::filesystem::exists(model / "config.json")) {
      try {
        inspect_refused(common, model, e.what());
      } catch (const Error&) {  // not even that: the refusal below is the first thing that is wrong with it
      }
    }
    throw;
  }
}

void run_inspect(const InspectArgs& a) {
  if (std::filesystem::is_regular_file(a.ckpt) && !gguf::locate(a.ckpt)) return inspect_file(a);
  const Checkpoint c = open_or_describe(a.common, model_or_demo(a.common, a.ckpt));
  const int64_t parameters = parameter_count(c.spec);
  nlohmann::ordered_json j = {{"format", c.format},
                              {"architecture", c.spec.arch},
                              {"parameters", parameters},
                              {"bytes", c.store.total_bytes()},
                              {"files", c.store.index().files.size()}};
  j["tensors"] = json_of(c.store.index());
  std::map<std::string, int> kinds;
  for (const auto& [name, f] : c.quantization.linears) ++kinds[fmt::format("{} {}", f.packing->name, f.spec.str())];
  for (const auto& [name, t] : c.store.index().tensors)
    if (!t.stored.empty() && t.dtype != DType::u8) ++kinds[fmt::format("{} (decoded)", t.stored)];
  for (const auto& [kind, n] : kinds) j["quantized"][kind] = n;
  const std::string note = unrounded_inputs_note(c.config.text());
  j["notes"] = note.empty() ? std::vector<std::string>{} : std::vector{note};
  if (a.checksums) j["checksums"] = checksums_of(c);
  std::string s = fmt::format("{}: {}, format {}, {} parameters, {} in {} tensors and {} files\n", c.dir.string(),
                              c.spec.arch, c.format, human_count(parameters), human_bytes(c.store.total_bytes()),
                              c.store.index().tensors.size(), c.store.index().files.size());
  for (const auto& [kind, n] : kinds) s += fmt::format("  {} linears: {}\n", n, kind);
  if (a.checksums)
    for (const auto& [name, sum] : j["checksums"].items()) s += fmt::format("  {} {}\n", sum.get<std::string>(), name);
  if (!note.empty()) s += "note: " + note + "\n";
  say(a.common, s + describe(c.spec) + (a.tensors ? table_of(c.store.index()) : ""));
  write_json(a.common, j.dump(1) + "\n");
}

struct SynthArgs {
  Common common;
  SynthOptions options;
  std::string out;
};

void run_synth(const SynthArgs& a) {
  if (std::filesystem::exists(a.out)) fail(ErrorKind::usage, fmt::format("{} exists; choose another OUT", a.out));
  Progress progress(a.common);
  const int64_t bytes = synthesize(a.out, a.options, [&](int64_t done, int64_t total) {
    progress.update("writing", static_cast<double>(done) / static_cast<double>(total));
  });
  progress.update("done", 1);
  say(a.common, fmt::format("{}: {} of {}, {} (random weights, no tokenizer)\n", a.out, human_bytes(bytes),
                            a.options.preset, a.options.format));
  write_json(a.common, nlohmann::ordered_json{{"preset", a.options.preset},
                                              {"format", a.options.format},
                                              {"layers", a.options.layers},
                                              {"experts", a.options.experts},
                                              {"seed", a.options.seed},
                                              {"tokens", a.options.tokens},
                                              {"bytes", bytes},
                                              {"out", a.out}}
                               .dump(1) +
                           "\n");
}

}  // namespace

void add_convert_commands(CLI::App& app) {
  app.require_subcommand(1);
  const auto i = std::make_shared<InspectArgs>();
  CLI::App* inspect = app.add_subcommand(
      "inspect", "Say what a checkpoint is: format, architecture, sizes, tensors; of a refused one what is missing");
  inspect->add_option("CKPT", i->ckpt, "Checkpoint folder, or one weight file (left out: the embedded demo model)");
  inspect->add_flag("--tensors", i->tensors, "List every tensor (the JSON always does)");
  add_common(*inspect, i->common);
  inspect->callback([i] { run_inspect(*i); });
  inspect->add_flag("--checksums", i->checksums, "CRC-32 of every weight's values as float32, decoded");
  add_convert_to_command(app);
  add_convert_diff_command(app);
  const auto s = std::make_shared<SynthArgs>();
  std::string presets;
  for (const SynthPreset& p : synth_presets()) presets += (presets.empty() ? "" : ", ") + std::string(p.name);
  CLI::App* synth =
      app.add_subcommand("synth", "Write a random checkpoint of a real model's shape, for speed measurements");
  synth->add_option("OUT", s->out, "Folder to write")->required();
  synth->add_option("--preset", s->options.preset, presets)->required();
  synth
      ->add_option("--format", s->options.format,
                   "bf16, marlin (int4, groups of 128), fp8 (E4M3 per output, inputs per token), int8 (W8A8) or "
                   "another format that "
                   "holds int4")
      ->capture_default_str();
  synth->add_option("--layers", s->options.layers, "Only the first N blocks (0 = all)")->check(at_least(0));
  synth->add_option("--experts", s->options.experts, "Of a mixture, only so many experts (0 = all), in no groups")
      ->check(at_least(0));
  synth->add_option("--seed", s->options.seed, "Seed of the weights and ids")
      ->check(at_least(0))
      ->capture_default_str();
  CLI::Option* tokens =
      synth->add_option("--tokens", s->options.tokens,
                        "Also write calibration.safetensors: N random ids in windows, for `quantize --calib` and "
                        "`evaluate --data` (no tokenizer needed)");
  tokens->check(at_least(1));
  synth
      ->add_option("--seq-len", s->options.seq_len,
                   "Tokens per window of --tokens (default: 2048, at most the model's positions)")
      ->check(at_least(2))
      ->needs(tokens);
  add_common(*synth, s->common);
  synth->callback([s] { run_synth(*s); });
}

}  // namespace fewbit::cli
