#include "src/quant/output/report.h"

#include <nlohmann/json.hpp>

#include "src/core/strings.h"

namespace fewbit {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const LinearRecord& r) {
  Json j = {{"name", r.name},
            {"recipe", r.recipe},
            {"packing", r.packing},
            {"rel_error", r.rel_error},
            {"sqnr_db", r.sqnr_db},
            {"loss", r.loss},
            {"loss_rtn", r.loss_rtn},
            {"loss_target", r.loss_target},
            {"loss_target_rtn", r.loss_target_rtn},
            {"rung", r.rung},
            {"tokens", r.tokens},
            {"input_reach", r.input_reach},
            {"seconds", r.seconds},
            {"hash", r.hash},
            {"learned", r.learned},
            {"coupled", r.coupled},
            {"lossless", r.lossless}};
  if (r.learning_steps) j["learning_steps"] = *r.learning_steps;
  return j;
}

Json json_of(const PrecisionPlan& p) {
  Json j = {{"target_bits", p.target_bits},
            {"budget", p.counts_active ? "active" : "all"},
            {"bits_per_weight", p.bits},
            {"expected_kl", p.cost},
            {"calibration_windows", p.calibration_windows},
            {"held_out_windows", p.held_out_windows}};
  j["choices"] = Json::array();
  for (const PrecisionChoice& c : p.choices) {
    j["choices"].push_back({{"linears", c.linears},
                            {"spec", c.scheme().candidate.name()},
                            {"bits_per_weight", c.bits()},
                            {"bytes", c.scheme().bytes},
                            {"share", c.share},
                            {"expected_kl", c.scheme().cost},
                            {"offered", Json::array()}});
    for (const OfferedScheme& s : c.offered)
      j["choices"].back()["offered"].push_back(
          {{"spec", s.candidate.name()}, {"bytes", s.bytes}, {"expected_kl", s.cost}});
  }
  return j;
}

Json json_of(const MeasuredPerplexity& p) {
  return {{"base", p.base},  {"base_stderr", p.base_stderr}, {"perplexity", p.perplexity}, {"stderr", p.stderr_},
          {"data", p.data},  {"protocol", p.protocol},       {"windows", p.windows},       {"context", p.context},
          {"dtype", p.dtype}};
}

}  // namespace

std::string to_json(const LinearRecord& r) { return json_of(r).dump(); }

LinearRecord linear_record_from_json(const std::string& text) {
  const Json j = Json::parse(text);
  LinearRecord r;
  j.at("name").get_to(r.name);
  j.at("recipe").get_to(r.recipe);
  j.at("packing").get_to(r.packing);
  j.at("rel_error").get_to(r.rel_error);
  j.at("sqnr_db").get_to(r.sqnr_db);
  j.at("loss").get_to(r.loss);
  j.at("loss_rtn").get_to(r.loss_rtn);
  j.at("loss_target").get_to(r.loss_target);
  j.at("loss_target_rtn").get_to(r.loss_target_rtn);
  j.at("rung").get_to(r.rung);
  j.at("tokens").get_to(r.tokens);
  r.input_reach = j.value("input_reach", 1.0);
  j.at("seconds").get_to(r.seconds);
  j.at("hash").get_to(r.hash);
  r.learned = j.value("learned", false);
  r.coupled = j.value("coupled", false);
  r.lossless = j.value("lossless", false);
  if (j.contains("learning_steps")) r.learning_steps = j.at("learning_steps").get<int>();
  return r;
}

Json json_of(const MemoryPlan& m) {
  Json j = {{"states_bytes", m.states},
            {"scratch_bytes", m.scratch},
            {"least_gpu_bytes", m.smallest_device},
            {"least_host_bytes", m.smallest_host},
            {"experts_at_once", m.experts_at_once},
            {"experts_in_waves", m.experts_in_waves},
            {"phases", Json::array()},
            {"stops", Json::array()},
            {"refusal", m.refusal}};
  for (const StopChoice& s : m.stops)
    j["stops"].push_back({{"block_kind", s.kind},
                          {"linears", s.linears},
                          {"place", name_of(s.place)},
                          {"bytes", s.bytes},
                          {"store_seconds", s.store_seconds},
                          {"compute_seconds", s.compute_seconds}});
  for (const PhaseMemory& p : m.phases)
    j["phases"].push_back({{"phase", p.phase}, {"block", p.layer}, {"gpu_bytes", p.device}, {"host_bytes", p.host}});
  return j;
}

Json json_of(const TimePlan& t) {
  return {{"seconds", t.seconds}, {"phases", t.phases}, {"measuring_seconds", t.measuring}};
}

std::string to_json(const QuantReport& r) {
  std::string notes = r.short_calibration;
  add_note(notes, r.note);
  Json j = {{"schema", kReportSchema},
            {"recipe", r.recipe},
            {"model", r.model},
            {"out", r.out},
            {"made_by", r.made_by},
            {"device", r.device},
            {"dtype", r.dtype},
            {"calibration", r.calibration},
            {"samples", r.samples},
            {"seq_len", r.seq_len},
            {"seed", r.seed},
            {"note", notes},
            {"seconds", r.seconds},
            {"phases", r.phases},
            {"hidden_seconds", r.hidden_seconds},
            {"idle_seconds", r.idle_seconds},
            {"floor_seconds", r.floor_seconds},
            {"planned_seconds", r.planned_seconds},
            {"planned_total_seconds", r.planned_total_seconds},
            {"phase_peaks", r.phase_peaks},
            {"peak_gpu_bytes", r.peak_gpu_bytes},
            {"peak_host_bytes", r.peak_host_bytes},
            {"planned_gpu_bytes", r.planned_gpu_bytes},
            {"planned_host_bytes", r.planned_host_bytes},
            {"scratch_bytes", r.scratch_bytes},
            {"source_bytes", r.source_bytes},
            {"out_bytes", r.out_bytes},
            {"bits_per_weight", r.bits_per_weight},
            {"kept", r.kept},
            {"dropped", r.dropped}};
  j["linears"] = Json::array();
  for (const LinearRecord& l : r.linears) j["linears"].push_back(json_of(l));
  j["experts"] = Json::array();
  for (const ExpertRecord& e : r.experts)
    j["experts"].push_back({{"layer", e.layer}, {"tokens", e.tokens}, {"starved", e.starved}});
  j["kv_scales"] = Json::array();
  for (const KvRecord& s : r.kv_scales)
    j["kv_scales"].push_back({{"layer", s.layer}, {"k_scale", s.k_scale}, {"v_scale", s.v_scale}});
  if (r.precision) j["auto"] = json_of(*r.precision);
  if (r.perplexity) j["perplexity"] = json_of(*r.perplexity);
  j["made_from"] = Json::parse(r.made_from);
  j["config"] = Json::parse(r.config);
  // Names differ, and are not looked up: an object that keeps its order compares each with all before it.
  Json::object_t tensors;
  for (const WrittenFile& f : r.files)
    for (const auto& [name, digest] : f.tensors) tensors.emplace_back(name, digest);
  j["tensors"] = std::move(tensors);
  j["companions"] = r.companions;
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";  // a path need not be UTF-8
}

Json json_of(const DiskPlan& d) {
  Json j = {{"needs", Json::array()}, {"refusal", d.refusal}};
  j["blocks_in_out"] = d.blocks_in_out;
  for (const DiskNeed& n : d.needs)
    j["needs"].push_back({{"folder", n.folder.string()}, {"what", n.what}, {"bytes", n.bytes}, {"free_bytes", n.free}});
  return j;
}

std::string to_json(const QuantPlan& p, const std::optional<PrecisionPlan>& precision, const DiskPlan& disk,
                    const std::string& recipe, const std::string& model, const std::string& out) {
  Json j = {{"recipe", recipe},
            {"model", model},
            {"out", out},
            {"format", p.format->name},
            {"peak_gpu_bytes", p.memory.device},
            {"peak_host_bytes", p.memory.host},
            {"memory", json_of(p.memory)},
            {"time", p.time ? json_of(*p.time) : Json()},
            {"disk", json_of(disk)},
            {"source_bytes", p.source_bytes},
            {"out_bytes", p.out_bytes},
            {"bits_per_weight", p.bits_per_weight},
            {"kv_cache", p.fp8_kv_cache ? "fp8" : "bf16"},
            {"for", p.engine.empty() ? Json() : Json(p.engine)},
            {"for_note", p.engine_note.empty() ? Json() : Json(p.engine_note)},
            {"tp", p.tp}};
  j["linears"] = Json::array();
  for (const PlannedLinear& l : p.linears)
    j["linears"].push_back({{"name", l.linear.name},
                            {"recipe", l.recipe_str()},
                            {"packing", l.layout().empty() ? Json() : Json(l.layout())},
                            {"shape", {l.linear.out, l.linear.in}},
                            {"source_bytes", l.source_bytes},
                            {"out_bytes", l.out_bytes},
                            {"note", l.note}});
  if (precision) j["auto"] = json_of(*precision);
  j["kept"] = Json::array();
  for (const KeptGroup& k : p.kept)
    j["kept"].push_back({{"first", k.first}, {"matrices", k.matrices}, {"bytes", k.bytes}, {"reason", k.reason}});
  j["refusals"] = Json::array();
  for (const Refusal& r : p.refusals) j["refusals"].push_back({{"name", r.name}, {"reason", r.reason}});
  return j.dump(1) + "\n";
}

}  // namespace fewbit
