// GPTQ (Frantar et al., 2022) in the factor form of kernels/quantize/factor.h. `reference` is the published algorithm;
// the other efforts search each group's scale on live weights (best: by a trial of the column loop for every
// candidate), aim at the weight that reproduces the unquantized output where the statistics hold both streams,
// and improve the result by rounds of refit and descent (0 quick, 3 default, 6 best).
//
// In 2:4 sparsity the column loop chooses the mask with the codes (SparseGPT, Frantar & Alistarh, 2023), and the
// descent may exchange a weight that stays for one that does not.
//
// On the E4M3 grid the scales are searched once, on the target, and neither refit nor descent follows. 4-bit floats and
// blocks of GGUF with scales of their own have a loop of their own on the same ladder (gptq_levels.h).
//
// When the Gram matrix cannot be factored, a ladder is climbed, and its rung is part of the result: f32, f64,
// f64 with more damping, the diagonal alone, and plain rounding where that is permitted.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "kernels/exec/upload.h"
#include "kernels/quantize/error_feedback.h"
#include "kernels/quantize/factor.h"
#include "kernels/quantize/matrix_edit.h"
#include "kernels/quantize/refine.h"
#include "src/quant/methods/column_order.h"
#include "src/quant/methods/coupled_codes.h"
#include "src/quant/methods/coupled_rows.h"
#include "src/quant/methods/gptq_ladder.h"
#include "src/quant/methods/gptq_levels.h"
#include "src/quant/methods/with_diagonal.h"
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

struct Rung {
  const char* name;
  Precision precision;
  float damp;  // multiplies the damping asked for
};
constexpr Rung kRungs[] = {{"fp32", Precision::f32, 1},       {"fp64", Precision::f64, 1},
                           {"damp x2", Precision::f64, 2},    {"damp x5", Precision::f64, 5},
                           {"damp x10", Precision::f64, 10},  {"damp x30", Precision::f64, 30},
                           {"damp x100", Precision::f64, 100}};

ScaleRule scale_rule(Effort e) {
  if (e == Effort::reference) return ScaleRule::absmax;
  return e == Effort::best ? ScaleRule::loop_grid : ScaleRule::diag_grid;
}
int refine_rounds(Effort e) { return e == Effort::standard ? 3 : e == Effort::best ? 6 : 0; }
// Behind a walk in steps (coupled_rows.h). One took 1 % off the KL of a small model, three took no more.
int sweeps_of(Effort e) { return e == Effort::best ? 1 : 0; }
constexpr int kRoundsOfSweep = 2;

// One linear's problem. H is the statistics' own Gram matrix with the diagonal `diag` (WithDiagonal).
struct Problem {
  Tensor diag{};                    // [in] f32: that of the Gram matrix, 1 at dead inputs; not damped
  std::vector<float> importance{};  // the same on the host
  Tensor dead{};                    // [in] u8; empty when no input is dead
  float lambda = 0;                 // damping asked for: relative damping * mean diagonal
  Tensor target{};                  // [out, in] f32: what the codes should reproduce
  std::optional<float> aimed{};     // the damping that target was last made for
  bool reached = false;             // whether it could be made
  bool shifted = false;
};

// True where the diagonal can weigh columns at all: finite, nowhere negative, not all zero.
bool usable(const std::vector<float>& diag) {
  double sum = 0;
  for (const float d : diag) {
    if (!std::isfinite(d) || d < 0) return false;
    sum += d;
  }
  return sum > 0;
}

Problem make_problem(Exec& ex, const LinearJob& job) {
  const int64_t in = job.weight.cols();
  Problem p;
  p.diag = ex.alloc(DType::f32, {in});
  diagonal(ex, job.stats->gram, p.diag);
  const Tensor host = ex.to_host(p.diag);
  p.importance.assign(host.as<float>(), host.as<float>() + in);
  double sum = 0;
  std::vector<float> mended = p.importance;
  std::vector<uint8_t> dead(static_cast<size_t>(in), 0);
  bool any = false;
  for (size_t i = 0; i < mended.size(); ++i) {
    sum += p.importance[i];
    if (p.importance[i] != 0) continue;
    mended[i] = 1;
    dead[i] = 1;
    any = true;
  }
  p.lambda = job.damp * static_cast<float>(sum / static_cast<double>(in));
  if (any) {
    p.diag = upload(ex, mended);
    p.dead = upload(ex, dead);
  }
  return p;
}

// target = the weight, shifted where the statistics allow, with the columns of dead inputs at zero. Two rungs of one
// damping share it. False where it cannot be made. r: null, or what becomes the factor of that damping where making the
// target yields it.
bool set_target(Exec& ex, const LinearJob& job, float lambda, Problem& p, Tensor* r) {
  if (p.aimed == lambda) return p.reached;
  if (p.target.empty()) p.target = ex.alloc(DType::f32, job.weight.shape);
  p.shifted = job.effort != Effort::reference && job.shifts_targets && !job.stats->cross.empty();
  p.aimed = lambda;
  p.reached = !p.shifted || shift_target(ex, job, lambda, p.target, r);
  if (!p.reached) return false;
  if (!p.shifted) ex.copy(job.weight, p.target);
  if (p.dead) zero_columns(ex, p.dead, p.target);
  return true;
}

Tensor permuted(Exec& ex, ConstTensorView x, ConstTensorView rows, ConstTensorView cols) {
  Tensor y = ex.alloc(x.dtype, x.shape);
  permute(ex, x, rows, cols, y);
  return y;
}

// The group of every column, in processing order, where grids are fixed before the loop; empty where they are not.
std::vector<int32_t> fixed_grids(const LinearJob& job, const ColumnOrder& order) {
  if (job.spec.grid == Grid::integer || !order.grid_of.empty()) return order.grid_of;
  std::vector<int32_t> group_of(static_cast<size_t>(job.weight.cols()));
  const int64_t group = job.spec.group_size(job.weight.cols());
  for (size_t i = 0; i < group_of.size(); ++i) group_of[i] = static_cast<int32_t>(static_cast<int64_t>(i) / group);
  return group_of;
}

// [out, G] from scales that `out_group` rows share.
Tensor scales_by_row(Exec& ex, const Tensor& scales, int64_t out_group, int64_t out) {
  const Tensor shared = ex.to_host(scales), rows = Tensor::host(DType::f32, {out, scales.cols()});
  for (int64_t o = 0; o < out; ++o)
    std::copy_n(shared.as<float>() + o / out_group * shared.cols(), shared.cols(),
                rows.as<float>() + o * shared.cols());
  return ex.to_device(rows);
}

// The column loop in processing order; the result is in checkpoint order. False when its loss is not a
// number. target: p's, or what stands for it in some of its rows.
bool feed_back(Exec& ex, const LinearJob& job, const Problem& p, ConstTensorView target, const ColumnOrder& order,
               ConstTensorView r, DeviceCodes& q) {
  const int64_t out = target.rows(), in = target.cols();
  ErrorFeedbackArgs args{.w = target,
                         .r = r,
                         .h_diag = p.diag,
                         .search = search_for(job.spec, scale_rule(job.effort)),
                         .two_of_four = job.two_of_four};
  q = make_codes(ex, job.spec, out, in);
  const Tensor column = upload(ex, order.column);
  const Tensor grid_of = upload(ex, fixed_grids(job, order));
  Tensor w, diag;
  if (!order.natural()) {
    w = permuted(ex, target, {}, column);
    diag = permuted(ex, p.diag.view().reshaped({1, in}), {}, column);
    args.w = w;
    args.h_diag = diag.view().reshaped({in});
  }
  if (grid_of) {
    choose_grid(ex, target, p.diag, job.spec, scale_rule(job.effort), q);
  }
  Tensor loss = ex.alloc(DType::f64, {out});
  const Tensor by_row = job.spec.out_group > 1 ? scales_by_row(ex, q.scales, job.spec.out_group, out) : Tensor();
  error_feedback(ex, args,
                 {.codes = q.codes,
                  .scales = by_row ? by_row : q.scales,
                  .zeros = q.zeros,
                  .group_of = grid_of,
                  .grid = job.spec.grid,
                  .bits = job.spec.bits,
                  .group = job.spec.group_size(in)},
                 loss);
  const Tensor host = ex.to_host(loss);
  const double* sums = host.as<double>();
  if (!job.rows->everywhere(std::all_of(sums, sums + out, [](double s) { return std::isfinite(s); }))) return false;
  if (!order.natural()) q.codes = permuted(ex, q.codes, {}, upload(ex, order.position));
  if (const Tensor at = upload(ex, order.group_at)) {
    q.scales = permuted(ex, q.scales, {}, at);
    if (q.zeros) q.zeros = permuted(ex, q.zeros, {}, at);
  }
  q.group_of = upload(ex, order.group_of);
  return true;
}

void refine(Exec& ex, const LinearJob& job, const Problem& p, ConstTensorView target, float lambda, int rounds,
            DeviceCodes& q) {
  if (rounds == 0 || job.spec.grid != Grid::integer) return;
  const int64_t in = job.weight.cols();
  const WithDiagonal damped(ex, job.stats->gram, p.diag);
  add_diagonal(ex, upload(ex, std::vector<float>(static_cast<size_t>(in), lambda)), damped.h());
  const RefineArgs args{
      .target = target, .h = damped.h(), .scale_dtype = job.spec.scale_dtype, .two_of_four = job.two_of_four};
  const MutableCodedView coded{.codes = q.codes,
                               .scales = q.scales,
                               .zeros = q.zeros,
                               .group_of = q.group_of,
                               .bits = job.spec.bits,
                               .group = job.spec.group_size(in)};
  for (int i = 0; i < rounds; ++i) {
    refit_scales(ex, args, coded);
    descend_codes(ex, args, coded);
  }
}

// What a factor of the rung is made for: statistics keep one for all linears of their input.
std::string factor_key(const LinearJob& job, const Rung& rung) {
  return std::to_string(static_cast<int>(job.act_order)) + " " +
         std::to_string(job.spec.group_size(job.weight.cols())) + " " + rung.name + " " + std::to_string(job.damp);
}

// The factor of the rung, in processing order, from the statistics' cache where a linear before this one made
// it; null when the matrix cannot be factored so.
const Tensor* factor_for(Exec& ex, const LinearJob& job, const Problem& p, const ColumnOrder& order, const Rung& rung) {
  const int64_t in = job.weight.cols();
  FactorCache& cache = job.stats->factor;
  const std::string key = factor_key(job, rung);
  if (cache.key != key) {
    cache = {};  // gone before another one takes as much
    cache = {.key = key, .r = ex.alloc(DType::f32, {in, in}), .ok = false};
    const WithDiagonal mended(ex, job.stats->gram, p.diag);
    const bool natural = order.natural();
    const Tensor column = upload(ex, order.column);
    if (!natural) permute(ex, mended.h(), column, column, cache.r);
    const ConstTensorView h = natural ? ConstTensorView(mended.h()) : cache.r.view();
    cache.ok = factorize(ex, h, rung.damp * p.lambda, rung.precision, cache.r, job.rows->panels()).ok();
    if (!cache.ok) cache.r.reset();
  }
  return cache.ok ? &cache.r : nullptr;
}

// Climbs the ladder; returns the rung that held, or "" when none did. `walk` makes codes by the factor and the damping
// of a rung; false where they are no good.
template <class Walk>
std::string climb(Exec& ex, const LinearJob& job, const ColumnOrder& order, Problem& p, const Walk& walk) {
  for (const Rung& rung : kRungs) {
    const float lambda = rung.damp * p.lambda;
    // The target comes first: its f64 system and the factor need not be held together then. On a GPU the system's own
    // factor is the rung's, in f64 at that.
    FactorCache& cache = job.stats->factor;
    if (const std::string key = factor_key(job, rung); cache.key != key) {
      cache = {};  // gone before another one takes as much
      if (!set_target(ex, job, lambda, p, order.natural() ? &cache.r : nullptr)) {
        cache = {};
        continue;
      }
      if (cache.r) cache.key = key, cache.ok = true;
    } else if (!set_target(ex, job, lambda, p, nullptr)) {
      continue;
    }
    const Tensor* r = factor_for(ex, job, p, order, rung);
    if (r && walk(*r, lambda)) return rung.name;
  }
  return "";
}

// All rows step by step, towards targets that know the errors of the rows before them; then by sweeps, of all others.
bool code_in_steps(Exec& ex, const LinearJob& job, const Problem& p, const ColumnOrder& order, const Tensor& r,
                   float lambda, CoupledRows& rows, DeviceCodes& q) {
  CoupledCodes codes(ex, job.spec, job.weight.rows(), job.weight.cols());
  const auto take = [&](const DeviceCodes& some, int64_t first, TensorView target) {
    codes.put(ex, some, first);
    ex.copy(values_of(ex, some, job.spec), target);
    return true;
  };
  const bool walked = rows.walk(ex, p.target, [&](int64_t first, TensorView target) {
    DeviceCodes some;
    if (!feed_back(ex, job, p, target, order, r, some)) return false;
    refine(ex, job, p, target, lambda, refine_rounds(job.effort), some);
    return take(some, first, target);
  });
  if (!walked) return false;
  for (int i = 0; i < sweeps_of(job.effort); ++i)
    rows.sweep(ex, p.target, [&](int64_t first, TensorView target) {
      DeviceCodes some = codes.get(ex, first, target.rows());
      refine(ex, job, p, target, lambda, kRoundsOfSweep, some);
      return take(some, first, target);
    });
  q = codes.in_rows(ex, rows.place());
  return true;
}

std::string code(Exec& ex, const LinearJob& job, Problem& p, DeviceCodes& q, bool& coupled) {
  const ColumnOrder order = make_order(job.act_order, p.importance, job.spec.group_size(job.weight.cols()));
  std::optional<CoupledRows> rows =
      job.curvature ? CoupledRows::of(ex, *job.curvature, job.weight.rows(), sweeps_of(job.effort) > 0) : std::nullopt;
  std::string rung = climb(ex, job, order, p, [&](const Tensor& r, float lambda) {
    if (rows) return code_in_steps(ex, job, p, order, r, lambda, *rows, q);
    if (!feed_back(ex, job, p, p.target, order, r, q)) return false;
    refine(ex, job, p, p.target, lambda, refine_rounds(job.effort), q);
    return true;
  });
  coupled = rows && !rung.empty();
  return rung;
}

// The last two rungs: rounding weighted by the diagonal, then plain rounding. `round` gets the diagonal, or nothing.
template <class Round>
std::string fall_back(const LinearJob& job, const Problem* p, const Round& round) {
  if (p && usable(p->importance)) {
    round(ConstTensorView(p->diag));
    return "diagonal";
  }
  if (!job.allow_rtn)
    fail(ErrorKind::numeric, "linear " + job.name + ": " +
                                 (p ? "its calibration statistics are zero, negative or not finite"
                                    : "calibration saw no tokens at its input") +
                                 "; use more or other calibration text, leave the linear alone with --set '" +
                                 job.name + "=keep', or permit plain rounding with --allow-rtn");
  round(ConstTensorView{});
  return "rtn";
}

// Our values are gone before those of plain rounding are made, and the target where nothing is measured against it.
template <class Values>
void report_losses(Exec& ex, const LinearJob& job, Problem& p, const Values& values, const Values& plain,
                   MethodResult& result) {
  const bool shifted = p.shifted && result.rung != "diagonal" && result.rung != "rtn";
  if (!shifted) p.target.reset();
  const auto measure = [&](const Tensor& values, LossSums sums, double& loss, double& of_target) {
    loss = loss_per_token(ex, job.weight, values, *job.stats, *job.rows, sums);
    of_target = shifted ? loss_per_token(ex, p.target, values, *job.stats, *job.rows, sums) : loss;
  };
  measure(values(), LossSums::reported, result.loss, result.loss_target);
  measure(plain(), LossSums::f32, result.loss_rtn, result.loss_target_rtn);
}

MethodResult quantize(Exec& ex, const LinearJob& job) {
  if (job.spec.grid == Grid::f4_e2m1) return gptq_fp4(ex, job);
  require_job(ex, job, {.integer = true, .f8 = true});
  MethodResult result;
  DeviceCodes q;
  const auto round = [&](ConstTensorView h) {
    q = round_alone(ex, job, job.weight, h, h.data ? scale_rule(job.effort) : ScaleRule::absmax, h);
  };
  if (has_gram(job)) {
    Problem p = make_problem(ex, job);
    if (usable(p.importance)) result.rung = code(ex, job, p, q, result.coupled);
    if (result.rung.empty()) result.rung = fall_back(job, &p, round);
    const std::function<Tensor()> values = [&] { return values_of(ex, q, job.spec); }, plain = [&] {
      return values_of(ex, round_alone(ex, job, job.weight, {}, ScaleRule::absmax), job.spec);
    };
    report_losses(ex, job, p, values, plain, result);
  } else {
    result.rung = fall_back(job, nullptr, round);
  }
  deliver(ex, std::move(q), job, result);
  return result;
}

}  // namespace

MethodResult climb_ladder(Exec& ex, const LinearJob& job, const Ladder& ladder) {
  MethodResult result;
  if (!has_gram(job)) {
    result.rung = fall_back(job, nullptr, ladder.round);
    return result;
  }
  Problem p = make_problem(ex, job);
  if (usable(p.importance))
    result.rung = climb(ex, job, {}, p, [&](const Tensor& r, float lambda) {
      const WithDiagonal damped(ex, job.stats->gram, p.diag);
      add_diagonal(ex, upload(ex, std::vector<float>(p.importance.size(), lambda)), damped.h());
      return job.rows->everywhere(ladder.walk({.target = p.target, .r = r, .diag = p.diag, .h = damped.h()}));
    });
  if (result.rung.empty()) result.rung = fall_back(job, &p, ladder.round);
  report_losses(ex, job, p, ladder.values, ladder.plain, result);
  return result;
}

constinit const Method method_gptq = {
    .name = "gptq",
    .summary = "error feedback through the Gram matrix of the inputs",
    .needs = Needs::gram | Needs::cross,
    .grids = {.integer = true, .f8 = true, .f4 = true},
    .quantize = quantize,
    .encode = gptq_blocks,
};

}  // namespace fewbit
