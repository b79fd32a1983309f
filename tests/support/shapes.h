#pragma once
// The shapes that op tests run over: 1, around a vector width, odd, prime, no multiple of 16, and one real
// model's.
#include <cstdint>

namespace fewbit::test {

inline constexpr int64_t kSizes[] = {1, 31, 32, 33, 45, 97, 100, 4096};

struct ProductShape {
  int64_t rows, in, out;
};
inline constexpr ProductShape kProducts[] = {
    {1, 1, 1},    {1, 31, 33},   {3, 97, 45},   {8, 64, 100},   {9, 64, 100},
    {33, 32, 31}, {100, 45, 97}, {1, 768, 256}, {17, 256, 768}, {600, 33, 300},
};

struct MatrixShape {
  int64_t rows, cols;
};
inline constexpr MatrixShape kMatrices[] = {{1, 1}, {1, 31}, {3, 32}, {33, 33}, {45, 97}, {100, 100}, {5, 4096}};

}  // namespace fewbit::test
