// Pieces of experts' rows do not depend on the chunks in which the rows come.
#include "src/calib/expert_pieces.h"

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Routing of `tokens` tokens of a chunk to two of three experts: token t goes to t % 3 and (t + 1) % 3.
Routing routing_of(Exec& ex, int64_t tokens) {
  std::vector<int32_t> rows;
  Routing r;
  r.begin.push_back(0);
  for (int e = 0; e < 3; ++e) {
    for (int64_t t = 0; t < tokens; ++t)
      if (t % 3 == e || (t + 1) % 3 == e) rows.push_back(static_cast<int32_t>(t));
    r.begin.push_back(std::ssize(rows));
  }
  r.rows = ex.to_device(host_i32(rows));
  return r;
}

struct Given {
  std::vector<std::vector<double>> rows = std::vector<std::vector<double>>(3), full = rows;
  std::vector<std::vector<int64_t>> sizes = std::vector<std::vector<int64_t>>(3);
};

Given given(Exec& ex, const Tensor& x, const Tensor& full, int64_t chunk, std::vector<int> experts) {
  Given g;
  ExpertPieces pieces(ex, std::move(experts), [&](int e, ConstTensorView mine, ConstTensorView theirs) {
    const auto i = static_cast<size_t>(e);
    const std::vector<double> a = doubles(ex.to_host(mine)), b = doubles(ex.to_host(theirs));
    g.rows[i].insert(g.rows[i].end(), a.begin(), a.end());
    g.full[i].insert(g.full[i].end(), b.begin(), b.end());
    g.sizes[i].push_back(mine.rows());
  });
  for (int64_t begin = 0; begin < x.rows(); begin += chunk) {
    const int64_t end = std::min(x.rows(), begin + chunk);
    pieces.add(routing_of(ex, end - begin), ex.to_device(x.view().row_range(begin, end)),
               ex.to_device(full.view().row_range(begin, end)));
  }
  pieces.finish();
  return g;
}

FEWBIT_DEVICE_TEST(ExpertPieces, AreTheSameForAnyChunks) {
  const int64_t tokens = 4 * 3 * 700;
  const Tensor x = random_normal(DType::bf16, {tokens, 8}, 1), full = random_normal(DType::bf16, {tokens, 8}, 2);
  const Given whole = given(ex, x, full, tokens, {0, 1, 2});
  for (size_t e = 0; e < 3; ++e) {
    int64_t rows = 0;
    for (size_t i = 0; i < whole.sizes[e].size(); ++i) {
      if (i + 1 < whole.sizes[e].size()) {
        EXPECT_EQ(whole.sizes[e][i], kExpertPiece);
      }
      rows += whole.sizes[e][i];
    }
    EXPECT_EQ(rows, tokens / 3 * 2);
  }
  for (const int64_t chunk : {int64_t{300}, int64_t{2100}})
    for (const std::vector<int>& experts : {std::vector<int>{0, 1, 2}, std::vector<int>{1}}) {
      const Given found = given(ex, x, full, chunk, experts);
      for (const int e : experts) {
        const auto i = static_cast<size_t>(e);
        EXPECT_EQ(found.sizes[i], whole.sizes[i]);
        EXPECT_EQ(found.rows[i], whole.rows[i]);
        EXPECT_EQ(found.full[i], whole.full[i]);
      }
    }
}

}  // namespace
}  // namespace fewbit::test
