#pragma once
// What decode_layers() makes of random layers, on two devices.
#include <fmt/format.h>

#include <span>

#include "tests/kernels/decode/random_layers.h"

namespace fewbit::test {

struct Outcome {
  std::vector<Tensor> x;  // after every step
  Tensor keys;            // of the last layer, as bytes or bf16
};
inline Outcome run(Exec& ex, const Sizes& s, const std::vector<int32_t>& positions) {
  Layers l(ex, s, positions.back() + 1);
  const DecodeStack stack = make_stack(ex, l.layers, l.form);
  Outcome out;
  for (const int32_t p : positions) {
    const Tensor x = ex.to_device(random_normal(DType::bf16, {1, s.hidden}, static_cast<uint64_t>(p) + 7));
    decode_layers(ex, stack, ex.to_device(host_i32({p})), x);
    out.x.push_back(ex.to_host(x));
  }
  out.keys = ex.to_host(l.layers.back().cache.k);
  return out;
}

inline void expect_near(const Outcome& found, const Outcome& expected, const Sizes& s) {
  const double limit = s.bytes ? tol::kLogitsBytesBf16 : tol::kLogitsBf16;
  const std::string what = fmt::format("hidden {}, head_dim {}, apart {}", s.hidden, s.head_dim, s.apart);
  for (size_t i = 0; i < found.x.size(); ++i)
    EXPECT_LE(relative_error(found.x[i], expected.x[i]), limit) << what << ", step " << i;
  if (s.cache != DType::bf16) return;
  EXPECT_LE(relative_error(to_f32(found.keys), to_f32(expected.keys)), limit) << what;
}

inline Outcome run_apart(Exec& ex, Sizes s, const std::vector<int32_t>& positions) {
  s.apart = true;
  return run(ex, s, positions);
}

// In one launch and with attention apart.
inline void expect_the_ops_values(std::span<const Sizes> sizes, const std::vector<int32_t>& positions) {
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  for (Sizes s : sizes) {
    const Outcome expected = run(cpu, s, positions);
    expect_near(run(gpu, s, positions), expected, s);
    expect_near(run_apart(gpu, s, positions), expected, s);
  }
}

}  // namespace fewbit::test
