#pragma once
// A linear in codes on a grid, as ops take it: CodedView to read, MutableCodedView to write, and CodedArrays, the plain
// form of both that loops and kernels index. src/core/quantized_linear.h has the meaning:
//   value(o, i) = (codes[o, i] - zero) * scales[o / out_group, g]   integer grids; zero = zeros[o, g], or 2^(bits-1)
//   value(o, i) = levels[codes[o, i]] * scales[o / out_group, g]    float grids
//   with g = group_of[i], or i / group where group_of is absent.
#include <type_traits>

#include "src/core/host_device.h"
#include "src/core/quantized_linear.h"

namespace fewbit {

// Tensors on one device; `data == nullptr` means absent. G is the number of groups. What an op reads and writes of them
// stands in its contract; it leaves the rest alone, so a caller may leave that out.
template <class View>  // ConstTensorView or TensorView
struct Coded {
  View codes{};                // [out, in] u8
  View scales{};               // [ceil(out / out_group), G] f32
  View zeros{};                // [out, G] u8; absent: every zero is 2^(bits-1)
  ConstTensorView group_of{};  // [in] i32, each in [0, G); absent: groups are consecutive columns
  ConstTensorView levels{};    // [256] f32, what each code of a float grid is worth (code_levels()); absent: integers
  Grid grid = Grid::integer;
  int bits = 4;           // of a code
  int64_t group = 128;    // consecutive columns that share a scale, > 0
  int64_t out_group = 1;  // consecutive outputs that share a scale, > 0
};
using CodedView = Coded<ConstTensorView>;
using MutableCodedView = Coded<TensorView>;

inline CodedView read_only(const MutableCodedView& q) {
  return {.codes = q.codes,
          .scales = q.scales,
          .zeros = q.zeros,
          .group_of = q.group_of,
          .levels = q.levels,
          .grid = q.grid,
          .bits = q.bits,
          .group = q.group,
          .out_group = q.out_group};
}

// The pointers and sizes of a coded linear. Read-only ones promise that nothing writes these arrays while a kernel
// runs, so that a GPU may load them through its read-only path (__ldg). Columns are counted in `int`: 32-bit divisions
// by `group` are several times cheaper on a GPU than 64-bit ones.
template <bool kWritable>
struct CodedArrays {
  template <class T>
  using Element = std::conditional_t<kWritable, T, const T>;

  Element<uint8_t>* codes = nullptr;
  Element<float>* scales = nullptr;
  Element<uint8_t>* zeros = nullptr;  // or null
  const int32_t* group_of = nullptr;  // or null
  const float* levels = nullptr;      // or null
  int64_t out = 0;
  int in = 0, groups = 0, group = 1, out_group = 1;
  int mid = 0, max_code = 0;  // the zero of a symmetric grid, 2^(bits-1); the largest code, 2^bits - 1

  CodedArrays() = default;
  // Of a linear [outs, ins] whose codes may be absent.
  template <class View>
  CodedArrays(const Coded<View>& q, int64_t outs, int64_t ins)
      : codes(q.codes.data ? q.codes.template as<uint8_t>() : nullptr),
        scales(q.scales.template as<float>()),
        zeros(q.zeros.data ? q.zeros.template as<uint8_t>() : nullptr),
        group_of(q.group_of.data ? q.group_of.template as<int32_t>() : nullptr),
        levels(q.levels.data ? q.levels.template as<float>() : nullptr),
        out(outs),
        in(static_cast<int>(ins)),
        groups(static_cast<int>(q.scales.cols())),
        group(static_cast<int>(q.group)),
        out_group(static_cast<int>(q.out_group)),
        mid(1 << (q.bits - 1)),
        max_code((1 << q.bits) - 1) {
    FEWBIT_ASSERT(q.group > 0 && q.group <= INT32_MAX && ins <= INT32_MAX && q.bits >= 1 && q.bits <= 8);
    FEWBIT_ASSERT(q.out_group > 0 && q.scales.rows() == (outs + q.out_group - 1) / q.out_group);
    FEWBIT_ASSERT(!codes || (q.codes.rows() == outs && q.codes.cols() == ins));
    FEWBIT_ASSERT(!zeros || (q.zeros.rows() == outs && q.zeros.cols() == groups));
    if (outs > 0) FEWBIT_ASSERT(group_of ? q.group_of.numel() == ins : groups == (ins + q.group - 1) / q.group);
  }
  template <class View>
  explicit CodedArrays(const Coded<View>& q) : CodedArrays(q, q.codes.rows(), q.codes.cols()) {}

  FEWBIT_HD int64_t index(int64_t o, int i) const { return o * in + i; }               // of a code
  FEWBIT_HD int64_t grid_index(int64_t row, int g) const { return row * groups + g; }  // of a scale or a zero
  FEWBIT_HD int group_at(int i) const { return group_of ? load(group_of + i) : i / group; }
  FEWBIT_HD int64_t scale_row(int64_t o) const { return o / out_group; }
  FEWBIT_HD float scale(int64_t row, int g) const { return load(scales + grid_index(row, g)); }  // row: a scale_row()
  FEWBIT_HD int zero(int64_t o, int g) const { return zeros ? load(zeros + grid_index(o, g)) : mid; }
  FEWBIT_HD int code(int64_t o, int i) const { return load(codes + index(o, i)); }
  // What the code of (o, i) stands for, in steps of the scale of its group g.
  FEWBIT_HD float level(int64_t o, int i, int g) const {
    return levels ? load(levels + code(o, i)) : static_cast<float>(code(o, i) - zero(o, g));
  }
  FEWBIT_HD float value(int64_t o, int i) const {
    const int g = group_at(i);
    return level(o, i, g) * scale(scale_row(o), g);
  }

 private:
  template <class T>
  FEWBIT_HD static T load(const T* p) {
#ifdef __CUDA_ARCH__
    if constexpr (!kWritable) return __ldg(p);
#endif
    return *p;
  }
};

}  // namespace fewbit
