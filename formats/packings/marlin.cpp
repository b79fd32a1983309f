// Marlin: codes in the order in which the tensor cores read them (src/core/marlin_layout.h is the map).
// Tensors: `B` I32 [K/16, N*16*bits/32], `s` F16 [G, N] with permuted columns and, for asymmetric grids, `z`
// I32 [G, N*bits/32]. 4-bit symmetric files are those of the published kernel; 8 bits, `z` and FP8 (E4M3 codes in
// the place of int8 ones, as W8A16) follow vLLM's in-memory layout. docs/formats/marlin.md has the bytes.
#include <algorithm>
#include <array>

#include "formats/bits.h"
#include "formats/packings/integer_grid.h"
#include "src/core/marlin_layout.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

constexpr int64_t kTileN = marlin::kTileN, kTileK = marlin::kTileK;
constexpr int64_t kBlockK = 64;  // inputs handled at once: one cache line of codes
constexpr int64_t kTileCodes = kTileN * kTileK;

// Where the codes of a tile's words come from: entry word * (32/bits) + field is n * kBlockK + k inside the
// tile.
template <int kBits>
constexpr std::array<uint16_t, kTileCodes> tile_map() {
  constexpr int64_t kFields = 32 / kBits;
  std::array<uint16_t, kTileCodes> map{};
  for (int64_t i = 0; i < kTileCodes; ++i) {
    const marlin::Element e = marlin::element_of(0, i / kFields, static_cast<int>(i % kFields), kBits);
    map[static_cast<size_t>(i)] = static_cast<uint16_t>(e.n * kBlockK + e.k);
  }
  return map;
}

// The codes of 64 outputs x up to 64 inputs, copied out of rows that are far apart and often share cache
// sets.
struct Block {
  alignas(64) uint8_t codes[kTileN * kBlockK];
};

template <int kBits>
void pack_tile(const uint8_t* codes, uint32_t* words) {
  static constexpr auto kMap = tile_map<kBits>();
  constexpr int kFields = 32 / kBits;
  for (int64_t w = 0; w < kTileCodes / kFields; ++w) {
    uint32_t word = 0;
    for (int f = 0; f < kFields; ++f)
      word |= static_cast<uint32_t>(codes[kMap[static_cast<size_t>(w * kFields + f)]]) << (kBits * f);
    words[w] = word;
  }
}

template <int kBits>
void unpack_tile(const void* words, int64_t first, uint8_t* codes) {
  static constexpr auto kMap = tile_map<kBits>();
  constexpr int kFields = 32 / kBits;
  for (int64_t w = 0; w < kTileCodes / kFields; ++w) {
    const uint32_t word = bits::load<uint32_t>(words, first + w);
    for (int f = 0; f < kFields; ++f)
      codes[kMap[static_cast<size_t>(w * kFields + f)]] =
          static_cast<uint8_t>((word >> (kBits * f)) & ((1u << kBits) - 1));
  }
}

// Calls body(n0, k0, inputs) for blocks of 64 outputs x at most 64 inputs, in parallel over outputs.
template <class Body>
void for_blocks(int64_t out, int64_t in, const Body& body) {
  parallel_for(out / kTileN, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile)
      for (int64_t k0 = 0; k0 < in; k0 += kBlockK) body(tile * kTileN, k0, std::min(kBlockK, in - k0));
  });
}

template <int kBits>
Tensor pack_codes(const Tensor& codes) {
  const int64_t out = codes.shape()[0], in = codes.shape()[1], per_row = marlin::words_per_row(out, kBits);
  Tensor words = Tensor::host(DType::i32, {in / kTileK, per_row});
  for_blocks(out, in, [&](int64_t n0, int64_t k0, int64_t inputs) {
    Block block;
    for (int64_t n = 0; n < kTileN; ++n)
      std::copy_n(codes.as<uint8_t>() + (n0 + n) * in + k0, inputs, block.codes + n * kBlockK);
    for (int64_t k = 0; k < inputs; k += kTileK)
      pack_tile<kBits>(block.codes + k, words.as<uint32_t>() + (k0 + k) / kTileK * per_row + n0 * kTileK * kBits / 32);
  });
  return words;
}

template <int kBits>
Tensor unpack_codes(ConstTensorView words, int64_t out, int64_t in) {
  const int64_t per_row = marlin::words_per_row(out, kBits);
  Tensor codes = Tensor::host(DType::u8, {out, in});
  for_blocks(out, in, [&](int64_t n0, int64_t k0, int64_t inputs) {
    Block block;
    for (int64_t k = 0; k < inputs; k += kTileK)
      unpack_tile<kBits>(words.data, (k0 + k) / kTileK * per_row + n0 * kTileK * kBits / 32, block.codes + k);
    for (int64_t n = 0; n < kTileN; ++n)
      std::copy_n(block.codes + n * kBlockK, inputs, codes.as<uint8_t>() + (n0 + n) * in + k0);
  });
  return codes;
}

int64_t grouped_column(int64_t n) { return marlin::scale_column(n, true); }
int64_t single_column(int64_t n) { return marlin::scale_column(n, false); }
auto scale_columns(int64_t groups) { return groups > 1 ? grouped_column : single_column; }

Tensor pack_zeros(const Tensor& zeros, int bits) {
  const int64_t out = zeros.shape()[0], groups = zeros.shape()[1];
  Tensor words = Tensor::host_zeros(DType::i32, {groups, out * bits / 32});
  for (int64_t n = 0; n < out; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      const marlin::WordPos at = marlin::zero_of(g, n, bits);
      words.as<uint32_t>()[at.row * words.cols() + at.col] |= static_cast<uint32_t>(zeros.as<uint8_t>()[n * groups + g])
                                                              << (bits * at.field);
    }
  return words;
}

Tensor unpack_zeros(ConstTensorView words, int64_t out, int bits) {
  const int64_t groups = words.shape[0], cols = words.shape[1];
  Tensor zeros = Tensor::host(DType::u8, {out, groups});
  for (int64_t n = 0; n < out; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      const marlin::WordPos at = marlin::zero_of(g, n, bits);
      const uint32_t word = bits::load<uint32_t>(words.data, at.row * cols + at.col);
      zeros.as<uint8_t>()[n * groups + g] = static_cast<uint8_t>((word >> (bits * at.field)) & ((1u << bits) - 1));
    }
  return zeros;
}

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  QuantSpec lying = spec;  // FP8 codes (E4M3) lie as those of int8
  if (spec.grid == Grid::f8_e4m3) lying.grid = Grid::integer;
  if (std::string why = integer_grid::refuses(lying, out, in); !why.empty()) return why;
  if (spec.grid == Grid::f8_e4m3 && (spec.bits != 8 || !spec.symmetric))
    return "Marlin holds FP8 in 8 bits without zero points, not " + spec.str();
  if (spec.bits != 4 && spec.bits != 8) return "Marlin holds 4 or 8 bits, not " + std::to_string(spec.bits);
  if (act_order) return "Marlin has no room for reordered groups (act-order)";
  if (out % kTileN != 0 || in % kTileK != 0) {
    return "Marlin wants N % 64 = 0 and K % 16 = 0, here N = " + std::to_string(out) + ", K = " + std::to_string(in);
  }
  if (!marlin::admits(out, in, spec.group, spec.bits)) {
    return "Marlin wants groups of 32, 64, 128 that divide K, or one per row, here K = " + std::to_string(in) +
           ", group " + std::to_string(spec.group);
  }
  return "";
}

std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in, bool) {
  const int64_t groups = spec.groups(in);
  std::vector<TensorPlan> plan = {{"B", DType::i32, {in / kTileK, marlin::words_per_row(out, spec.bits)}},
                                  {"s", DType::f16, {groups, out}}};
  if (!spec.symmetric) plan.push_back({"z", DType::i32, {groups, out * spec.bits / 32}});
  return plan;
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(refuses(q.spec, q.out(), q.in(), q.group_of.has_value()).empty());
  FEWBIT_ASSERT(!q.input_scale && !q.global_scale);
  validate(q);
  const std::string prefix = std::string(linear) + '.';
  PackedLinear p;
  p.tensors.push_back({prefix + "B", q.spec.bits == 4 ? pack_codes<4>(q.codes) : pack_codes<8>(q.codes)});
  p.tensors.push_back({prefix + "s", integer_grid::scales_to_file(q.scales, scale_columns(q.groups()))});
  if (q.zeros) p.tensors.push_back({prefix + "z", pack_zeros(*q.zeros, q.spec.bits)});
  return p;
}

QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  if (const std::string why = refuses(spec, out, in, false); !why.empty())
    fail(ErrorKind::checkpoint, std::string(linear) + ": cannot be packed as marlin: " + why);
  const std::vector<TensorPlan> plan = tensors(spec, out, in, false);
  QuantizedLinear q;
  q.spec = spec;
  const ConstTensorView words = expect_tensor(source, linear, plan[0]);
  q.codes = spec.bits == 4 ? unpack_codes<4>(words, out, in) : unpack_codes<8>(words, out, in);
  q.scales = integer_grid::scales_from_file(expect_tensor(source, linear, plan[1]), std::string(linear) + ".s",
                                            scale_columns(spec.groups(in)));
  if (!spec.symmetric) q.zeros = unpack_zeros(expect_tensor(source, linear, plan[2]), out, spec.bits);
  return q;
}

std::string note(const QuantSpec& spec, int64_t out, int64_t in) {
  if (!spec.symmetric) return "zero points: our extension, not read by the published Marlin kernel";
  if (marlin::published_kernel_admits(out, in, spec.group, spec.bits)) return "";
  return "the published Marlin kernel wants 4 bits, out % 256 == 0, in % 128 == 0 and group 128 or one a row";
}

}  // namespace

constinit const Packing packing_marlin = {
    .name = "marlin",
    .summary = "4- and 8-bit integers and FP8 as GPU kernels read them",
    .refuses = refuses,
    .tensors = tensors,
    .pack = pack,
    .unpack = unpack,
    .note = note,
};

}  // namespace fewbit
