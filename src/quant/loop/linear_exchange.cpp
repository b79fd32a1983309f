#include "src/quant/loop/linear_exchange.h"

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "src/ranks/exchange.h"

namespace fewbit {
namespace {

// What a message says of a tensor; rank 0: there is none.
struct Form {
  DType dtype = DType::u8;
  int64_t rows = 0, cols = 0, rank = 0;

  static Form of(const Tensor& t) {
    if (t.empty()) return {};
    return {t.dtype(), t.rows(), t.cols(), t.shape().rank()};
  }
  Shape shape() const { return rank == 1 ? Shape{rows} : Shape{rows, cols}; }
};

// Puts values into a message, or takes them out of one, in one order for both.
class Parcel {
 public:
  Parcel() = default;                                                          // to be written
  explicit Parcel(std::string text) : text_(std::move(text)), reads_(true) {}  // to be read
  bool reads() const { return reads_; }
  std::string take() { return std::move(text_); }

  void bytes(void* data, size_t count) {
    if (reads_) {
      FEWBIT_ASSERT(at_ + count <= text_.size());
      std::memcpy(data, text_.data() + at_, count);
      at_ += count;
    } else {
      text_.append(static_cast<const char*>(data), count);
    }
  }
  template <class T>
  T value(T x) {
    bytes(&x, sizeof x);
    return x;
  }
  void tensor(Tensor& t) {  // of host memory
    const Form form = value(Form::of(t));
    if (form.rank == 0) return;
    if (reads_) t = Tensor::host(form.dtype, form.shape());
    bytes(t.view().data, static_cast<size_t>(t.bytes()));
  }
  void tensor(std::optional<Tensor>& t) {
    if (!value(t.has_value())) return t.reset();
    if (!t) t.emplace();
    tensor(*t);
  }
  void number(std::optional<double>& x) {
    if (!value(x.has_value())) return x.reset();
    x = value(x.value_or(0));
  }
  std::string text(std::string s) {
    s.resize(value(s.size()));
    bytes(s.data(), s.size());
    return s;
  }

 private:
  std::string text_{};
  size_t at_ = 0;
  bool reads_ = false;
};

void in_host_memory(Parcel& m, const LinearOnItsWay& l) {
  QuantizedLinear& q = *l.linear;
  m.tensor(q.codes);
  m.tensor(q.scales);
  m.tensor(q.zeros);
  m.tensor(q.group_of);
  m.number(q.input_scale);
  m.number(q.global_scale);
  const std::string record = m.text(m.reads() ? "" : to_json(*l.record));
  if (m.reads()) *l.record = linear_record_from_json(record);
}

// A place for a tensor that the root has; what it has none of stays as it is.
void add_place(Exec& ex, Parcel& forms, Tensor& t, std::vector<TensorView>& places) {
  const Form form = forms.value(Form::of(t));
  if (form.rank == 0) return;
  if (forms.reads()) t = ex.alloc(form.dtype, form.shape());
  places.push_back(t);
}

}  // namespace

void linears_from(Exec& ex, const Ranks& ranks, int root, std::span<const LinearOnItsWay> linears) {
  const auto tensors_of = [](DeviceCodes& q) { return std::array{&q.codes, &q.scales, &q.zeros, &q.group_of}; };
  Parcel out;
  if (ranks.rank() == root)
    for (const LinearOnItsWay& l : linears) {
      in_host_memory(out, l);
      for (Tensor* t : tensors_of(*l.there)) out.value(Form::of(*t));
    }
  std::string text = text_of_root(ranks, out.take(), root);
  Parcel in = ranks.rank() == root ? Parcel() : Parcel(std::move(text));
  std::vector<TensorView> places;
  for (const LinearOnItsWay& l : linears) {
    if (in.reads()) in_host_memory(in, l);
    for (Tensor* t : tensors_of(*l.there)) add_place(ex, in, *t, places);
  }
  ranks.broadcast(ex, places, root);
}

}  // namespace fewbit
