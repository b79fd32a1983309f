// Packings: the identity over the whole registry, and bytes of other people's packers in both directions.
#include <map>

#include "formats/packing.h"
#include "formats/packings/gptq_words.h"
#include "src/core/half.h"
#include "src/core/rng.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

constexpr const char* kGoldens = "goldens/packing_reference.safetensors";

enum class Order { consecutive, shuffled };

// Random codes, scales (some negative) and zeros over the whole grid.
QuantizedLinear random_linear(const QuantSpec& spec, int64_t out, int64_t in, Order order) {
  Rng rng(7, spec.str() + std::to_string(out) + "x" + std::to_string(in));
  QuantizedLinear q;
  q.spec = spec;
  const int64_t groups = spec.groups(in);
  const auto levels = static_cast<uint64_t>(spec.max_code()) + 1;
  q.codes = Tensor::host(DType::u8, {out, in});
  for (int64_t i = 0; i < out * in; ++i) q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(levels));
  q.scales = Tensor::host(DType::f32, {out, groups});
  for (int64_t i = 0; i < out * groups; ++i)
    q.scales.as<float>()[i] = representable_scale(static_cast<float>(rng.normal()), spec.scale_dtype);
  if (!spec.symmetric) {
    q.zeros = Tensor::host(DType::u8, {out, groups});
    for (int64_t i = 0; i < out * groups; ++i)
      q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(levels));
  }
  if (order == Order::shuffled) {
    q.group_of = Tensor::host(DType::i32, {in});
    for (int64_t k = 0; k < in; ++k)
      q.group_of->as<int32_t>()[k] = static_cast<int32_t>(rng.below(static_cast<uint64_t>(groups)));
  }
  return q;
}

std::string difference(const QuantizedLinear& a, const QuantizedLinear& b) {
  if (!(a.spec == b.spec)) return "specs differ";
  if (a.zeros.has_value() != b.zeros.has_value()) return "one has zeros, the other has none";
  if (a.group_of.has_value() != b.group_of.has_value()) return "one has group_of, the other has none";
  if (const std::string d = first_difference(a.codes, b.codes); !d.empty()) return "codes: " + d;
  if (const std::string d = first_difference(a.scales, b.scales); !d.empty()) return "scales: " + d;
  if (a.zeros)
    if (const std::string d = first_difference(*a.zeros, *b.zeros); !d.empty()) return "zeros: " + d;
  if (a.group_of)
    if (const std::string d = first_difference(*a.group_of, *b.group_of); !d.empty()) return "group_of: " + d;
  return "";
}

// The packed tensors as a checkpoint would give them, each at an odd address: files do not promise alignment.
class Stored {
 public:
  explicit Stored(const PackedLinear& p) {
    for (const NamedTensor& t : p.tensors) {
      auto& bytes = bytes_[t.name];
      bytes.resize(static_cast<size_t>(t.tensor.bytes()) + 1);
      const auto* from = static_cast<const uint8_t*>(t.tensor.view().data);
      std::copy(from, from + t.tensor.bytes(), bytes.begin() + 1);
      views_[t.name] = {bytes.data() + 1, t.tensor.dtype(), t.tensor.shape(), {}};
    }
  }
  TensorSource source() const {
    return [this](const std::string& name) {
      const auto it = views_.find(name);
      return it == views_.end() ? ConstTensorView{} : it->second;
    };
  }
  std::map<std::string, ConstTensorView>& views() { return views_; }

 private:
  std::map<std::string, std::vector<uint8_t>> bytes_;
  std::map<std::string, ConstTensorView> views_;
};

std::string shape_name(int64_t out, int64_t in) { return std::to_string(out) + "x" + std::to_string(in); }

// Checks one packing on one linear; returns whether it was accepted.
bool round_trip(const Packing& p, const QuantSpec& spec, int64_t out, int64_t in, Order order) {
  const bool act_order = order == Order::shuffled;
  const std::string what = std::string(p.name) + " " + spec.str() + " " + shape_name(out, in);
  if (!p.refuses(spec, out, in, act_order).empty()) return false;
  const QuantizedLinear q = random_linear(spec, out, in, order);
  const PackedLinear packed = p.pack("a.b", q);
  const std::vector<TensorPlan> plan = p.tensors(spec, out, in, act_order);
  EXPECT_EQ(packed.tensors.size(), plan.size()) << what;
  int64_t bytes = 0;
  for (size_t i = 0; i < std::min(plan.size(), packed.tensors.size()); ++i) {
    const NamedTensor& t = packed.tensors[i];
    EXPECT_EQ(t.name, "a.b." + plan[i].suffix) << what;
    EXPECT_EQ(t.tensor.dtype(), plan[i].dtype) << what;
    EXPECT_EQ(t.tensor.shape(), plan[i].shape) << what << " " << t.name;
    bytes += t.tensor.bytes();
  }
  EXPECT_EQ(packed_bytes(p, spec, out, in, act_order), bytes) << what;
  const Stored stored(packed);
  EXPECT_EQ(difference(p.unpack("a.b", spec, out, in, stored.source()), q), "") << what;
  return true;
}

TEST(Packing, EverySpecIsRefusedWithAReasonOrComesBackBitwise) {
  const std::pair<int64_t, int64_t> shapes[] = {{33, 40},   {64, 48}, {256, 192}, {96, 64},  {64, 16},
                                                {128, 128}, {1, 1},   {64, 1000}, {192, 272}};
  std::map<std::string_view, int> accepted;
  int tried = 0;
  for (const Packing* p : packings())
    for (int bits : {2, 3, 4, 8})
      for (int64_t group : {32, 64, 128, -1})
        for (bool symmetric : {true, false})
          for (auto [out, in] : shapes)
            for (Order order : {Order::consecutive, Order::shuffled}) {
              const QuantSpec spec{.bits = bits, .group = group, .symmetric = symmetric};
              if (order == Order::shuffled && spec.groups(in) == 1) continue;
              tried += p == &packing_gptq_v2;
              accepted[p->name] += round_trip(*p, spec, out, in, order);
            }
  for (const Packing* p : packings()) EXPECT_GT(accepted[p->name], 10) << p->name;
  EXPECT_EQ(accepted["gptq_v2"], tried);  // the general layout refuses no integer grid
}

TEST(Packing, ReasonsCarryTheNumbers) {
  const auto why = [](const Packing& p, QuantSpec spec, int64_t out, int64_t in, bool act_order) {
    return p.refuses(spec, out, in, act_order);
  };
  EXPECT_NE(why(packing_marlin, {}, 33, 128, false).find("N = 33"), std::string::npos);
  EXPECT_NE(why(packing_marlin, {}, 64, 192, false).find("group 128"), std::string::npos);
  EXPECT_NE(why(packing_marlin, {.bits = 3}, 64, 128, false).find("not 3"), std::string::npos);
  EXPECT_NE(why(packing_marlin, {}, 64, 256, true).find("act-order"), std::string::npos);
  EXPECT_NE(why(packing_gptq, {.symmetric = false}, 64, 128, false).find("gptq_v2"), std::string::npos);
  EXPECT_NE(why(packing_gptq, {}, 33, 128, false).find("N = 33"), std::string::npos);
  for (const Packing* p : packings()) {
    EXPECT_NE(why(*p, {.grid = Grid::f8_e4m3, .bits = 8, .group = -1}, 64, 128, false), "") << p->name;
    EXPECT_NE(why(*p, {.bits = 5}, 64, 128, false), "") << p->name;
    EXPECT_NE(why(*p, {.group = 0}, 64, 128, false), "") << p->name;
    EXPECT_NE(why(*p, {.scale_dtype = DType::bf16}, 64, 128, false), "") << p->name;
    EXPECT_NE(why(*p, {.out_group = 128}, 64, 128, false), "") << p->name;
    EXPECT_NE(why(*p, {}, 0, 128, false), "") << p->name;
  }
}

TEST(Packing, BrokenTensorsAreNamed) {
  const QuantSpec spec{.symmetric = true};
  for (const Packing* p : packings()) {
    const QuantizedLinear q = random_linear(spec, 64, 256, Order::consecutive);
    const PackedLinear packed = p->pack("a", q);
    const auto message =
        [&](const std::function<void(std::map<std::string, ConstTensorView>&)>& damage) -> std::string {
      Stored stored(packed);
      damage(stored.views());
      try {
        p->unpack("a", spec, 64, 256, stored.source());
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::checkpoint);
        return e.what();
      }
      return "";
    };
    for (const NamedTensor& t : packed.tensors) {
      EXPECT_NE(message([&](auto& v) { v.erase(t.name); }).find("'" + t.name + "' is missing"),
                std::string::npos);
      EXPECT_NE(message([&](auto& v) { v[t.name].dtype = DType::u8; }).find("found u8"), std::string::npos)
          << t.name;
      EXPECT_NE(message([&](auto& v) { v[t.name].shape = {7}; }).find("[7]"), std::string::npos) << t.name;
    }
    const std::vector<uint16_t> infinite(2 * 64, 0x7c00);
    const std::string scales = packed.tensors[p->name == "marlin" ? 1 : 2].name;
    EXPECT_NE(message([&](auto& v) { v[scales].data = infinite.data(); }).find("finite"), std::string::npos)
        << p->name;
  }
}

TEST(Packing, GptqChecksGroupsAndSymmetricZeros) {
  const QuantSpec spec{};
  const PackedLinear packed = packing_gptq.pack("a", random_linear(spec, 64, 256, Order::consecutive));
  const auto read_as = [&](const Packing& p, const std::vector<int32_t>& g_idx) {
    Stored stored(packed);
    if (!g_idx.empty()) stored.views()["a.g_idx"].data = g_idx.data();
    return p.unpack("a", spec, 64, 256, stored.source());
  };
  EXPECT_THROW(read_as(packing_gptq, std::vector<int32_t>(256, 2)), Error);
  EXPECT_THROW(read_as(packing_gptq, std::vector<int32_t>(256, -1)), Error);
  EXPECT_THROW(read_as(packing_gptq_v2, {}), Error);  // v1 bytes say zero 7 to a v2 reader
  EXPECT_FALSE(read_as(packing_gptq, {}).group_of.has_value());
  EXPECT_TRUE(read_as(packing_gptq, std::vector<int32_t>(256, 1)).group_of.has_value());
}

TEST(Packing, GptqV1ReadsZerosSubtractedByWord) {
  const QuantSpec spec{.group = -1, .symmetric = false};
  QuantizedLinear q = random_linear(spec, 32, 32, Order::consecutive);  // its zeros cover 0 as well
  q.zeros->as<uint8_t>()[0] = 0;
  PackedLinear packed = packing_gptq_v2.pack("a", q);
  for (int64_t i = 0; i < packed.tensors[1].tensor.numel(); ++i)
    packed.tensors[1].tensor.as<uint32_t>()[i] -= 0x11111111u;
  EXPECT_EQ(difference(packing_gptq.unpack("a", spec, 32, 32, Stored(packed).source()), q), "");
}

TEST(Packing, LookupListsWhatExists) {
  EXPECT_EQ(&packing("marlin"), &packing_marlin);
  try {
    packing("marlinn");
    FAIL() << "expected an Error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("gptq_v2"), std::string::npos);
  }
}

// --- goldens
// ---------------------------------------------------------------------------------------------------

// "gptq.w4.g-1.sym.codes" -> "gptq.w4.g-1.sym.", for the names that begin with `family`.
std::vector<std::string> golden_prefixes(const Golden& golden, const std::string& family) {
  std::vector<std::string> out;
  for (const std::string& name : golden.names())
    if (name.rfind(family, 0) == 0 && name.size() > 6 && name.substr(name.size() - 6) == ".codes")
      out.push_back(name.substr(0, name.size() - 5));
  return out;
}

QuantSpec golden_spec(const std::string& prefix) {
  const size_t w = prefix.find(".w"), g = prefix.find(".g");
  return {.bits = std::stoi(prefix.substr(w + 2)),
          .group = std::stoi(prefix.substr(g + 2)),
          .symmetric = prefix.find(".asym") == std::string::npos};
}

// The inputs that the foreign packer was given.
QuantizedLinear golden_input(const Golden& golden, const std::string& prefix) {
  QuantizedLinear q;
  q.spec = golden_spec(prefix);
  q.codes = golden.get(prefix + "codes");
  q.scales = to_f32(golden.get(prefix + "in_scales"));
  if (!q.spec.symmetric) q.zeros = golden.get(prefix + "zeros");
  if (prefix.find("actorder") != std::string::npos) q.group_of = golden.get(prefix + "g_idx");
  return q;
}

TensorSource golden_source(const Golden& golden, std::map<std::string, Tensor>& kept) {
  return [&](const std::string& name) -> ConstTensorView {
    if (!golden.has(name)) return {};
    return kept.insert_or_assign(name, golden.get(name)).first->second;
  };
}

void expect_golden_bytes(const Golden& golden, const PackedLinear& packed) {
  for (const NamedTensor& t : packed.tensors)
    EXPECT_EQ(first_difference(t.tensor, golden.get(t.name)), "") << t.name;
}

bool has_zero(const QuantizedLinear& q) {
  if (!q.zeros) return false;
  const uint8_t* z = q.zeros->as<uint8_t>();
  return std::find(z, z + q.zeros->numel(), 0) != z + q.zeros->numel();
}

TEST(PackingGolden, Gptq) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  const auto prefixes = golden_prefixes(golden, "gptq.");
  EXPECT_EQ(prefixes.size(), 16u);
  int encoded = 0, asymmetric = 0;
  for (const std::string& prefix : prefixes) {
    const std::string linear = prefix.substr(0, prefix.size() - 1);
    const QuantizedLinear q = golden_input(golden, prefix);
    std::map<std::string, Tensor> kept;
    const auto source = golden_source(golden, kept);
    EXPECT_EQ(difference(packing_gptq.unpack(linear, q.spec, q.out(), q.in(), source), q), "") << prefix;
    if (has_zero(q)) continue;
    expect_golden_bytes(golden, gptq_words::pack(linear, q, gptq_words::ZeroOffset::one));
    ++encoded;
    asymmetric += !q.spec.symmetric;
    if (q.spec.symmetric) expect_golden_bytes(golden, packing_gptq.pack(linear, q));
  }
  EXPECT_EQ(encoded, 16);
  EXPECT_EQ(asymmetric, 8);
}

TEST(PackingGolden, Marlin) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  const auto prefixes = golden_prefixes(golden, "marlin.");
  EXPECT_EQ(prefixes.size(), 2u);
  for (const std::string& prefix : prefixes) {
    const std::string linear = prefix.substr(0, prefix.size() - 1);
    const QuantizedLinear q = golden_input(golden, prefix);
    std::map<std::string, Tensor> kept;
    expect_golden_bytes(golden, packing_marlin.pack(linear, q));
    const QuantizedLinear read =
        packing_marlin.unpack(linear, q.spec, q.out(), q.in(), golden_source(golden, kept));
    EXPECT_EQ(difference(read, q), "") << prefix;
  }
}

}  // namespace
}  // namespace fewbit::test
