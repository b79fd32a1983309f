#include "src/run/bench/ops_explain.h"

namespace fewbit {
namespace {

struct Case {
  std::string op, type;
  KernelProblem problem;
};

struct ProductType {
  const char* name;
  KernelProblem problem;
};
const ProductType kTypes[] = {
    {"int4 g128", {.op = ChoiceOp::packed, .bits = 4, .group = 128}},
    {"int4 g128, zero points", {.op = ChoiceOp::packed, .bits = 4, .group = 128, .zeros = true}},
    {"int4 g32", {.op = ChoiceOp::packed, .bits = 4, .group = 32}},
    {"int8 g128", {.op = ChoiceOp::packed, .bits = 8, .group = 128}},
    {"int8", {.op = ChoiceOp::bytes, .weight = DType::i8, .codes = DType::i8}},
    {"fp8", {.op = ChoiceOp::bytes, .weight = DType::f8_e4m3, .codes = DType::f8_e4m3}},
    {"fp8, x unrounded", {.op = ChoiceOp::bytes, .weight = DType::f8_e4m3, .codes = DType::f16}},
    {"bf16", {.op = ChoiceOp::dense, .weight = DType::bf16}},
};

std::vector<Case> cases_of(const OpsModel& model) {
  std::vector<Case> cases;
  for (const OpsProduct& p : model.products)
    for (const ProductType& t : kTypes) {
      Case c{p.name, t.name, t.problem};
      c.problem.in = p.in, c.problem.out = p.out;
      cases.push_back(std::move(c));
    }
  if (model.head_dim == 0) return cases;
  const auto attention = [&](const char* op, const char* type, DType cache, bool over_cache) {
    cases.push_back({op,
                     type,
                     {.op = ChoiceOp::attention,
                      .weight = cache,
                      .over_cache = over_cache,
                      .heads = model.heads,
                      .kv_heads = model.kv_heads,
                      .head_dim = model.head_dim}});
  };
  attention("attention", "bf16", DType::bf16, false);
  attention("attention over the cache", "bf16", DType::bf16, true);
  attention("attention over the cache", "fp8", DType::f8_e4m3, true);
  attention("attention over the cache", "int8", DType::i8, true);
  attention("attention over the cache", "int4", DType::u8, true);
  return cases;
}

}  // namespace

std::vector<ExplainedRows> explain_ops(const std::vector<OpsModel>& models, const GpuTraits& gpu) {
  std::vector<ExplainedRows> all;
  for (const OpsModel& model : models)
    for (Case& c : cases_of(model)) {
      for (int64_t rows = 1; rows <= kMostExplainedRows; ++rows) {
        c.problem.rows = rows;
        const KernelRule& rule = choose_kernel(c.problem, gpu);
        if (rows > 1 && all.back().rule == &rule) {
          all.back().last = rows;
        } else {
          all.push_back({model.name, c.op, c.type, c.problem.in, c.problem.out, rows, rows, &rule});
        }
      }
    }
  return all;
}

}  // namespace fewbit
