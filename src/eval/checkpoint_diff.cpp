#include "src/eval/checkpoint_diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "formats/gguf/locate.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/float_type.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One weight of a side: a packed linear, or a tensor as it is stored.
struct Item {
  const NamedLinear* linear = nullptr;  // packed
  const TensorInfo* info = nullptr;
};
using Items = std::map<std::string, Item>;

Items items_of(const DiffSide& side, const std::vector<NamedLinear>& linears) {
  const Checkpoint* c = side.checkpoint();
  Items items;
  for (const NamedLinear& l : linears)
    if (c->packed(l.name)) items[l.name + ".weight"].linear = &l;
  for (const auto& [name, info] : side.store().index().tensors)
    if (!c || !holds_codes(*c, name)) items[name].info = &info;
  return items;
}

std::string shown(const DiffSide& side, const Item& item) {
  if (item.linear) {
    const LinearFormat& f = side.checkpoint()->quantization.linears.at(item.linear->name);
    return std::string(f.packing->name) + ' ' + f.spec.str() + ' ' + Shape{item.linear->out, item.linear->in}.str();
  }
  return std::string(item.info->stored.empty() ? name_of(item.info->dtype) : item.info->stored) + ' ' +
         item.info->shape.str();
}

Shape shape_of(const Item& item) { return item.linear ? Shape{item.linear->out, item.linear->in} : item.info->shape; }

QuantizedLinear codes_of(const DiffSide& side, const NamedLinear& l) {
  return side.checkpoint()->unpack(l.name, l.out, l.in);
}

// Sums over chunks of fixed length, so that the figures do not depend on threads.
void compare_values(ConstTensorView a, ConstTensorView b, TensorDiff& d) {
  constexpr int64_t kChunk = 1 << 16;
  struct Part {
    double difference = 0, norm = 0, most = 0;
    int64_t count = 0;
  };
  const int64_t n = a.numel();
  std::vector<Part> parts(static_cast<size_t>((n + kChunk - 1) / kChunk));
  parallel_for(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      Part& part = parts[static_cast<size_t>(p)];
      for (int64_t i = p * kChunk; i < std::min(n, (p + 1) * kChunk); ++i) {
        const float x = a.as<float>()[i], y = b.as<float>()[i];
        part.norm += static_cast<double>(x) * x;
        if (x == y || std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y)) continue;
        const double e = static_cast<double>(y) - static_cast<double>(x);
        ++part.count;
        part.difference += e * e;
        if (!(std::fabs(e) <= part.most)) part.most = std::fabs(e);
      }
    }
  });
  double difference = 0, norm = 0;
  for (const Part& part : parts) {
    difference += part.difference;
    norm += part.norm;
    d.values += part.count;
    if (!(part.most <= d.max_abs)) d.max_abs = part.most;
  }
  d.relative = difference == 0 ? 0 : norm > 0 ? std::sqrt(difference / norm) : kInfinity;
  if (std::isnan(d.relative) || std::isnan(d.max_abs)) d.relative = d.max_abs = kInfinity;
}

int64_t differing_bytes(const void* a, const void* b, int64_t n) {
  const auto *x = static_cast<const uint8_t*>(a), *y = static_cast<const uint8_t*>(b);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] != y[i];
  return count;
}

// Tensors that are not packed on either side.
void compare_stored(ConstTensorView a, ConstTensorView b, TensorDiff& d) {
  if (a.dtype == b.dtype && std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0) return;
  if (is_float(a.dtype) && is_float(b.dtype)) {
    compare_values(float_values(a), float_values(b), d);
  } else {
    const bool alike = a.dtype == b.dtype;
    d.values = alike ? differing_bytes(a.data, b.data, a.bytes()) : std::max(a.bytes(), b.bytes());
    d.relative = d.max_abs = kInfinity;  // nothing says how far two codes or bytes are apart
  }
  d.state = d.values == 0 ? Sameness::same_values : Sameness::different;
}

void compare_packed(const DiffSide& sa, const DiffSide& sb, const Item& a, const Item& b, TensorDiff& d) {
  const QuantizedLinear qa = codes_of(sa, *a.linear), qb = codes_of(sb, *b.linear);
  if (qa.spec.bits == qb.spec.bits && qa.spec.grid == qb.spec.grid)
    d.codes = differing_bytes(qa.codes.view().data, qb.codes.view().data, qa.codes.bytes());
  if (qa.spec == qb.spec && content_hash(qa) == content_hash(qb)) return;
  compare_values(dequantize_reference(qa), dequantize_reference(qb), d);
  const bool inputs = qa.spec.activations == qb.spec.activations && qa.input_scale == qb.input_scale;
  d.state = d.values == 0 && inputs ? Sameness::same_values : Sameness::different;
}

Tensor values_of(const DiffSide& side, const Item& item) {
  if (item.linear) return dequantize_reference(codes_of(side, *item.linear));
  return float_values(side.store().get(item.info->name));
}

void release(const DiffSide& side, const std::string& name, const Item& item) {
  if (item.linear)
    release_linear(*side.checkpoint(), item.linear->name);
  else
    side.store().release(name);
}

TensorDiff compare(const DiffSide& sa, const DiffSide& sb, const std::string& name, const Item& a, const Item& b) {
  TensorDiff d{.name = name, .a = shown(sa, a), .b = shown(sb, b)};
  if (!(shape_of(a) == shape_of(b))) {
    d.state = Sameness::reshaped;
    return d;
  }
  if (a.linear && b.linear) {
    compare_packed(sa, sb, a, b, d);
  } else if (a.linear || b.linear) {
    if (const Item& dense = a.linear ? b : a; is_float(dense.info->dtype))
      compare_values(values_of(sa, a), values_of(sb, b), d);
    else
      d.relative = d.max_abs = kInfinity, d.values = shape_of(a).numel();
    d.state = d.values == 0 ? Sameness::same_values : Sameness::different;
  } else {
    compare_stored(sa.store().get(name), sb.store().get(name), d);
  }
  release(sa, name, a);
  release(sb, name, b);
  return d;
}

// Absent and reshaped tensors first, then by relative difference.
bool worse(const TensorDiff& a, const TensorDiff& b) {
  const auto rank = [](Sameness s) { return s == Sameness::different ? 0 : s <= Sameness::same_values ? 1 : -1; };
  if (rank(a.state) != rank(b.state)) return rank(a.state) < rank(b.state);
  if (a.state == b.state && a.state == Sameness::different && a.relative != b.relative) return a.relative > b.relative;
  if (a.state != b.state) return a.state > b.state;
  return a.name < b.name;
}

}  // namespace

const char* name_of(Sameness s) {
  constexpr const char* kNames[] = {"identical", "same values", "different", "other shape", "only in A", "only in B"};
  return kNames[static_cast<size_t>(s)];
}

int64_t CheckpointDiff::count(Sameness s) const {
  return std::count_if(tensors.begin(), tensors.end(), [&](const TensorDiff& d) { return d.state == s; });
}

bool CheckpointDiff::same() const {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorDiff& d) { return d.state <= Sameness::same_values; });
}

DiffSide DiffSide::open(const fs::path& path) {
  DiffSide side;
  if (gguf::locate(path) || fs::exists(path / "config.json"))
    side.checkpoint_ = Checkpoint::open(path);
  else
    side.store_ = WeightStore::open(path);
  return side;
}

CheckpointDiff diff_checkpoints(const DiffSide& a, const DiffSide& b, const std::function<void(double)>& progress) {
  const auto linears_in = [](const DiffSide& s) {
    return s.checkpoint() ? s.checkpoint()->linears() : std::vector<NamedLinear>();
  };
  const std::vector<NamedLinear> la = linears_in(a), lb = linears_in(b);
  Items left = items_of(a, la), right = items_of(b, lb);
  CheckpointDiff diff;
  size_t done = 0;
  for (const auto& [name, item] : left) {
    if (progress) progress(static_cast<double>(done++) / static_cast<double>(left.size()));
    const auto other = right.find(name);
    if (other == right.end()) {
      diff.tensors.push_back({.name = name, .state = Sameness::only_a, .a = shown(a, item), .b = ""});
      continue;
    }
    diff.tensors.push_back(compare(a, b, name, item, other->second));
    right.erase(other);
  }
  for (const auto& [name, item] : right)
    diff.tensors.push_back({.name = name, .state = Sameness::only_b, .a = "", .b = shown(b, item)});
  std::sort(diff.tensors.begin(), diff.tensors.end(), worse);
  return diff;
}

}  // namespace fewbit
