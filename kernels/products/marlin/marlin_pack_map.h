#pragma once
// What the CPU and CUDA halves of marlin_pack share: the checked job, and how one word is made.
#include "kernels/products/marlin/marlin_pack.h"
#include "src/core/marlin_layout.h"

namespace fewbit {

struct MarlinPackJob {
  const uint8_t* codes;  // [outs, in]
  const float* scales;   // [outs, groups]
  uint32_t* b;           // [in / 16, words] of all outputs
  uint16_t* s;           // f16 [groups, out] of all outputs
  int bits;
  int64_t outs, in, groups, first, out;
  int64_t words() const { return marlin::words_per_row(out, bits); }
  int64_t words_here() const { return marlin::words_per_row(outs, bits); }

  MarlinPackJob(const MarlinPackArgs& a, TensorView to_b, TensorView to_s)
      : codes(a.codes.as<uint8_t>()),
        scales(a.scales.as<float>()),
        b(static_cast<uint32_t*>(to_b.data)),
        s(static_cast<uint16_t*>(to_s.data)),
        bits(a.bits),
        outs(a.codes.rows()),
        in(a.codes.cols()),
        groups(a.scales.cols()),
        first(a.first),
        out(to_s.cols()) {
    FEWBIT_ASSERT(a.codes.dtype == DType::u8 && a.scales.dtype == DType::f32 && a.scales.rows() == outs);
    FEWBIT_ASSERT(to_b.dtype == DType::i32 && to_s.dtype == DType::f16 && to_s.rows() == groups);
    FEWBIT_ASSERT(marlin::admits(out, in, in / groups, bits) && in % groups == 0);
    FEWBIT_ASSERT(to_b.numel() == in / marlin::kTileK * words());
    FEWBIT_ASSERT(first % marlin::kTileN == 0 && outs % marlin::kTileN == 0 && first + outs <= out);
  }
};

// Word `col`, counted among those of the job's outputs, of k-tile `row`.
FEWBIT_HD uint32_t marlin_word(const MarlinPackJob& j, int64_t row, int64_t col) {
  uint32_t word = 0;
  for (int field = 0; field < 32 / j.bits; ++field) {
    const marlin::Element e = marlin::element_of(row, col, field, j.bits);
    word |= static_cast<uint32_t>(j.codes[e.n * j.in + e.k]) << (field * j.bits);
  }
  return word;
}

}  // namespace fewbit
