#include "src/model/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/digest.h"
#include "src/core/error.h"
#include "src/core/mapped_file.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/core/text/nearest.h"
#include "src/model/float_type.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kPrefix = "base_model.model.";

// What adapter_config.json says.
struct AdapterConfig {
  double r = 0, alpha = 0;
  bool rslora = false;
  std::map<std::string, double> ranks, alphas;  // by module, or its last words

  double of(const std::map<std::string, double>& pattern, const std::string& module, double otherwise) const {
    for (const auto& [key, value] : pattern)
      if (module == key || ends_with(module, "." + key)) return value;
    return otherwise;
  }
  double scale(const std::string& module) const {
    const double rank = of(ranks, module, r), a = of(alphas, module, alpha);
    return a / (rslora ? std::sqrt(rank) : rank);
  }
};

std::string config_text_of(const fs::path& adapter) {
  const fs::path file = adapter / "adapter_config.json";
  if (!fs::exists(file))
    fail(ErrorKind::io, file.string() +
                            ": cannot open; expected the folder of a PEFT adapter, with adapter_config.json "
                            "and adapter_model.safetensors");
  return json_text(file, kConfigJson);
}

std::map<std::string, double> pattern_of(const Json& j, const char* key, const std::string& where) {
  std::map<std::string, double> out;
  if (!j.contains(key) || j[key].is_null()) return out;
  for (const auto& [module, value] : j[key].items()) {
    if (!value.is_number() || !std::isfinite(value.get<double>()) ||
        module.find_first_of("*+?()[]|^$\\") != std::string::npos)
      fail(ErrorKind::unsupported,
           fmt::format("{}: {}.{}: expected a module's name and a number, found a pattern; merge "
                       "it with PEFT's merge_and_unload() first",
                       where, key, module));
    out[module] = value.get<double>();
  }
  return out;
}

// Keys that make another thing of LoRA than W + s B A, and the values that do not.
void refuse_other_kinds(const Json& j, const std::string& where) {
  const auto refuse = [&](const char* key, const std::string& what) {
    fail(ErrorKind::unsupported,
         fmt::format("{}: {}: found {}, and only plain LoRA is merged; merge it with PEFT's merge_and_unload() and "
                     "quantize what that saves",
                     where, key, what));
  };
  if (j.contains("peft_type") && j["peft_type"] != "LORA") refuse("peft_type", j["peft_type"].dump());
  for (const char* key : {"use_dora", "lora_bias", "use_qalora", "alora_invocation_tokens", "trainable_token_indices",
                          "modules_to_save", "target_parameters", "megatron_config", "arrow_config"})
    if (j.contains(key) && !j[key].is_null() && j[key] != false && !(j[key].is_array() && j[key].empty()))
      refuse(key, j[key].dump());
  if (j.contains("bias") && j["bias"] != "none") refuse("bias", j["bias"].dump());
}

AdapterConfig config_of(const std::string& text, const std::string& where) {
  const Json j = parse_json(text, where, kConfigJson);
  if (!j.is_object()) fail(ErrorKind::checkpoint, where + ": expected a JSON object, found something else");
  refuse_other_kinds(j, where);
  AdapterConfig c;
  for (const auto& [key, to] : {std::pair{"r", &c.r}, {"lora_alpha", &c.alpha}}) {
    if (!j.contains(key) || !j[key].is_number() || !(j[key].get<double>() > 0) || std::isinf(j[key].get<double>()))
      fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected a number above 0, found {}", where, key,
                                              j.contains(key) ? j[key].dump() : "nothing"));
    *to = j[key].get<double>();
  }
  c.rslora = j.contains("use_rslora") && j["use_rslora"] == true;
  c.ranks = pattern_of(j, "rank_pattern", where);
  c.alphas = pattern_of(j, "alpha_pattern", where);
  return c;
}

// Where A [r, in] and B [out, r] of one linear lie.
struct Delta {
  fs::path file;
  TensorInfo a, b;
  float scale;
};

// A tensor of a file that is opened anew, so that nothing stays mapped between two weights.
Tensor values_in(const fs::path& file, const TensorInfo& t) {
  const MappedFile mapped = MappedFile::windowed(file);
  return float_values({mapped.at(t.begin, t.bytes), t.dtype, t.shape, {}});
}

void add_product(const Delta& d, Tensor& w) {
  const Tensor a = values_in(d.file, d.a), b = values_in(d.file, d.b);
  const int64_t in = w.cols(), rank = a.rows();
  parallel_for(w.rows(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = d.scale * b.as<float>()[o * rank + k];
        const float* a_row = a.as<float>() + k * in;
        float* row = w.as<float>() + o * in;
        for (int64_t i = 0; i < in; ++i) row[i] += factor * a_row[i];
      }
  });
}

bool all_finite(const Tensor& f32) {
  const float* x = f32.as<float>();
  return std::all_of(x, x + f32.numel(), [](float v) { return std::isfinite(v); });
}

class Merge {
 public:
  Merge(const Checkpoint& c, const fs::path& dir, AdapterConfig config, const CheckpointIndex& adapter)
      : c_(c), where_((dir / "adapter_model.safetensors").string()), config_(std::move(config)), adapter_(adapter) {
    for (const NamedLinear& l : linears_of(c.spec)) linears_[l.name] = l;
    for (const NamedLinear& l : ends_of(c.spec)) linears_[l.name] = l;
  }

  std::map<std::string, Delta> deltas() {
    for (const auto& [name, info] : adapter_.tensors) take(name, info);
    if (adapter_.tensors.empty()) complain("no tensor", "expected lora_A and lora_B of some linears");
    if (!complaints_.empty()) fail(ErrorKind::checkpoint, join(complaints_, "\n"));
    return std::move(deltas_);
  }

 private:
  void complain(const std::string& tensor, const std::string& what) {
    complaints_.push_back(fmt::format("{}: {}: {}", where_, tensor, what));
  }

  // Names with and without PEFT's prefix and the adapter's own name ("default").
  static std::string module_of(const std::string& tensor, std::string_view mark) {
    const size_t at = tensor.find(mark);
    if (at == std::string::npos) return "";
    const size_t from = starts_with(tensor, kPrefix) ? kPrefix.size() : 0;
    return tensor.substr(from, at - from);
  }

  void take(const std::string& tensor, const TensorInfo& info) {
    if (!module_of(tensor, ".lora_B.").empty()) {
      if (!adapter_.tensors.count(partner(tensor, ".lora_B.", ".lora_A."))) complain(tensor, "its lora_A is missing");
      return;
    }
    const std::string module = module_of(tensor, ".lora_A.");
    if (module.empty()) return complain(tensor, "expected lora_A or lora_B of a linear; merge it with PEFT first");
    const auto linear = linears_.find(module);
    if (linear == linears_.end()) return complain(tensor, no_linear(module));
    const auto b = adapter_.tensors.find(partner(tensor, ".lora_A.", ".lora_B."));
    if (b == adapter_.tensors.end()) return complain(tensor, "its lora_B is missing");
    add(linear->second, info, b->second);
  }

  static std::string partner(std::string tensor, std::string_view from, std::string_view to) {
    return tensor.replace(tensor.find(from), from.size(), to);
  }

  std::string no_linear(const std::string& module) const {
    std::vector<std::string_view> names;
    names.reserve(linears_.size());
    for (const auto& [name, l] : linears_) names.push_back(name);
    const std::string_view near = nearest(module, names);
    return fmt::format("the model has no linear {}{}", module,
                       near.empty() ? "" : fmt::format("; the nearest is {}", near));
  }

  void add(const NamedLinear& l, const TensorInfo& a, const TensorInfo& b) {
    const TensorInfo* w = c_.store.find(l.name + ".weight");
    const int64_t rank = a.shape.rank() == 2 ? a.shape[0] : 0;
    if (!w || !is_float(w->dtype) || !w->stored.empty())
      return complain(l.name, fmt::format("is packed in the model ({}); merge into the float one", c_.format));
    if (a.shape != Shape{rank, l.in} || b.shape != Shape{l.out, rank} || rank == 0)
      return complain(l.name, fmt::format("expected lora_A [r, {}] and lora_B [{}, r], found {} and {}", l.in, l.out,
                                          a.shape.str(), b.shape.str()));
    if (!is_float(a.dtype) || !is_float(b.dtype)) return complain(l.name, "lora_A and lora_B are no floats");
    if (const auto said = static_cast<int64_t>(config_.of(config_.ranks, l.name, config_.r)); said != rank)
      return complain(l.name, fmt::format("rank {} in the tensors, {} in adapter_config.json", rank, said));
    for (const TensorInfo* t : {&a, &b})
      if (const Tensor x = float_values(adapter_.view(*t)); !all_finite(x))
        return complain(t->name, "holds NaN or infinities");
    deltas_[w->name] = {where_, a, b, static_cast<float>(config_.scale(l.name))};
  }

  const Checkpoint& c_;
  std::string where_;
  AdapterConfig config_;
  const CheckpointIndex& adapter_;
  std::map<std::string, NamedLinear> linears_;
  std::map<std::string, Delta> deltas_;
  std::vector<std::string> complaints_;
};

}  // namespace

Checkpoint with_adapter(Checkpoint c, const fs::path& dir, std::string& digest) {
  const std::string text = config_text_of(dir);
  AdapterConfig config = config_of(text, (dir / "adapter_config.json").string());
  const fs::path weights = dir / "adapter_model.safetensors";
  if (!fs::exists(weights))
    fail(ErrorKind::io, weights.string() +
                            ": not there; an adapter_model.bin is pickled and not read: save it anew "
                            "with safe_serialization=True");
  const CheckpointIndex adapter = container_for(weights).open(weights);
  const std::map<std::string, Delta> deltas = Merge(c, dir, std::move(config), adapter).deltas();
  digest = digest_of(text + digest_of_file(weights, {}));
  c.blocks.clear();  // what is stored is not what is read any more
  c.store = std::move(c.store).reindexed([&](const fs::path&, CheckpointIndex& index, WeightStore::Makers& makers) {
    for (const auto& [name, delta] : deltas) {
      const TensorInfo info = index.tensors.at(name);
      WeightStore::Makers::mapped_type read = [file = index.files[static_cast<size_t>(info.file)].path(), info] {
        return values_in(file, info);
      };
      if (const auto made = makers.find(name); made != makers.end())  // an expert of a stack
        read = [make = made->second] { return float_values(make()); };
      makers[name] = [read, delta = delta, type = info.dtype] {
        Tensor w = read();
        add_product(delta, w);
        return in_float_type(w, type);
      };
    }
  });
  return c;
}

}  // namespace fewbit
