// E2M1 codes in blocks to tiles and to values: the CPU half.
#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/grids/fp4_grid.h"
#include "kernels/products/fp4_values.h"
#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

void put_block(const uint8_t* codes, uint32_t* words) {
  for (int w = 0; w < kFp4BlockWords; ++w) {
    uint32_t word = 0;
    for (int pair = 0; pair < kFp4WordCodes / 2; ++pair, codes += 2)
      word |= kFp4WordParts[pair][codes[0] | codes[1] << 4];
    words[w] = word;
  }
}

}  // namespace

std::optional<Tensor> fp4_tiles(const Tensor& codes, const Tensor& scales) {
  const int64_t out = codes.rows(), in = codes.cols(), blocks = in / kFp4Block, records = fp4_records(in);
  FEWBIT_ASSERT(out % kFp4TileOuts == 0 && in % kFp4Block == 0 && scales.rows() == out && scales.cols() == blocks);
  Tensor tiles = Tensor::host(DType::u32, {out / kFp4TileOuts, fp4_tile_words(in)});
  auto* bytes = static_cast<uint8_t*>(tiles.view().data);
  std::atomic<bool> all{true};
  parallel_for(out, kFp4TileOuts, [&](int64_t begin, int64_t end) {
    uint32_t most = 0;
    for (int64_t o = begin; o < end; ++o) {
      for (int64_t b = 0; b < blocks; ++b) {
        const Fp4Place place = fp4_place_of(o, b, in);
        put_block(codes.as<uint8_t>() + o * in + b * kFp4Block, tiles.as<uint32_t>() + place.words);
        const uint32_t scale = std::bit_cast<uint32_t>(scales.as<float>()[o * blocks + b]) >> 23;  // 2^-127 is code 0
        bytes[place.scale] = static_cast<uint8_t>(scale);
        most = std::max(most, scale);
      }
      for (int64_t b = blocks; b < records * kFp4RecordBlocks; ++b) {
        const Fp4Place place = fp4_place_of(o, b, in);
        std::fill_n(tiles.as<uint32_t>() + place.words, kFp4BlockWords, 0);
        bytes[place.scale] = 0;
      }
    }
    if (most > kMostFp4Scale) all = false;
  });
  if (!all) return std::nullopt;
  return tiles;
}

namespace cpu {

void fp4_values(Exec&, const Fp4View& q, TensorView w) {
  const int64_t in = q.in;
  const auto* bytes = static_cast<const uint8_t*>(q.tiles.data);
  parallel_for(q.out(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t b = 0; b < in / kFp4Block; ++b) {
        const Fp4Place place = fp4_place_of(o, b, in);
        const uint32_t* words = q.tiles.as<uint32_t>() + place.words;
        const float scale = scale_value(bytes[place.scale], DType::f8_e8m0);
        bf16* to = w.as<bf16>() + o * in + b * kFp4Block;
        for (int i = 0; i < kFp4Block; ++i)
          to[i] = e2m1_value(fp4_code(words[i / kFp4WordCodes], i % kFp4WordCodes)) * scale;
      }
  });
}

}  // namespace cpu
}  // namespace fewbit
