#pragma once
// Overloaded{f, g, …}: one visitor of a variant made of several lambdas.

namespace fewbit {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>  // C++20 deduces it; clang 16, which checks the sources, does not yet
Overloaded(F...)->Overloaded<F...>;

}  // namespace fewbit
