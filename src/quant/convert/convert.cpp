#include "src/quant/convert/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/guarded_json.h"
#include "formats/kv_scales.h"
#include "formats/same_codes.h"
#include "formats/shards.h"
#include "src/core/file_io.h"
#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/stacked_experts.h"
#include "src/quant/convert/convert_plan.h"
#include "src/quant/journal/journal.h"
#include "src/quant/output/companions.h"
#include "src/quant/output/digests.h"
#include "src/quant/output/gguf_output.h"
#include "src/quant/output/out_folder.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// OUT.partial, owned as a run owns it: one that is killed leaves a folder that the next start takes over, and two
// conversions never share an OUT. It goes with the object.
class Unfinished {
 public:
  explicit Unfinished(const fs::path& out) : out_(place_of(out)), folder_(RunFolder::claim(partial_of(out))) {
    if (holds_work(folder_.dir()))
      fail(ErrorKind::usage, fmt::format("{} holds an unfinished run of quantize; go on with it by --resume, or choose "
                                         "another OUT",
                                         folder_.dir().string()));
    folder_.wipe();
    folder_.keep(false);
    std::error_code ec;
    fs::create_directory(dir(), ec);
    if (ec) fail(ErrorKind::io, fmt::format("{}: cannot create: {}", dir().string(), ec.message()));
  }

  fs::path dir() const { return folder_.dir() / kBuilt; }
  void finish(bool force) {
    sync_tree(dir());
    std::error_code ec;
    if (force && fs::exists(out_, ec))
      put_in_place_of(dir(), out_, folder_.dir() / "replaced");
    else
      put_in_place(dir(), out_);
  }

 private:
  fs::path out_;
  RunFolder folder_;
};

// Writes the tensors of one conversion to safetensors and counts them.
class Writing {
 public:
  Writing(const Checkpoint& c, const ConvertJob& job, const ConvertPlan& plan, const fs::path& dir)
      : c_(c),
        job_(job),
        plan_(plan),
        writer_(create_with_digests(dir, WriterOptions{.shard_bytes = job.shard_bytes}, files_)) {
    for (const NamedDense& t : dense_tensors_of(c.spec))
      if (t.below == 0) known_.insert(t.name);  // integers stay
    for (const NamedLinear& l : c.linears()) known_.insert(l.name + ".weight");
    known_.insert("lm_head.weight");  // also where it is tied, and stored nevertheless
  }

  // The digests of what it wrote.
  std::vector<WrittenFile> run() {
    if (job_.target.format->stacked || job_.target.dense)
      for (int64_t layer = 0; layer < c_.spec.layers; ++layer)
        for (ExpertStack& s : turned_stacks_of(c_.spec, layer)) find_stack(std::move(s));
    copy_others();
    add_stacks();
    const std::vector<NamedLinear> linears = c_.linears();
    for (size_t i = 0; i < linears.size(); ++i) {
      convert_step(job_, "writing", i, linears.size());
      if (c_.packed(linears[i].name) && !in_stacks_.count(linears[i].name)) add_linear(linears[i]);
    }
    if (plan_.summary.fp8_kv_cache) add_kv_scales();
    writer_->finish();
    return std::move(files_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void add(const std::string& name, ConstTensorView t) {
    writer_->add(name, t);
    bytes_ += t.bytes();
  }

  // Everything but packed linears; what the architecture does not know stays as it is in any case.
  void copy_others() {
    const Replaced replaced(c_);
    for (const auto& [name, info] : c_.store.index().tensors) {
      if (replaced.has(name) || in_stacks_.count(name)) continue;
      if (job_.target.dense && known_.count(name))
        add(name, float_tensor(c_.store.get(name), *job_.target.dense));
      else
        add(name, c_.store.get(name));
      c_.store.release(name);
    }
  }

  void add_linear(const NamedLinear& l) {
    for (const NamedTensor& t : tensors_of(l)) add(t.name, t.tensor);
  }

  std::vector<NamedTensor> tensors_of(const NamedLinear& l) {
    std::vector<NamedTensor> tensors;
    if (job_.target.dense) {
      tensors.push_back({l.name + ".weight", float_tensor(c_.values(l), *job_.target.dense)});
    } else {
      const LinearFormat& f = plan_.summary.linears.at(l.name);
      tensors = f.packing->pack(l.name, on_grid(c_.unpack(l.name, l.out, l.in), f.spec)).tensors;
    }
    release_linear(c_, l.name);
    return tensors;
  }

  // Remembers a stack that OUT will have, with what goes into it: a dense model's weights, the blocks and scales of a
  // packed one, and the biases of both.
  void find_stack(ExpertStack s) {
    const std::string suffix = s.parts.front().substr(s.parts.front().rfind('.'));
    const bool of_dense = suffix == ".weight", bias = suffix == ".bias";
    if (!bias && of_dense != job_.target.dense.has_value()) return;
    for (const std::string& part : s.parts) {
      in_stacks_.insert(part);
      if (!bias) in_stacks_.insert(part.substr(0, part.rfind('.')));
    }
    stacks_.push_back(std::move(s));
  }

  // One stack is in memory at a time.
  void add_stacks() {
    std::map<std::string, NamedLinear> linears;
    for (const NamedLinear& l : stacks_.empty() ? std::vector<NamedLinear>{} : linears_of(c_.spec))
      linears.emplace(l.name, l);
    for (size_t i = 0; i < stacks_.size(); ++i) {
      convert_step(job_, "writing", i, stacks_.size());
      Tensor part_bytes;
      const Tensor all = stacked(stacks_[i], [&](const std::string& part) -> ConstTensorView {
        if (ends_with(part, ".bias")) {
          part_bytes =
              job_.target.dense ? float_tensor(c_.store.get(part), *job_.target.dense) : clone_host(c_.store.get(part));
          c_.store.release(part);
          return part_bytes;
        }
        for (NamedTensor& t : tensors_of(linears.at(part.substr(0, part.rfind('.')))))
          if (t.name == part) part_bytes = std::move(t.tensor);
        return part_bytes;
      });
      add(stacks_[i].name, all);
    }
  }

  void add_kv_scales() {
    for (int64_t layer = 0; layer < c_.spec.layers; ++layer) {
      const auto& block = c_.spec.block(layer);
      const Attention* attention = own_attention_of(block);
      if (!attention) continue;
      const std::string name = c_.spec.prefix(layer) + attention_module(block);
      if (const auto scales = read_kv_scales(name, attention->kv_heads, c_.source()))
        for (const NamedTensor& t : kv_scale_tensors(name, *scales)) add(t.name, t.tensor);
    }
  }

  const Checkpoint& c_;
  const ConvertJob& job_;
  const ConvertPlan& plan_;
  std::vector<WrittenFile> files_{};
  std::unique_ptr<CheckpointWriter> writer_;
  std::set<std::string> known_;
  std::vector<ExpertStack> stacks_{};
  std::set<std::string> in_stacks_{};  // tensors and linears
  int64_t bytes_ = 0;
};

// The report of the `quantize` run that made MODEL, told of what became of it. Without linears where there is none or
// where it no longer says anything about the weights.
Json linears_report_of(const Checkpoint& c, const ConvertJob& job, const ConvertPlan& plan) {
  Json report = ordered_json_or_discarded(text_or_empty(job.model / "quant_report.json"), kTableJson);
  if (!report.is_object() || !report.contains("linears") || plan.summary.linears.empty())
    return {{"linears", Json::array()}};
  for (const NamedLinear& end : ends_of(c.spec))  // written as floats where the format packs no ends
    if (!plan.summary.linears.count(end.name))
      report["linears"].erase(std::remove_if(report["linears"].begin(), report["linears"].end(),
                                             [&](const Json& l) { return l.value("name", "") == end.name; }),
                              report["linears"].end());
  for (Json& l : report["linears"]) {
    const auto f = plan.summary.linears.find(l.value("name", ""));
    if (f == plan.summary.linears.end()) continue;
    l["packing"] = f->second.packing->name;
    l["hash"] = plan.hashes.at(f->first);
  }
  return report;
}

// The same, with what every report says: where the checkpoint comes from, and the digests of all of it.
std::string report_of(const Checkpoint& c, const ConvertJob& job, const ConvertPlan& plan, const ConvertReport& done,
                      const std::vector<WrittenFile>& files, const fs::path& dir) {
  Json report = linears_report_of(c, job, plan);
  report["schema"] = kReportSchema;
  report["out"] = job.out.string();
  report["out_bytes"] = done.bytes;
  report["converted_from"] = c.format;
  report["made_by"] = job.command;
  report["made_from"] = Json::parse(origin_json(job.model, read_sources(job.model, {.user = job.user})));
  report["config"] = Json::parse(model_config_json(dir));
  Json::object_t tensors;  // names differ, and are not looked up
  for (const WrittenFile& f : files)
    for (const auto& [name, digest] : f.tensors) tensors.emplace_back(name, digest);
  report["tensors"] = std::move(tensors);
  report["companions"] = companion_digests(dir, files);
  return report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// As the report of MODEL has it: the same codes have the same.
std::string perplexity_before(const ConvertJob& job) {
  const fs::path path = job.model / "quant_report.json";
  const Json report = ordered_json_or_discarded(text_or_empty(path), kTableJson);
  if (!report.is_object() || !report.contains("perplexity"))
    return "not measured; `evaluate perplexity` prints it with its standard error";
  const Json& p = report["perplexity"];
  const Json error = p.value("stderr", Json());
  return fmt::format("{} before the conversion ({}, {} windows of {} tokens)",
                     with_error(p.value("perplexity", 0.0), error.is_number() ? error.get<double>() : kNoError, 4),
                     p.value("data", ""), p.value("windows", 0), p.value("context", 0));
}

std::string card_of(const Checkpoint& c, const ConvertJob& job, const ConvertPlan& plan, const ConvertReport& done) {
  const std::string name = fs::absolute(job.model).lexically_normal().filename().string();
  std::string s = fmt::format("# {}, converted\n\n| | |\n|---|---|\n", name.empty() ? c.spec.arch : name);
  const auto row = [&](const char* key, const std::string& value) { s += fmt::format("| {} | {} |\n", key, value); };
  row("format", job.target.dense ? std::string(name_of(*job.target.dense)) + ", dequantized"
                                 : std::string(job.target.format->name));
  row("before", c.format);
  if (!plan.summary.linears.empty())
    row("linears with the same codes and scales", std::to_string(plan.summary.linears.size()));
  row("tensors", fmt::format("{}, before {}", human_bytes(done.bytes), human_bytes(c.store.total_bytes())));
  row("perplexity", perplexity_before(job));
  for (const std::string& note : done.notes) row("note", note);
  return s + fmt::format("\nMade by fewbit:\n\n```\n{}\n```\n", job.command);
}

void write_beside(const Checkpoint& c, const ConvertJob& job, const ConvertPlan& plan, const ConvertReport& done,
                  const std::vector<WrittenFile>& files, const fs::path& dir) {
  write_config(c, *job.target.format, plan.summary, job.target.dense, dir);
  copy_companions(job.model, dir);
  if (!job.target.format->gguf) write_gguf_tokenizer(c, dir);
  const fs::path source = fs::is_directory(job.model) ? job.model / "README.md" : fs::path();
  write_text(dir / "README.md",
             above_model_card(card_of(c, job, plan, done), source.empty() ? "" : text_or_empty(source)));
  write_text(dir / "quant_report.json", report_of(c, job, plan, done, files, dir));
  write_checksums(dir, files);
}

WrittenFile write_gguf_file(const Checkpoint& c, const ConvertJob& job, const ConvertPlan& plan, const fs::path& file,
                            ConvertReport& done) {
  WrittenFile written = convert_to_gguf(c, file, plan.summary, job.target.blocks, job.target.mix,
                                        [&](size_t i, size_t n) { convert_step(job, "writing", i, n); });
  done.bytes = File::read(file).size();
  return written;
}

}  // namespace

ConvertTarget convert_target(const std::string& name) {
  for (const DType t : {DType::bf16, DType::f16, DType::f32})
    if (name == name_of(t)) return {.format = &format_bf16, .dense = t};
  const size_t colon = name.find(':');
  ConvertTarget t{.format = &checkpoint_format(name.substr(0, colon))};
  if (colon == std::string::npos) return t;
  if (!t.format->gguf) fail(ErrorKind::usage, fmt::format("convert to {}: only gguf takes a type, as gguf:q8_0", name));
  t.mix = find_gguf_mix(std::string_view(name).substr(colon + 1));
  t.blocks = &gguf_type_named(std::string_view(name).substr(colon + 1));
  return t;
}

ConvertReport convert(const Checkpoint& c, const ConvertJob& job) {
  const ConvertPlan plan = plan_conversion(c, job);
  ConvertReport done{.out = job.out.string(), .notes = plan.notes};
  done.linears = static_cast<int64_t>(c.quantization.linears.size());
  if (job.target.format->gguf && job.out.extension() == ".gguf") {
    write_gguf_file(c, job, plan, job.out, done);
    return done;
  }
  Unfinished unfinished(job.out);
  std::vector<WrittenFile> files;
  if (job.target.format->gguf) {
    files = {write_gguf_file(c, job, plan, unfinished.dir() / "model.gguf", done)};
    done.out = (job.out / "model.gguf").string();
  } else {
    Writing writing(c, job, plan, unfinished.dir());
    files = writing.run();
    done.bytes = writing.bytes();
  }
  write_beside(c, job, plan, done, files, unfinished.dir());
  unfinished.finish(job.force);
  return done;
}

}  // namespace fewbit
