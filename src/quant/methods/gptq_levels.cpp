#include "src/quant/methods/gptq_levels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "formats/gguf/open_block.h"
#include "kernels/grids/fp4_grid.h"
#include "kernels/quantize/level_feedback.h"
#include "src/core/parallel.h"
#include "src/quant/methods/gptq_ladder.h"
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

int descents(Effort e) { return e == Effort::standard ? 4 : e == Effort::best ? 12 : 0; }

// A linear on a grid of levels, and the memory that its views are of.
struct Levels {
  LevelGrid grid{};
  Tensor codes{}, d{}, dmin{}, scales{}, mins{};

  Levels(const LevelGrid& g, int64_t out, int64_t in)
      : grid(g),
        codes(Tensor::host(DType::u8, {out, in})),
        d(Tensor::host_zeros(DType::f32, {out, in / g.block})),
        dmin(Tensor::host_zeros(DType::f32, {out, in / g.block})),
        scales(Tensor::host_zeros(DType::f32, {out, in / g.sub})),
        mins(Tensor::host_zeros(DType::f32, {out, in / g.sub})) {}
  LevelCodes view() const { return {codes, d, dmin, scales, mins}; }
};

// On a GPU a copy in host memory; on the CPU the matrix itself.
struct OnHost {
  Tensor copy{};
  ConstTensorView view{};
  OnHost(Exec& ex, ConstTensorView t) : view(t) {
    if (!ex.on_cuda() || !t.data) return;
    copy = ex.to_host(t);
    view = copy;
  }
};

// The loop and the rounds of descent; false where the loss is not finite.
bool walk(Exec& ex, const LinearJob& job, const LadderStep& step, const ChooseBlock& choose, const Levels& q) {
  const Exec host = Exec::cpu();
  const OnHost target(ex, step.target);
  const Tensor loss = Tensor::host(DType::f64, {job.weight.rows()});
  {
    const OnHost r(ex, step.r);
    feed_back_levels(host, {.target = target.view, .r = r.view}, q.grid, choose, q.view(), loss);
  }
  const double* sums = loss.as<double>();
  if (!std::all_of(sums, sums + loss.numel(), [](double s) { return std::isfinite(s); })) return false;
  if (descents(job.effort) == 0) return true;
  const OnHost h(ex, step.h);
  for (int i = 0; i < descents(job.effort); ++i)
    descend_levels(host, {.target = target.view, .h = h.view}, q.grid, q.view());
  return true;
}

// --- 4-bit floats

// E2M1 by value; codes here are places in this table.
constexpr std::array<float, 15> kE2m1 = {-6, -4, -3, -2, -1.5f, -1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

QuantizedLinear fp4_linear(const LinearJob& job, const Levels& q, std::optional<double> global) {
  QuantizedLinear linear;
  linear.spec = job.spec;
  linear.global_scale = global;
  linear.codes = Tensor::host(DType::u8, q.codes.shape());
  linear.scales = clone_host(q.scales);
  std::array<uint8_t, kE2m1.size()> code_of{};
  for (size_t i = 0; i < kE2m1.size(); ++i) code_of[i] = e2m1_code(kE2m1[i]);
  for (int64_t i = 0; i < q.codes.numel(); ++i) linear.codes.as<uint8_t>()[i] = code_of[q.codes.as<uint8_t>()[i]];
  return linear;
}

// The grid of a group for its live weights; `importance`: [in] f32.
ChooseBlock choose_fp4(const LinearJob& job, const Levels& q, float global, const float* importance) {
  return [&job, &q, global, importance](int64_t row, int64_t b, const float* live) {
    const auto n = static_cast<int>(job.spec.group);
    const int64_t at = row * q.scales.cols() + b;
    const int code =
        choose_fp4_scale({live, importance + b * n, n}, job.spec.scale_dtype, global, job.effort != Effort::reference);
    q.d.as<float>()[at] = global;
    q.scales.as<float>()[at] = scale_value(code, job.spec.scale_dtype);
  };
}

// --- GGUF

LevelGrid grid_of(const gguf::OpenForm& f) {
  return {.levels = f.levels,
          .even = f.even,
          .block = f.elements,
          .sub = f.sub,
          .scale_set = ScaleSet::integers,
          .least_scale = f.least_scale,
          .most_scale = f.most_scale,
          .most_min = f.most_min,
          .moves_d = true};
}

// Block b of a row between its bytes and its place in the arrays.
void take_block(const gguf::OpenForm& f, const gguf::OpenBlock& open, int64_t row, int64_t b, const Levels& q) {
  const int64_t at = row * q.d.cols() + b;
  q.d.as<float>()[at] = open.d;
  q.dmin.as<float>()[at] = open.dmin;
  for (int j = 0; j < f.sub_blocks(); ++j) {
    q.scales.as<float>()[at * f.sub_blocks() + j] = static_cast<float>(open.scale[j]);
    q.mins.as<float>()[at * f.sub_blocks() + j] = static_cast<float>(open.min[j]);
  }
}

Tensor blocks_of(const gguf::BlockType& type, const Levels& q) {
  const gguf::OpenForm& f = *type.open;
  const int64_t out = q.codes.rows(), count = q.d.cols();
  Tensor blocks = Tensor::host(DType::u8, {out, count * type.bytes});
  parallel_for(out * count, 256, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      gguf::OpenBlock open{.d = q.d.as<float>()[at], .dmin = q.dmin.as<float>()[at]};
      for (int j = 0; j < f.sub_blocks(); ++j) {
        open.scale[j] = static_cast<int>(q.scales.as<float>()[at * f.sub_blocks() + j]);
        open.min[j] = static_cast<int>(q.mins.as<float>()[at * f.sub_blocks() + j]);
      }
      std::copy_n(q.codes.as<uint8_t>() + at * f.elements, f.elements, open.codes);
      f.store(open, blocks.as<uint8_t>() + at * type.bytes);
    }
  });
  return blocks;
}

}  // namespace

MethodResult gptq_fp4(Exec& ex, const LinearJob& job) {
  const int64_t out = job.weight.rows(), in = job.weight.cols(), group = job.spec.group;
  LinearJob plain_job = job;
  plain_job.effort = Effort::reference;
  QuantizedLinear plain = round_to_fp4(ex, plain_job, {});  // refuses what it must
  const double global = plain.global_scale.value_or(1);
  const LevelGrid grid{.levels = kE2m1,
                       .block = group,
                       .sub = group,
                       .scale_set = job.spec.two_level() ? ScaleSet::e4m3 : ScaleSet::e8m0};
  const Levels q(grid, out, in);
  QuantizedLinear linear;
  Ladder ladder;
  ladder.walk = [&](const LadderStep& step) {
    const OnHost importance(ex, step.diag);
    const auto choose = choose_fp4(job, q, static_cast<float>(global), importance.view.as<float>());
    if (!walk(ex, job, step, choose, q)) return false;
    linear = fp4_linear(job, q, plain.global_scale);
    return true;
  };
  ladder.round = [&](ConstTensorView h) { linear = round_to_fp4(ex, h.data ? job : plain_job, h); };
  ladder.values = [&] { return values_of(ex, linear, DType::f32); };
  ladder.plain = [&] { return values_of(ex, plain, DType::f32); };
  MethodResult result = climb_ladder(ex, job, ladder);
  result.linear = std::move(linear);
  return result;
}

EncodedLinear gptq_blocks(Exec& ex, const LinearJob& job, const gguf::BlockType& type) {
  FEWBIT_ASSERT(type.open);
  const int64_t out = job.weight.rows(), in = job.weight.cols();
  const gguf::OpenForm& f = *type.open;
  const Levels q(grid_of(f), out, in);
  EncodedLinear encoded;
  const auto rounded = [&](ConstTensorView h, gguf::Encoder encoder) {
    return gguf::encode(type, OnHost(ex, job.weight).view, h, encoder);
  };
  Ladder ladder;
  ladder.walk = [&](const LadderStep& step) {
    const std::vector<float> weight = gguf::input_weights(OnHost(ex, step.diag).view);
    const auto choose = [&](int64_t row, int64_t b, const float* live) {
      uint8_t bytes[gguf::kMostBlockBytes];
      if (job.effort == Effort::reference)
        type.encode_plain(live, bytes);
      else
        type.encode(live, weight.data() + b * f.elements, bytes);
      take_block(f, f.load(bytes), row, b, q);
    };
    if (!walk(ex, job, step, choose, q)) return false;
    encoded.blocks = blocks_of(type, q);
    return true;
  };
  ladder.round = [&](ConstTensorView h) {
    const OnHost importance(ex, h);
    encoded.blocks = rounded(importance.view, h.data ? gguf::Encoder::searched : gguf::Encoder::plain);
  };
  ladder.values = [&] { return ex.to_device(gguf::decode(type, encoded.blocks, in)); };
  ladder.plain = [&] { return ex.to_device(gguf::decode(type, rounded({}, gguf::Encoder::plain), in)); };
  encoded.result = climb_ladder(ex, job, ladder);
  return encoded;
}

}  // namespace fewbit
