// Marlin with 2:4 sparsity: of every four neighbouring inputs (a quad) two are kept. W is [N outputs, K inputs], kc
// counts kept inputs (two a quad).
//
//   codes   I32 [K/32, N*bits/2]  fragments of 16 kept inputs x 64 outputs
//   meta    I16 [K/32, 2N]        a nibble per quad: first kept position | second << 2; also as [N, K/16]
//   scales  F16 [G, N]            G > 1: outputs interleaved by 4 within 8
//
// compressed-tensors ("marlin-24") and AutoGPTQ's "marlin_24", which is only read, name them differently. What was
// pruned has the code of zero here. docs/formats/marlin.md has the maps.
#include "formats/bits.h"
#include "formats/packings/integer_grid.h"
#include "formats/two_of_four.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

struct Names {
  const char* codes;
  const char* scales;
  const char* meta;
};
constexpr Names kCompressedTensors{"weight_packed", "scale_packed", "meta"};
constexpr Names kGptq{"B_24", "s", "B_meta"};

struct Position {
  int64_t kept, n;
};

// What field `field` of word `c` of tile row `row` holds.
Position position(int64_t row, int64_t c, int field, int bits) {
  const int64_t per_chunk = 32 * bits, w = c % per_chunk;  // words of 64 outputs
  const int64_t i = bits == 4 ? w / 4 : w / 8;
  const int64_t high = bits == 4 ? (field >> 1) & 1 : w % 2, j = bits == 4 ? w % 4 : (w / 2) % 4;
  const int second = bits == 4 ? field >> 2 : field >> 1;
  return {16 * row + 2 * (i % 4) + second + 8 * (field & 1), 64 * (c / per_chunk) + 8 * (i / 4) + 4 * high + j};
}

// Where the four quads of inputs 16c to 16c + 15 of output n stand in the flat metadata.
int64_t meta_index(int64_t n, int64_t c, int64_t out) {
  const int64_t row = 64 * (n / 64) + 32 * ((n >> 1) & 1) + 4 * ((n % 64) / 8) + 2 * (n & 1) + (c & 1);
  return (c >> 1) * 2 * out + 2 * row + ((n >> 2) & 1);
}

// The input that kept entry `kept` of output n is.
int64_t input_of(ConstTensorView meta, int64_t kept, int64_t n, int64_t out) {
  const int64_t quad = kept / 2;
  const auto nibbles = bits::load<uint16_t>(meta.data, meta_index(n, quad / 4, out));
  const int nibble = nibbles >> (4 * (quad % 4));
  return 4 * quad + ((kept & 1) ? (nibble >> 2) & 3 : nibble & 3);
}

// The nibble of a quad: the kept positions, the first | the second << 2. Where fewer than two codes are not zero's the
// library's choice of the others.
int kept_pair(const uint8_t* codes, uint8_t zero) {
  const bool set[4] = {codes[0] != zero, codes[1] != zero, codes[2] != zero, codes[3] != zero};
  const int first = set[0] ? 0 : set[1] ? 1 : 2;
  const int second = first == 2 || set[3] ? 3 : first == 0 && set[1] ? 1 : 2;
  return first | second << 2;
}

Tensor pack_meta(const Tensor& codes, uint8_t zero) {
  const int64_t out = codes.rows(), in = codes.cols();
  Tensor meta = Tensor::host(DType::i16, {in / 32, 2 * out});
  parallel_for(out, 64, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      for (int64_t c = 0; c < in / 16; ++c) {
        int nibbles = 0;
        for (int64_t t = 0; t < 4; ++t)
          nibbles |= kept_pair(codes.as<uint8_t>() + n * in + 16 * c + 4 * t, zero) << (4 * t);
        meta.as<int16_t>()[meta_index(n, c, out)] = static_cast<int16_t>(nibbles);
      }
  });
  return meta;
}

Tensor pack_codes(const Tensor& codes, const Tensor& meta, int bits) {
  const int64_t out = codes.rows(), in = codes.cols(), cols = out * bits / 2;
  Tensor words = Tensor::host(DType::i32, {in / 32, cols});
  parallel_for(in / 32, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t c = 0; c < cols; ++c) {
        uint32_t word = 0;
        for (int f = 0; f < 32 / bits; ++f) {
          const Position p = position(row, c, f, bits);
          word |= static_cast<uint32_t>(codes.as<uint8_t>()[p.n * in + input_of(meta, p.kept, p.n, out)]) << (bits * f);
        }
        words.as<uint32_t>()[row * cols + c] = word;
      }
  });
  return words;
}

Tensor unpack_codes(ConstTensorView words, ConstTensorView meta, int64_t out, int64_t in, int bits) {
  Tensor codes = Tensor::host(DType::u8, {out, in});
  std::fill_n(codes.as<uint8_t>(), codes.numel(), static_cast<uint8_t>(1 << (bits - 1)));
  const int64_t cols = words.shape[1];
  parallel_for(words.shape[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t c = 0; c < cols; ++c) {
        const uint32_t word = bits::load<uint32_t>(words.data, row * cols + c);
        for (int f = 0; f < 32 / bits; ++f) {
          const Position p = position(row, c, f, bits);
          codes.as<uint8_t>()[p.n * in + input_of(meta, p.kept, p.n, out)] =
              static_cast<uint8_t>((word >> (bits * f)) & ((1u << bits) - 1));
        }
      }
  });
  return codes;
}

int64_t same_column(int64_t n) { return n; }
int64_t grouped_column(int64_t n) { return n - n % 8 + 2 * (n % 4) + n % 8 / 4; }

std::string unreadable(const QuantSpec& spec, int64_t out, int64_t in) {
  if (std::string why = integer_grid::refuses(spec, out, in); !why.empty()) return why;
  if ((spec.bits != 4 && spec.bits != 8) || !spec.symmetric)
    return "marlin-24 holds 4 or 8 bits, symmetric, not " + spec.str();
  if (out % 128 != 0 || in % 128 != 0)
    return "marlin-24 has N % 128 = 0 and K % 128 = 0, here N = " + std::to_string(out) + ", K = " + std::to_string(in);
  if (spec.group != -1 && spec.group != 128)
    return "marlin-24 has groups of 128 or one per row, not of " + std::to_string(spec.group);
  return "";
}

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  return act_order ? "marlin-24 has no room for groups in activation order" : unreadable(spec, out, in);
}

std::string refuses_all(const QuantSpec&, int64_t, int64_t, bool) {
  return "marlin-24 by GPTQ's names is only read; --format marlin-24 writes it by compressed-tensors'";
}

std::vector<TensorPlan> plan_of(const Names& names, const QuantSpec& spec, int64_t out, int64_t in) {
  return {{names.codes, DType::i32, {in / 32, out * spec.bits / 2}},
          {names.scales, DType::f16, {spec.groups(in), out}},
          {names.meta, DType::i16, {in / 32, 2 * out}, {{DType::i16, {out, in / 16}}}}};
}

QuantizedLinear read(const Names& names, std::string_view linear, const QuantSpec& spec, Shape out_in,
                     const TensorSource& source) {
  const int64_t out = out_in[0], in = out_in[1];
  if (const std::string why = unreadable(spec, out, in); !why.empty())
    fail(ErrorKind::unsupported, std::string(linear) + ": cannot be read as marlin-24: " + why);
  const std::vector<TensorPlan> plan = plan_of(names, spec, out, in);
  QuantizedLinear q;
  q.spec = spec;
  q.codes =
      unpack_codes(expect_tensor(source, linear, plan[0]), expect_tensor(source, linear, plan[2]), out, in, spec.bits);
  q.scales =
      integer_grid::scales_from_file(expect_tensor(source, linear, plan[1]), std::string(linear) + '.' + names.scales,
                                     spec.groups(in) > 1 ? grouped_column : same_column);
  return q;
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(two_of_four(q) && !q.group_of);
  const std::string prefix = std::string(linear) + '.';
  PackedLinear p;
  Tensor meta = pack_meta(q.codes, static_cast<uint8_t>(q.spec.mid_code()));
  p.tensors.push_back({prefix + kCompressedTensors.codes, pack_codes(q.codes, meta, q.spec.bits)});
  p.tensors.push_back({prefix + kCompressedTensors.scales,
                       integer_grid::scales_to_file(q.scales, q.groups() > 1 ? grouped_column : same_column)});
  p.tensors.push_back({prefix + kCompressedTensors.meta, std::move(meta)});
  return p;
}

template <const Names& kNames>
std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in, bool) {
  return plan_of(kNames, spec, out, in);
}

template <const Names& kNames>
QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  return read(kNames, linear, spec, {out, in}, source);
}

}  // namespace

constinit const Packing packing_marlin_24 = {
    .name = "marlin_24",
    .summary = "Marlin with 2:4 sparsity, GPTQ's names (only read)",
    .refuses = refuses_all,
    .tensors = tensors<kGptq>,
    .pack = nullptr,
    .unpack = unpack<kGptq>,
};
constinit const Packing packing_ct_marlin_24 = {
    .name = "ct_marlin_24",
    .summary = "compressed-tensors marlin-24: int4 and int8 in 2:4 sparsity",
    .refuses = refuses,
    .tensors = tensors<kCompressedTensors>,
    .pack = pack,
    .unpack = unpack<kCompressedTensors>,
    .two_of_four = true,
};

}  // namespace fewbit
