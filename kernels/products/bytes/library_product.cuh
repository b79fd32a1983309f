#pragma once
// The library's (cuBLASLt's) product of 8-bit codes, and which products it takes.
#include <memory>
#include <optional>
#include <type_traits>

#include "kernels/device/vec.cuh"
#include "kernels/products/bytes/byte_product.cuh"

namespace fewbit::cuda::byte_product {

// Whether its product of E4M3 codes scaled by rows and outputs takes this one: on compute capability 9.0 alone. With
// fewer rows there are few raw sums to scale afterwards, and the library may split a long k when it leaves raw sums.
inline constexpr int64_t kLeastScaledRows = 256;
inline bool library_scales(const CudaState& s, const Task& t) {
  return s.sm90() && t.rows >= kLeastScaledRows && aligned16(t.w_scales) && aligned16(static_cast<const char*>(t.y));
}

struct LibraryTypes {
  cudaDataType_t codes, sums, scale;
  cublasComputeType_t compute;
};
inline constexpr LibraryTypes kF8Sums{CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F};

// A product of 8-bit codes by cuBLASLt, ready to run for one number of rows; false where the library has none.
class LibraryProduct {
 public:
  // sums [rows, out] = x w^T.
  static LibraryProduct raw(CudaState& s, const LibraryTypes& types, const Task& t);
  // y as store_scaled() makes it, of E4M3 codes.
  static LibraryProduct scaled(CudaState& s, const Task& t);

  explicit operator bool() const { return algorithm_.has_value(); }
  bool scales() const { return scales_; }
  // `t`: of the shape it was made for, with x and its scales where they are now. `to`: t.y where it scales(), else room
  // for the sums.
  void run(CudaState& s, const Task& t, void* to) const;

 private:
  struct Destroy {
    void operator()(cublasLtMatmulDesc_t p) const { cublasLtMatmulDescDestroy(p); }
    void operator()(cublasLtMatrixLayout_t p) const { cublasLtMatrixLayoutDestroy(p); }
  };
  template <class Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

  LibraryProduct(CudaState& s, const LibraryTypes& types, const Task& t, bool scales);
  Owned<cublasLtMatmulDesc_t> product_;
  Owned<cublasLtMatrixLayout_t> w_, x_, y_;
  std::optional<cublasLtMatmulAlgo_t> algorithm_;
  bool integer_ = false, scales_ = false;
};

}  // namespace fewbit::cuda::byte_product
