#pragma once
// Tests on every device, written once. The CUDA instance of a test says SKIPPED, with the reason, where no GPU answers.
//
//   FEWBIT_DEVICE_TEST(Suite, Name) { … ex … }   Suite.Name on the CPU and Suite.CudaName on the GPU
//   class Suite : public OnDevices, TEST_P        with a fixture: …/cpu and …/cuda
//   class Suite : public CasesOnDevices<Case>     with cases besides: …_cpu and …_cuda
//
// A test of CUDA alone begins with FEWBIT_NEEDS_GPU() and has Cuda in its name.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "kernels/exec/exec.h"
#include "tests/support/support.h"

#define FEWBIT_DEVICE_TEST(suite, name)          \
  static void suite##_##name(::fewbit::Exec&);   \
  TEST(suite, name) {                            \
    ::fewbit::Exec ex = ::fewbit::Exec::cpu();   \
    suite##_##name(ex);                          \
  }                                              \
  TEST(suite, Cuda##name) {                      \
    FEWBIT_NEEDS_GPU();                          \
    ::fewbit::Exec ex = ::fewbit::Exec::cuda(0); \
    suite##_##name(ex);                          \
  }                                              \
  static void suite##_##name([[maybe_unused]] ::fewbit::Exec& ex)

namespace fewbit::test {

// For INSTANTIATE_TEST_SUITE_P, alone or in testing::Combine(cases, every_device()).
inline auto every_device() { return ::testing::Values("cpu", "cuda"); }

class OnDevices : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (device() == "cuda") FEWBIT_NEEDS_GPU();
  }
  static std::string device() { return GetParam(); }
  static Exec exec() { return Exec::from_name(device()); }
};
inline std::string device_name(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

template <class Case>
class CasesOnDevices : public ::testing::TestWithParam<std::tuple<Case, const char*>> {
 protected:
  using Base = ::testing::TestWithParam<std::tuple<Case, const char*>>;
  void SetUp() override {
    if (device() == "cuda") FEWBIT_NEEDS_GPU();
  }
  static const Case& the_case() { return std::get<0>(Base::GetParam()); }
  static std::string device() { return std::get<1>(Base::GetParam()); }
  static Exec exec() { return Exec::from_name(device()); }
};

}  // namespace fewbit::test
