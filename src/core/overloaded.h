#pragma once
// Overloaded{f, g, …}: one visitor of a variant made of several lambdas.

namespace fewbit {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

}  // namespace fewbit
