#include "src/run/rank_sums.h"

#include <fmt/format.h>

#include "src/core/stopwatch.h"
#include "src/core/strings.h"

namespace fewbit {

TensorView RankSums::room(Exec& ex, const Shape& shape) {
  const int64_t count = shape.numel();
  if (rooms_.empty() || rooms_.back().numel() < count) rooms_.push_back(ex.alloc(DType::f32, {count}));
  return rooms_.back().view().row_range(0, count).reshaped(shape);
}

void RankSums::add_up(Exec& ex, TensorView t) {
  if (!timed_) return ranks_.all_reduce_sum(ex, t);
  ex.sync();  // what is computed before is none of the sum's time
  const Stopwatch watch;
  ranks_.all_reduce_sum(ex, t);
  seconds_ += watch.seconds();
  ++sums_;
}

void RankSums::agree(Exec& ex, TensorView t) { ranks_.broadcast(ex, t); }

int32_t RankSums::agreed(Exec& ex, int32_t value) {
  const Tensor host = Tensor::host(DType::i32, {1});
  *host.as<int32_t>() = value;
  agree(ex, host);
  return *host.as<int32_t>();
}

RankPart part_of(const LoadOptions& o) { return o.ranks ? o.ranks->part() : RankPart{}; }

ModelSpec shared_spec(const Checkpoint& c, const LoadOptions& o) {
  const RankPart part = part_of(o);
  if (const std::vector<std::string> reasons = refuses_ranks(c, part.ranks); !reasons.empty())
    fail(ErrorKind::usage, fmt::format("{}: --tp {}: the model cannot be divided so: {}", c.dir.string(), part.ranks,
                                       join(reasons, "; ")));
  return spec_of_rank(c.spec, part);
}

}  // namespace fewbit
