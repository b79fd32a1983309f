#pragma once
// Launches the Marlin product for many rows on Hopper's tensor cores (kernels/products/marlin/marlin_wide.cuh).
#include <span>

#include "kernels/products/marlin/marlin_gemm.h"

namespace fewbit {
struct CudaState;
}
namespace fewbit::cuda::marlin_wide {

// y = x W^T of up to kFusedProducts products that may share a launch, with arguments as of marlin_gemms(), where
// choose_kernel() says Kernel::marlin_wide (kernels/choice/kernel_choice.h).
void launch(CudaState&, ConstTensorView x, std::span<const MarlinProduct>);

}  // namespace fewbit::cuda::marlin_wide
