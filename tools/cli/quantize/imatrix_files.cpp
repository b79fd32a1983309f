#include "tools/cli/quantize/imatrix_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/digest.h"
#include "src/core/strings.h"
#include "src/quant/plan/plan_ends.h"
#include "tools/cli/quantize/recipe_flags.h"
#include "tools/cli/ranks.h"

namespace fewbit::cli {
namespace {

// Filled by an encoder, which weighs inputs.
bool weighs_inputs(const PlannedLinear& p) { return !p.keep && p.blocks && !p.recipe.method->encode; }

void refuse_idle(const ImatrixArgs& a, const QuantPlan& plan) {
  if (!a.read.empty() && !plan.format->gguf)
    fail(ErrorKind::usage, "--imatrix is for --format gguf:TYPE, whose encoders weigh the inputs");
  if (!a.read.empty() && plan.calibrates())
    fail(ErrorKind::usage,
         "--imatrix takes the place of a calibration, and this recipe has one of its own; it is for rtn, as in "
         "`quantize rtn --format gguf:q4_k --imatrix FILE`");
  if (!a.read.empty() && std::none_of(plan.linears.begin(), plan.linears.end(), weighs_inputs))
    fail(ErrorKind::usage, "--imatrix: no linear of this plan is written by an encoder that weighs its inputs");
  if (!a.write.empty() && !has(plan.needs, Needs::gram))
    fail(ErrorKind::usage,
         "--write-imatrix: this recipe does not look at the inputs of the linears; gptq and awq+gptq do");
  if (!a.write.empty() && !the_ranks().alone())
    fail(ErrorKind::usage, "--write-imatrix is of one process; start it without the launcher");
  if (a.write.empty()) return;
  const std::filesystem::path folder = std::filesystem::absolute(a.write).parent_path();
  if (std::error_code ec; !std::filesystem::is_directory(folder, ec))
    fail(ErrorKind::io, fmt::format("--write-imatrix {}: {} is no folder", a.write, folder.string()));
}

}  // namespace

void add_imatrix_arguments(CLI::App& app, ImatrixArgs& a) {
  app.add_option("--imatrix", a.read,
                 "Of rtn to gguf:TYPE: an imatrix of llama.cpp (.gguf or .dat), which says what each input weighs")
      ->type_name("FILE");
  app.add_option("--write-imatrix", a.write,
                 "Write what the calibration saw in front of each quantized linear as an imatrix for llama.cpp")
      ->type_name("FILE");
}

ImatrixFiles::ImatrixFiles(const ImatrixArgs& a, const Checkpoint& c, const QuantPlan& plan) : args_(a) {
  refuse_idle(a, plan);
  if (a.read.empty()) return;
  importance_ = importance_from(gguf::read_imatrix(a.read), c.spec, a.read);
  digest_ = digest_of_file(a.read);
  std::vector<std::string> missing;
  for (const PlannedLinear& p : plan.linears)
    if (weighs_inputs(p) && !is_end(p.linear) && !importance_.count(p.linear.name)) missing.push_back(p.linear.name);
  if (!missing.empty())
    note_ = fmt::format("{} has nothing of {} linears ({} first), whose values count by their own size", a.read,
                        missing.size(), missing.front());
}

void ImatrixFiles::give_to(QuantJob& job) {
  if (!args_.read.empty()) {
    job.importance = &importance_;
    job.sources.push_back({.name = "the imatrix", .digest = digest_});
    add_note(job.note, note_);
  }
  if (!args_.write.empty())
    job.observed = [this](const std::string& linear, const Tensor& squares, int64_t tokens) {
      seen_[linear] = {clone_host(squares), tokens};
    };
}

void ImatrixFiles::finish(const ModelSpec& spec, const Windows& w) const {
  if (args_.write.empty()) return;
  gguf::Imatrix m = imatrix_of(seen_, spec);
  m.datasets = {w.source};
  m.chunks = w.count;
  m.chunk_tokens = w.length;
  gguf::write_imatrix(args_.write, m);
}

}  // namespace fewbit::cli
