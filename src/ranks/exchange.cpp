#include "src/ranks/exchange.h"

#include <algorithm>
#include <cstring>

namespace fewbit {
namespace {

// Messages between ranks name an Exec; those of host memory leave it alone.
Exec& host() {
  static Exec ex = Exec::cpu();
  return ex;
}

// The values of each rank, one row for each.
template <class T>
std::vector<T> values_of_all(const Ranks& ranks, std::span<const T> here) {
  if (ranks.alone()) return {here.begin(), here.end()};
  const auto count = static_cast<int64_t>(here.size_bytes());
  const Tensor all = Tensor::host(DType::u8, {ranks.size(), count});
  std::memcpy(all.as<uint8_t>() + ranks.rank() * count, here.data(), here.size_bytes());
  ranks.all_gather_rows(host(), all, even_bands(ranks.size(), ranks.size()));
  std::vector<T> values(here.size() * static_cast<size_t>(ranks.size()));
  std::memcpy(values.data(), all.view().data, static_cast<size_t>(all.bytes()));
  return values;
}

template <class T>
std::vector<T> value_of_all(const Ranks& ranks, T here) {
  return values_of_all(ranks, std::span<const T>(&here, 1));
}

}  // namespace

void bytes_of_root(const Ranks& ranks, std::span<char> bytes, int root) {
  if (ranks.alone() || bytes.empty()) return;
  const TensorView view{bytes.data(), DType::u8, {static_cast<int64_t>(bytes.size())}, {}};
  ranks.broadcast(host(), view, root);
}

std::string text_of_root(const Ranks& ranks, std::string text, int root) {
  text.resize(value_of_root(ranks, text.size(), root));
  bytes_of_root(ranks, text, root);
  return text;
}

bool true_for_any(const Ranks& ranks, bool here) {
  const std::vector<int64_t> all = value_of_all<int64_t>(ranks, here);
  return std::any_of(all.begin(), all.end(), [](int64_t v) { return v != 0; });
}

bool true_for_all(const Ranks& ranks, bool here) { return !true_for_any(ranks, !here); }

int64_t least_of_all(const Ranks& ranks, int64_t here) {
  const std::vector<int64_t> all = value_of_all(ranks, here);
  return *std::min_element(all.begin(), all.end());
}

std::vector<int64_t> sum_of_all(const Ranks& ranks, std::vector<int64_t> here) {
  const std::vector<int64_t> all = values_of_all<int64_t>(ranks, here);
  std::fill(here.begin(), here.end(), 0);
  for (size_t i = 0; i < all.size(); ++i) here[i % here.size()] += all[i];
  return here;
}

float largest_of_all(const Ranks& ranks, float here) {
  const std::vector<float> all = value_of_all(ranks, here);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace fewbit
