#include "src/model/parallel/linear_share.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/core/error.h"

namespace fewbit {
namespace {

// Rows of scales that belong to rows of a weight of `outputs`, where `each` of them share one.
std::vector<Range> scale_rows(const std::vector<Range>& rows, int64_t each, int64_t outputs) {
  if (each >= outputs) return {{0, 1}};
  std::vector<Range> out;
  out.reserve(rows.size());
  for (const Range& r : rows) out.push_back({r.begin / each, (r.end + each - 1) / each});
  return out;
}

}  // namespace

int64_t LinearShare::out() const {
  int64_t n = 0;
  for (const Range& r : rows) n += r.size();
  return n;
}

LinearShare whole_share(int64_t out, int64_t in) { return {.rows = {{0, out}}, .columns = {0, in}}; }

Tensor cut(ConstTensorView host, const LinearShare& s) {
  const bool matrix = host.shape.rank() == 2;
  const Range columns = matrix ? s.columns : Range{0, 1};
  FEWBIT_ASSERT(host.shape.rank() <= 2 && columns.end <= host.cols());
  Tensor part = Tensor::host(host.dtype, matrix ? Shape{s.out(), columns.size()} : Shape{s.out()});
  const int64_t each = bytes_of(host.dtype), step = host.cols() * each, bytes = columns.size() * each;
  auto* to = static_cast<uint8_t*>(part.view().data);
  const auto* from = static_cast<const uint8_t*>(host.data) + columns.begin * each;
  for (const Range& rows : s.rows) {
    FEWBIT_ASSERT(rows.end <= host.rows());
    for (int64_t r = rows.begin; r < rows.end; ++r, to += bytes)
      std::memcpy(to, from + r * step, static_cast<size_t>(bytes));
  }
  return part;
}

QuantizedLinear cut(const QuantizedLinear& q, const LinearShare& s) {
  FEWBIT_ASSERT(share_refusal(q.spec, q.group_of.has_value(), q.out(), q.in(), s).empty());
  const int64_t group = q.spec.group_size(q.in());
  const Range groups{s.columns.begin / group, q.spec.groups(s.columns.end)};
  // A scale for each whole row belongs to every part of it.
  const Range scales = q.spec.group == -1 ? Range{0, q.groups()} : groups;
  const std::vector<Range> scaled = scale_rows(s.rows, q.spec.out_group, q.out());
  QuantizedLinear part{.spec = q.spec,
                       .codes = cut(q.codes, s),
                       .scales = cut(q.scales, {.rows = scaled, .columns = scales}),
                       .input_scale = q.input_scale,
                       .global_scale = q.global_scale};
  if (q.zeros) part.zeros = cut(*q.zeros, {.rows = s.rows, .columns = scales});
  if (q.group_of) part.group_of = clone_host(*q.group_of);  // all columns are here
  validate(part);
  return part;
}

std::string share_refusal(const QuantSpec& spec, bool act_order, int64_t out, int64_t in, const LinearShare& s) {
  if (s.in() < in) {
    if (act_order) return "its columns are not in the order of their groups (act-order), so that a part has all scales";
    if (spec.group != -1 && (s.columns.begin % spec.group != 0 || (s.columns.end % spec.group && s.columns.end != in)))
      return fmt::format("inputs {} to {} are no whole groups of {}", s.columns.begin, s.columns.end, spec.group);
  }
  if (spec.out_group == 1 || spec.out_group >= out) return "";
  for (const Range& r : s.rows)
    if (r.begin % spec.out_group != 0 || (r.end % spec.out_group != 0 && r.end != out))
      return fmt::format("outputs {} to {} are no whole blocks of {}", r.begin, r.end, spec.out_group);
  return "";
}

}  // namespace fewbit
