#include "src/quant/loop/linear_exchange.h"

#include "src/ranks/exchange.h"

namespace fewbit {
namespace {

void tensor_from(const Ranks& ranks, int root, Tensor& t) {
  struct Form {
    DType dtype;
    int64_t rows, cols, rank;
  };
  const Form here{t.dtype(), t.rows(), t.empty() ? 0 : t.cols(), t.shape().rank()};
  const Form form = value_of_root(ranks, here, root);
  if (ranks.rank() != root)
    t = Tensor::host(form.dtype, form.rank == 1 ? Shape{form.rows} : Shape{form.rows, form.cols});
  Exec host = Exec::cpu();
  ranks.broadcast(host, t, root);
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

}  // namespace fewbit
