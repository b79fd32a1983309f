// `convert to FORMAT MODEL OUT`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/parallel.h"
#include "src/core/stopwatch.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/sources/sources.h"
#include "src/quant/convert/convert.h"
#include "src/quant/output/out_folder.h"
#include "tools/cli/convert/convert_commands.h"
#include "tools/cli/options.h"

namespace fewbit::cli {
namespace {

namespace fs = std::filesystem;

struct ToArgs {
  Common common;
  std::string format, model, out, shard_size = "5GB";
  std::vector<std::string> drop;
  bool force = false;
};

void check_out(const fs::path& model, const fs::path& out, bool force) {
  refuse_overlap(model, out);
  if (fs::exists(out) && !force)
    fail(ErrorKind::usage, fmt::format("{} exists; choose another OUT, or --force", out.string()));
  if (fs::is_directory(out)) refuse_to_replace(out);
  const fs::path whole = fs::absolute(out).lexically_normal();
  require_folder_of_out(whole.has_filename() ? whole.parent_path() : whole.parent_path().parent_path());
}

// Without the paths of this machine.
std::string command_of(const ToArgs& a) {
  std::string s = fmt::format("convert to {} MODEL OUT{}", a.format,
                              a.shard_size == ToArgs().shard_size ? "" : " --shard-size " + a.shard_size);
  for (const std::string& glob : a.drop) s += fmt::format(" --drop '{}'", glob);
  return s;
}

void run_to(const ToArgs& a) {
  const Stopwatch watch;
  use_threads(a.common);
  Progress progress(a.common);
  const ConvertJob job{.target = convert_target(a.format),
                       .model = a.model,
                       .out = a.out,
                       .user = user_cache_folder(),
                       .command = command_of(a),
                       .force = a.force,
                       .shard_bytes = bytes_from(a.shard_size, "--shard-size"),
                       .stop_requested = stop_requested,
                       .progress = [&](const std::string& phase, double f) { progress.update(phase, f); }};
  check_out(job.model, job.out, job.force);
  std::vector<std::string> dropped;
  const Checkpoint c =
      a.drop.empty() ? Checkpoint::open(job.model) : without_tensors(Checkpoint::open(job.model), a.drop, dropped);
  const ConvertReport r = convert(c, job);
  progress.update("done", 1);
  const double seconds = watch.seconds();
  if (!dropped.empty()) say(a.common, fmt::format("left out on purpose: {} tensors\n", dropped.size()));
  for (const std::string& note : r.notes) say(a.common, "note: " + note + "\n");
  say(a.common, fmt::format("{}: {} as {}, from {}, {} packed linears ({})\n", r.out, human_bytes(r.bytes), a.format,
                            c.format, r.linears, human_seconds(seconds)));
  write_json(a.common, nlohmann::ordered_json{{"format", a.format},
                                              {"from", c.format},
                                              {"model", a.model},
                                              {"out", r.out},
                                              {"linears", r.linears},
                                              {"bytes", r.bytes},
                                              {"notes", r.notes},
                                              {"dropped", dropped},
                                              {"seconds", seconds}}
                               .dump(1) +
                           "\n");
}

}  // namespace

void add_convert_to_command(CLI::App& app) {
  const auto t = std::make_shared<ToArgs>();
  CLI::App* to =
      app.add_subcommand("to", "Write a checkpoint in another format: the same codes and scales, or refused");
  to->add_option("FORMAT", t->format,
                 "marlin, gptq, awq, compressed-tensors, fp8, modelopt, mxfp4 or gguf (packed codes as they are); "
                 "bf16, f16 or "
                 "f32 (dequantized); gguf:TYPE (every linear's values stored anew in that type)")
      ->required();
  to->add_option("MODEL", t->model, "Checkpoint folder or .gguf file")->required();
  to->add_option("OUT", t->out, "A folder; of gguf also a .gguf file")->required();
  to->add_option("--shard-size", t->shard_size, "Largest safetensors file: 5GB, 512MiB …")->capture_default_str();
  to->add_option("--drop", t->drop, "GLOB: leave out these tensors, of a vision tower or MTP layers, on purpose")
      ->take_all();
  to->add_flag("--force", t->force, "Replace OUT if it exists; the old one stays until the new one is whole");
  add_common(*to, t->common);
  to->callback([t] { run_to(*t); });
}

}  // namespace fewbit::cli
