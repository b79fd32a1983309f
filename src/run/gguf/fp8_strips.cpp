#include "src/run/gguf/fp8_strips.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "kernels/products/bytes/fp8_gemm.h"
#include "src/run/gguf/strips.h"

namespace fewbit {
namespace {

// The form of rows of so many codes with a scale each; it lives as long as the program.
const BlockForm* form_of(int64_t in) {
  static std::mutex mutex;
  static std::map<int64_t, BlockForm> forms;
  const std::lock_guard lock(mutex);
  const auto [it, missing] = forms.try_emplace(in);
  if (missing)
    it->second = {.bits = 8,
                  .group = in % 128 == 0 ? 128 : static_cast<int>(kChunkCols),
                  .columns = static_cast<int>(in),
                  .scale = BlockScale::wide,
                  .e4m3 = true};
  return &it->second;
}

bool lies_in_strips(const Exec& ex, const ByteLinear& l, const LoadOptions& o) {
  return !ex.on_cuda() && !o.ranks && o.dtype == DType::bf16 && l.codes.dtype() == DType::f8_e4m3 &&
         l.input.group == 0 && l.codes.cols() % kChunkCols == 0 && best_over_strips() == cpu::BlockLoops::avx512;
}

}  // namespace

Linear fp8_linear(Exec& ex, ByteLinear l, const LoadOptions& o) {
  if (!lies_in_strips(ex, l, o)) return l;
  const int64_t out = l.codes.rows(), in = l.codes.cols();
  const BlockForm& form = *form_of(in);
  const bool rounded = l.input.codes == DType::f8_e4m3;
  GgufLinear g{.bias = std::move(l.bias), .form = &form, .type = rounded ? "fp8" : "fp8a16", .out = out, .in = in};
  if (rounded) g.input = l.input;
  const auto* codes = static_cast<const uint8_t*>(l.codes.view().data);
  g.strips = strips_of(ex, form, out, in, [&](int64_t o, uint8_t* strip) {
    put_wide(form, in, l.scales.as<float>()[o], 0, 0, o % kStripOuts, strip);
    for (int64_t c = 0; c < in / kChunkCols; ++c)
      put_chunk(form, in, codes + o * in + c * kChunkCols, c, o % kStripOuts, strip);
  });
  return g;
}

void fp8_strip_gemms(Exec& ex, ConstTensorView x, std::span<const GgufLinear* const> linears,
                     std::span<const TensorView> ys) {
  if (linears.empty()) return;
  const Tensor codes = ex.alloc(DType::f8_e4m3, x.shape), scales = ex.alloc(DType::f32, {x.rows()});
  quantize_rows(ex, x, *linears[0]->input, codes, scales);
  const Tensor values = ex.alloc(DType::bf16, x.shape);
  cpu::f8_as_bf16(codes, values);
  for (size_t i = 0; i < linears.size(); ++i)
    cpu::block_gemm(ex, values, view_of(*linears[i]), linears[i]->bias, ys[i], cpu::BlockLoops::avx512,
                    scales.as<float>());
}

}  // namespace fewbit
