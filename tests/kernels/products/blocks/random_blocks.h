#pragma once
// Weights of random blocks, in every form.
#include <map>
#include <string>

#include "kernels/products/blocks/block_layout.h"
#include "src/core/half.h"
#include "src/core/rng.h"

namespace fewbit::test {

inline BlockForm form(int bits, int group, int columns, BlockScale scale, bool minima, float first,
                      bool uneven = false) {
  BlockForm f{.bits = bits, .group = group, .columns = columns, .scale = scale, .minima = minima};
  for (size_t i = 0; bits < 8 && i < size_t{1} << bits; ++i)
    f.levels[i] = uneven ? static_cast<float>(static_cast<int>(i * i) - 100) : first + static_cast<float>(i);
  return f;
}

// Of 4 bits with a table of any levels: 0, step, 3 step, 6 step and so on, less 10.
inline BlockForm with_table(float step) {
  BlockForm f = form(4, 32, 32, BlockScale::power, false, 0);
  for (size_t i = 0; i < 16; ++i) f.levels[i] = step * static_cast<float>(i * (i + 1) / 2) - 10;
  return f;
}

// E4M3 numbers.
inline BlockForm fp8_form(int group) {
  BlockForm f = form(8, group, 256, BlockScale::wide, false, 0);
  f.e4m3 = true;
  return f;
}

inline const std::map<std::string, BlockForm>& forms() {
  static const std::map<std::string, BlockForm> all{
      {"q4_0", form(4, 32, 32, BlockScale::alone, false, -8)},
      {"q4_1", form(4, 32, 32, BlockScale::alone, true, 0)},
      {"q5_0", form(5, 32, 32, BlockScale::alone, false, -16)},
      {"q8_0", form(8, 32, 32, BlockScale::alone, false, 0)},
      {"q2_k", form(2, 16, 256, BlockScale::nibbles, true, 0)},
      {"q3_k", form(3, 16, 256, BlockScale::bytes, false, -4)},
      {"q4_k", form(4, 32, 256, BlockScale::bytes, true, 0)},
      {"q5_k", form(5, 32, 256, BlockScale::bytes, true, 0)},
      {"q6_k", form(6, 16, 256, BlockScale::bytes, false, -32)},
      {"mxfp4", form(4, 32, 32, BlockScale::power, false, -8)},
      {"int4 g128", form(4, 32, 128, BlockScale::wide, false, -8)},
      {"int4 g64 with zeros", form(4, 32, 64, BlockScale::wide, true, -8)},
      {"int8 g128", form(8, 32, 128, BlockScale::wide, false, 0)},
      {"int4 g256, sums of 128", form(4, 128, 256, BlockScale::wide, false, -8)},
      {"int4 g128 with zeros, sums of 128", form(4, 128, 128, BlockScale::wide, true, -8)},
      {"int8 g128, sums of 128", form(8, 128, 128, BlockScale::wide, false, 0)},
      {"fp8", fp8_form(32)},
      {"fp8, sums of 128", fp8_form(128)},
      {"iq4_nl", form(4, 32, 32, BlockScale::alone, false, 0, true)},
      {"iq4_xs", form(4, 32, 256, BlockScale::bytes, false, 0, true)},
      {"table of halves", with_table(0.5f)},
      {"table of eighths", with_table(0.125f)},
  };
  return all;
}

// A weight of random blocks, with what they stand for.
struct Blocks {
  BlockForm form;
  Tensor strips, values;  // values: f32 [out, in]
  int64_t out, in;
  BlockView view() const { return {.strips = strips, .form = &form, .out = out, .in = in}; }
};

inline Blocks random_blocks(const BlockForm& f, int64_t out, int64_t in) {
  Blocks b{.form = f,
           .strips = Tensor::host_zeros(DType::u8, {(out + kStripOuts - 1) / kStripOuts, f.strip_bytes(in)}),
           .values = Tensor::host(DType::f32, {out, in}),
           .out = out,
           .in = in};
  Rng rng(static_cast<uint64_t>(out * 10 + f.bits), "blocks");
  const bool apart = f.scale == BlockScale::bytes || f.scale == BlockScale::nibbles;
  for (int64_t o = 0; o < out; ++o)
    for (int64_t t = 0; t < in / f.columns; ++t) {
      BlockContent c;
      c.d = f.scale == BlockScale::power ? static_cast<uint16_t>(t == 0 ? 0 : 120 + rng.below(10))
                                         : f32_to_f16(static_cast<float>(rng.uniform() - 0.5) / 100);
      c.m = f32_to_f16(static_cast<float>(rng.uniform() - 0.5) / 100);
      for (size_t g = 0; g < 16; ++g) {
        c.scale[g] = static_cast<int16_t>(f.minima ? rng.below(16) : rng.below(256));
        if (!f.minima) c.scale[g] = static_cast<int16_t>(c.scale[g] - 128);
        c.min[g] = static_cast<int16_t>(rng.below(f.scale == BlockScale::nibbles ? 16 : 64));
      }
      const float d = f.scale == BlockScale::power ? f8_e8m0_to_f32(static_cast<uint8_t>(c.d)) : f16_to_f32(c.d);
      const bool wide = f.scale == BlockScale::wide;
      for (int64_t i = 0; i < f.columns; ++i) {
        const auto at = static_cast<size_t>(i), g = static_cast<size_t>(i / f.group);
        c.codes[at] = static_cast<uint8_t>(rng.below(uint64_t{1} << f.bits));
        if (f.e4m3 && (c.codes[at] & 0x7f) == 0x7f) c.codes[at] = 0x80;  // no NaN
        const float level = f.e4m3        ? f8_e4m3_to_f32(c.codes[at])
                            : f.bits == 8 ? static_cast<float>(static_cast<int8_t>(c.codes[at]))
                                          : f.levels[c.codes[at]];
        const float scale = apart ? d * static_cast<float>(c.scale[g]) : d;
        const float min = !f.minima ? 0 : f16_to_f32(c.m) * (apart ? static_cast<float>(c.min[g]) : 1.f);
        b.values.as<float>()[o * in + t * f.columns + i] = std::fma(scale, level, min);
      }
      uint8_t* strip = b.strips.as<uint8_t>() + o / kStripOuts * b.strips.cols();
      if (!wide) {
        put_block(f, in, c, t, o % kStripOuts, strip);
        continue;
      }
      put_wide(f, in, d, f16_to_f32(c.m), t, o % kStripOuts, strip);
      for (int64_t i = 0; i < f.columns; i += kChunkCols)
        put_chunk(f, in, c.codes.data() + i, (t * f.columns + i) / kChunkCols, o % kStripOuts, strip);
    }
  return b;
}

}  // namespace fewbit::test
