#pragma once
// The Marlin product for many rows on Hopper's tensor cores (kernels/products/marlin/marlin_wide.cuh).
#include <span>

#include "kernels/products/marlin/marlin_gemm.h"

namespace fewbit {
struct CudaState;
}
namespace fewbit::cuda {

// y = x W^T of up to kFusedProducts products that may share a launch, or false where this kernel is not for
// them: other hardware, 8 bits, rows for which another path was measured faster. Arguments as of
// marlin_gemms().
bool marlin_wide(CudaState&, ConstTensorView x, std::span<const MarlinProduct>);

}  // namespace fewbit::cuda
