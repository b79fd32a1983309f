#pragma once
// What the integer methods share: plain rounding, codes on the device, losses, and the way back to the host.
#include "kernels/quantize/choose_scales.h"
#include "kernels/statistics/gram_loss.h"
#include "src/quant/method.h"
#include "src/run/values_of.h"

namespace fewbit {

// Share of the shift that a target takes (kernels/quantize/factor.h). Blocks behind see what is left with inputs of
// their own and make it good again: the KL of two small models at 4 bits fell by 2 % with 0.75 in place of all, by 1 %
// with 0.6; 0.85 was between.
inline constexpr float kShiftShare = 0.75f;

// The search that a spec and an effort ask for.
ScaleSearch search_for(const QuantSpec& spec, ScaleRule rule);

// Scales (and zeros) of q, made with make_codes, for the weights w on the spec's grid; h as in round_plain.
void choose_grid(Exec& ex, ConstTensorView w, ConstTensorView h, const QuantSpec& spec, ScaleRule rule, DeviceCodes& q);

// Room for the codes of a linear of the job's shape.
DeviceCodes make_codes(Exec& ex, const QuantSpec& spec, int64_t out, int64_t in);

// Scales by `rule` with the importance h ([in] f32, data == nullptr: all ones), then codes. Consecutive
// groups.
DeviceCodes round_plain(Exec& ex, ConstTensorView w, ConstTensorView h, const QuantSpec& spec, ScaleRule rule);
// The same of w on the job's grid; in 2:4 sparsity of what is left of it, of every four inputs the two of the largest
// w^2 c, with c what each input counts then ([in] f32; data == nullptr: all one, which is by magnitude).
DeviceCodes round_alone(Exec& ex, const LinearJob& job, ConstTensorView w, ConstTensorView h, ScaleRule rule,
                        ConstTensorView c = {});

// The values that the codes stand for, [out, in] f32 | bf16 on the device. Not of scales with a second level.
Tensor values_of(Exec& ex, const DeviceCodes& q, const QuantSpec& spec, DType dtype = DType::f32);

// Rounding to 4-bit floats, with scales searched under the importance h (data == nullptr: all ones), or by
// the published rule. The global scale of NVFP4 is the power of two that leaves the groups the whole range of
// E4M3 when the largest weight of all that share it is job.shared_absmax. Error{unsupported} unless groups
// divide the inputs.
QuantizedLinear round_to_fp4(Exec& ex, const LinearJob& job, ConstTensorView h);

// Largest |w|.
float absmax_of(Exec& ex, ConstTensorView w);

// Sum of f64 values on the device, in their order.
double sum_of(Exec& ex, ConstTensorView values);

// tr((a - b) H (a - b)^T) / tokens for device matrices [out, in], of which each rank has its rows; 0 when it is not a
// number.
double loss_per_token(Exec& ex, ConstTensorView a, ConstTensorView b, const InputStats& stats,
                      const RowShare& rows = RowShare::none(), LossSums sums = LossSums::f64);

// target [out, in] f32 = the weight that reproduces the unquantized output from the quantized input
// (kernels/quantize/factor.h), by both streams' statistics with `lambda` on the Gram matrix. False where that cannot be
// factored, or the result is not finite in a row of any rank. r: null, or what becomes the factor where the op has it
// and makes it now.
bool shift_target(Exec& ex, const LinearJob& job, float lambda, const Tensor& target, Tensor* r = nullptr);

// Round to nearest with the scales that the job's effort asks for, and its losses: what rtn and fp8 do. Where the
// statistics hold both streams (behind awq) it is the weight that reproduces the unquantized output which
// is rounded, unless effort=reference.
MethodResult round_to_nearest(Exec& ex, const LinearJob& job);

// Error{unsupported} where the job's grid is none of `grids`, Error{checkpoint} where a weight is not finite.
void require_job(Exec& ex, const LinearJob& job, Grids grids);
// Error{checkpoint} where a weight of this linear is not a number or infinite.
void require_finite(Exec& ex, const std::string& linear, ConstTensorView weight,
                    const RowShare& rows = RowShare::none());

// The codes as the method's result: in host memory too, unless the job lets them stay.
void deliver(Exec& ex, DeviceCodes&& q, const LinearJob& job, MethodResult& result);

// True where the job's statistics hold a Gram matrix of at least one token.
bool has_gram(const LinearJob& job);

}  // namespace fewbit
