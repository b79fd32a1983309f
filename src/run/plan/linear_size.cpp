// What a loaded linear is called and how many bytes a decode step reads of it.
#include "src/core/overloaded.h"
#include "src/run/linear.h"

namespace fewbit {

int64_t weight_bytes(const Linear& linear) {
  // An empty tensor has one element by its rank-0 shape.
  const auto sum = [](std::initializer_list<const Tensor*> tensors) {
    int64_t n = 0;
    for (const Tensor* t : tensors) n += t->empty() ? 0 : t->bytes();
    return n;
  };
  return std::visit(Overloaded{
                        [&](const DenseLinear& l) {
                          return sum({&l.weight, &l.bias});
                        },
                        [&](const MarlinLinear& l) {
                          return sum({&l.b, &l.s, &l.z, &l.bias});
                        },
                        [&](const RowLinear& l) {
                          return sum({&l.codes, &l.scales, &l.zeros, &l.group_of, &l.order, &l.bias});
                        },
                        [&](const ByteLinear& l) {
                          return sum({&l.codes, &l.scales, &l.bias});
                        },
                        [&](const GgufLinear& l) {
                          return sum({&l.strips, &l.order, &l.bias});
                        },
                        [&](const Fp4Linear& l) {
                          return sum({&l.tiles, &l.bias});
                        },
                    },
                    linear);
}

std::string_view kind_of(const Linear& linear) {
  static constexpr std::string_view kRows[] = {"row0", "row1", "row2", "row3", "row4", "row5", "row6", "row7", "row8"};
  return std::visit(Overloaded{
                        [](const DenseLinear&) -> std::string_view { return "dense"; },
                        [](const MarlinLinear& l) -> std::string_view { return l.bits == 4 ? "marlin4" : "marlin8"; },
                        [](const RowLinear& l) -> std::string_view { return kRows[l.bits]; },
                        [](const ByteLinear& l) -> std::string_view {
                          return l.input.codes == DType::i8 ? "int8" : l.input.codes == DType::f16 ? "fp8a16" : "fp8";
                        },
                        [](const GgufLinear& l) -> std::string_view { return l.type; },
                        [](const Fp4Linear&) -> std::string_view { return "mxfp4"; },
                    },
                    linear);
}

}  // namespace fewbit
