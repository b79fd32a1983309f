#include "formats/checkpoints/fewbit_map.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/registry.h"

namespace fewbit::fewbit_map {
namespace {

using nlohmann::ordered_json;

ordered_json map_entry(const LinearFormat& f) {
  ordered_json e = {{"packing", f.packing->name},
                    {"bits", f.spec.bits},
                    {"group_size", f.spec.group},
                    {"sym", f.spec.symmetric},
                    {"act_order", f.act_order}};
  if (f.spec.grid == Grid::f8_e4m3) e["grid"] = "fp8";
  return e;
}

// Our own words also hold 5, 6 and 7 bits.
int map_bits(const ConfigObject& o) {
  const auto bits = o.integer("bits");
  if (!bits) o.wrong("bits", "an integer");
  if (*bits < 2 || *bits > 8) o.unsupported("bits", "2 to 8");
  return static_cast<int>(*bits);
}

LinearFormat read_entry(const ConfigObject& o, std::initializer_list<const Packing*> family) {
  LinearFormat f;
  f.packing = &packing_named(o.str("packing", ""), family, o.where + ".packing");
  f.spec.bits = map_bits(o);
  f.spec.group = read_group_size(o, nullptr);
  f.spec.symmetric = o.flag("sym", true);
  f.act_order = o.flag("act_order", false);
  const std::string grid = o.str("grid", "int");
  if (grid != "int" && grid != "fp8") o.unsupported("grid", "int, fp8");
  if (grid == "fp8") f.spec.grid = Grid::f8_e4m3;
  return f;
}

// The tensor that holds a linear's codes: the first of the packing's plan, whatever the shape.
TensorPlan codes_plan(const LinearFormat& f) { return f.packing->tensors(f.spec, 256, 256, f.act_order)[0]; }
std::string codes_tensor(const std::string& linear, const LinearFormat& f) {
  return linear + '.' + codes_plan(f).suffix;
}

}  // namespace

bool same(const LinearFormat& a, const LinearFormat& b) {
  return a.packing == b.packing && a.spec == b.spec && a.act_order == b.act_order;
}

LinearFormat most_common(const QuantizationSummary& summary) {
  std::vector<std::pair<LinearFormat, int64_t>> counts;
  for (const auto& [name, format] : summary.linears) {
    const auto it = std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return same(c.first, format); });
    if (it == counts.end()) {
      counts.emplace_back(format, 1);
    } else {
      ++it->second;
    }
  }
  return std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
}

std::string text(const QuantizationSummary& summary) {
  const LinearFormat common = most_common(summary);
  ordered_json map;
  map["version"] = 1;
  map["default"] = map_entry(common);
  map["linears"] = ordered_json::object();
  for (const auto& [name, format] : summary.linears)
    if (!same(format, common)) map["linears"][name] = map_entry(format);
  return map.dump();
}

int read_bits(const ConfigObject& o, const QuantSpec* inherited, const char* key) {
  const auto b = o.integer(key);
  if (!b && inherited) return inherited->bits;
  if (!b) o.wrong(key, "an integer");
  if (*b != 2 && *b != 3 && *b != 4 && *b != 8) o.unsupported(key, "2, 3, 4, 8");
  return static_cast<int>(*b);
}

int64_t read_group_size(const ConfigObject& o, const QuantSpec* inherited, const char* key) {
  const auto g = o.integer(key);
  if (!g && inherited) return inherited->group;
  if (!g || (*g < 1 && *g != -1)) o.wrong(key, "-1 or a positive integer");
  return *g;
}

const Packing& packing_named(const std::string& name, std::initializer_list<const Packing*> family,
                             const std::string& where) {
  if (const Packing* p = find_named(family, name)) return *p;
  fail(ErrorKind::unsupported,
       where + ": " + unknown_name("packing", name, std::span<const std::string_view>(names_of(family))));
}

bool packed(const TensorSource& tensor, const std::string& linear, const LinearFormat& f) {
  const TensorPlan codes = codes_plan(f);
  const ConstTensorView found = tensor(linear + '.' + codes.suffix);
  return found.data && (codes.suffix != "weight" || found.dtype == codes.dtype);
}

void read(const ConfigObject& fewbit, std::initializer_list<const Packing*> family,
          const std::vector<std::string>& linears, const TensorSource& tensor, QuantizationSummary& out) {
  if (fewbit.integer("version") != 1) fewbit.unsupported("version", "1");
  const auto common = fewbit.object("default");
  if (!common) fewbit.wrong("default", "an object");
  const LinearFormat default_format = read_entry(*common, family);
  std::map<std::string, LinearFormat> listed;
  if (const auto entries = fewbit.object("linears"))
    for (const auto& [name, value] : entries->members()) listed[name] = read_entry(value, family);
  for (const std::string& linear : linears) {
    const auto it = listed.find(linear);
    const LinearFormat f = it == listed.end() ? default_format : it->second;
    if (packed(tensor, linear, f)) {
      out.linears[linear] = f;
    } else if (it != listed.end()) {
      fail(ErrorKind::checkpoint,
           fewbit.where + ".linears." + linear + ": tensor '" + codes_tensor(linear, f) + "' is missing");
    } else {
      out.dense.push_back(linear);
    }
    if (it != listed.end()) listed.erase(it);
  }
  if (!listed.empty())
    fail(ErrorKind::checkpoint, fewbit.where + ".linears." + listed.begin()->first + ": the model has no such linear");
}

}  // namespace fewbit::fewbit_map
