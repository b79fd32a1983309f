#include "src/quant/loop/linear_exchange.h"

#include "src/ranks/exchange.h"

namespace fewbit {
namespace {

// On the device of `ex`; it stays as it is where the root's is empty.
void tensor_from(Exec& ex, const Ranks& ranks, int root, Tensor& t) {
  struct Form {
    DType dtype;
    int64_t rows, cols, rank;
  };
  Form here{DType::u8, 0, 0, 0};
  if (!t.empty()) here = {t.dtype(), t.rows(), t.cols(), t.shape().rank()};
  const Form form = value_of_root(ranks, here, root);
  if (form.rank == 0) return;
  if (ranks.rank() != root) t = ex.alloc(form.dtype, form.rank == 1 ? Shape{form.rows} : Shape{form.rows, form.cols});
  ranks.broadcast(ex, t, root);
}

void tensor_from(const Ranks& ranks, int root, Tensor& t) {
  Exec host = Exec::cpu();
  tensor_from(host, ranks, root, t);
}

void tensor_from(const Ranks& ranks, int root, std::optional<Tensor>& t) {
  if (!value_of_root(ranks, t.has_value(), root)) return t.reset();
  if (!t) t.emplace();
  tensor_from(ranks, root, *t);
}

void number_from(const Ranks& ranks, int root, std::optional<double>& x) {
  if (!value_of_root(ranks, x.has_value(), root)) return x.reset();
  x = value_of_root(ranks, x.value_or(0), root);
}

}  // namespace

void linear_from(const Ranks& ranks, int root, QuantizedLinear& linear, LinearRecord& record) {
  tensor_from(ranks, root, linear.codes);
  tensor_from(ranks, root, linear.scales);
  tensor_from(ranks, root, linear.zeros);
  tensor_from(ranks, root, linear.group_of);
  number_from(ranks, root, linear.input_scale);
  number_from(ranks, root, linear.global_scale);
  const std::string text = text_of_root(ranks, ranks.rank() == root ? to_json(record) : "", root);
  if (ranks.rank() != root) record = linear_record_from_json(text);
}

void codes_from(Exec& ex, const Ranks& ranks, int root, DeviceCodes& q) {
  for (Tensor* t : {&q.codes, &q.scales, &q.zeros, &q.group_of}) tensor_from(ex, ranks, root, *t);
}

}  // namespace fewbit
