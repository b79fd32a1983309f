#pragma once
// How the words of a Marlin tile become the weight operand of mma.m16n8k16.
//
// The layout was made for weights as the operand with 8 columns. Two such fragments of one k-tile, transposed, are the
// operand with 16 rows; so weights can stand on the row side, and up to 8 rows of x fill the column side without waste.
// With lane = 4 * g + t, the fragment of sub-tile j (outputs 16 j .. 16 j + 15 of a tile of 64) has in register r, half
// h (0 = low)
//   output 16 j + g + 8 (r % 2)      k  2 t + h + 8 (r / 2)
// The functions say where a kernel finds it; tests/kernels/products/marlin/marlin_fragment_test.cpp holds them against
// the index map in src/core/marlin_layout.h.
#include "src/core/marlin_layout.h"

namespace fewbit::marlin {

inline constexpr int kSubTiles = kTileN / 16;  // fragments of a tile

FEWBIT_HD constexpr int tile_words(int bits) { return kTileK * kTileN * bits / 32; }
FEWBIT_HD constexpr int lane_words(int bits) { return tile_words(bits) / 32; }  // 4 or 8, side by side

// Which weight a register of the fragment holds.
FEWBIT_HD constexpr int fragment_output(int lane, int j, int reg) { return 16 * j + lane / 4 + 8 * (reg % 2); }
FEWBIT_HD constexpr int fragment_k(int lane, int reg, int half) { return 2 * (lane % 4) + half + 8 * (reg / 2); }

// Where that weight lies: the word among the lane's own, and the field of the low half.
FEWBIT_HD constexpr int fragment_word(int j, int reg, int bits) { return bits == 4 ? j : 2 * j + reg % 2; }
FEWBIT_HD constexpr int fragment_field(int reg, int bits) { return bits == 4 ? reg / 2 + 2 * (reg % 2) : reg / 2; }
// The field of the high half. 4 bits: 16 bits above, so that one mask takes both; 8 bits: two bytes above.
FEWBIT_HD constexpr int fragment_high_field(int reg, int bits) {
  return fragment_field(reg, bits) + (bits == 4 ? 4 : 2);
}

// Where the scales of the lane's eight outputs (index 2 j + reg % 2) lie among those of 64 outputs: several groups,
// eight neighbours from 8 g on; one group, scattered.
FEWBIT_HD constexpr int fragment_scale(int lane, int index, bool grouped) {
  return grouped ? 8 * (lane / 4) + index : 32 * (index / 4) + 8 * (lane / 8) + 2 * (index % 4) + lane / 4 % 2;
}
// The same for zero points: the word (4 bits: one a lane, 8 bits: two) and the field within it.
FEWBIT_HD constexpr int fragment_zero_word(int lane, int index, int bits) {
  return bits == 4 ? lane / 4 : 2 * (lane / 4) + index / 4;
}
FEWBIT_HD constexpr int fragment_zero_field(int index, int bits) {
  return bits == 4 ? index / 2 + 4 * (index % 2) : index / 2 % 2 + 2 * (index % 2);
}

// In shared memory the 16-byte units of a tile of 8 bits stand permuted. A lane reads units 2 i and 2 i + 1, and
// exchanging neighbours in every other run of eight spreads these reads over all banks.
FEWBIT_HD constexpr int unit_position(int unit, int bits) { return bits == 4 ? unit : unit ^ (unit / 8 % 2); }

// The activations of a token and k-tile, as eight pairs of values, stand reordered so that a lane's two pairs (k 2t
// 2t+1 and k 2t+8 2t+9) are neighbours: pair p goes to this slot.
FEWBIT_HD constexpr int pair_slot(int pair) { return 2 * (pair % 4) + pair / 4; }

}  // namespace fewbit::marlin
