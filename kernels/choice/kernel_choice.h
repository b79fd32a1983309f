#pragma once
// Which CUDA kernel a product or an attention takes: one table of rules, a pure function of types, bits, rows, shape
// and GPU. The ops ask it before they launch; `runner bench --ops --explain` prints it without a GPU; the READMEs of
// the rooms have their tables from it.
#include <span>
#include <string>

#include "kernels/exec/gpu_traits.h"
#include "src/core/dtype.h"

namespace fewbit {

enum class ChoiceOp : uint8_t {
  packed,     // y = x W^T, W in the Marlin layout (kernels/products/marlin/marlin_gemm.h)
  dense,      // W in bf16 or f32 (kernels/products/gemm.h)
  bytes,      // W in 8 bits with a scale for each output (kernels/products/bytes/byte_gemms.h)
  attention,  // kernels/attention/attention.h
};

enum class Kernel : uint8_t {
  marlin_wide,
  marlin_limbs,
  marlin_rows,
  marlin_stream,
  marlin_dequantized,
  skinny,
  library_dense,
  library_codes,
  two_term_codes,
  few_byte_rows,
  widened_codes,
  dequantized_codes,
  attention_decode,
  attention_wide,
  attention_flash,
  attention_widened,
  attention_plain,
};

struct KernelProblem {
  ChoiceOp op = ChoiceOp::packed;
  DType x = DType::bf16;  // activations, and queries
  // Packed weights.
  int bits = 4;
  int64_t group = 128;  // values of k that share a scale; 0: all of them
  bool zeros = false;   // zero points
  // Weights of 8 bits, dense ones, and what is in the cache: its dtype. What x becomes: i8 or f8_e4m3, or f16 where it
  // stays unrounded (RowQuant).
  DType weight = DType::bf16, codes = DType::i8;
  bool x_is_codes = false;  // x was quantized before
  int64_t rows = 1, in = 0, out = 0;
  // Attention: `rows` new tokens a sequence.
  bool over_cache = false;
  int64_t heads = 0, kv_heads = 0, head_dim = 0, sequences = 1;
  float scale = 1;
  // True where every pointer and row begins at a multiple of 16 bytes, and where the driver encodes tensor maps.
  bool aligned = true, tensor_maps = true;
};

// The first rule of an op that takes a problem says the kernel; the last takes everything.
struct KernelRule {
  ChoiceOp op;
  Kernel kernel;
  const char *name, *file;         // of the kernel; below kernels/
  const char *types, *rows, *gpu;  // for a table
  const char* when;                // the rest of the condition, and what it does, in words
  bool (*takes)(const KernelProblem&, const GpuTraits&);
};
std::span<const KernelRule> kernel_rules();

const KernelRule& choose_kernel(const KernelProblem&, const GpuTraits&);

// A GPU of each compute capability that people have; multiprocessors and shared memory from NVIDIA's CUDA C++
// Programming Guide ("Compute Capabilities") and the data sheets of the GPUs.
struct KnownGpu {
  const char* name;
  GpuTraits traits;
};
std::span<const KnownGpu> known_gpus();

// Rows up to which packed weights are read once by the kernels for few rows; above, without Hopper's instructions, they
// are dequantized once and multiplied densely.
inline constexpr int64_t kPackedFewRows = 64;
// 8-bit codes: from so many rows on the library's product is the quicker one, and up to so many our own takes what the
// library does not.
inline constexpr int64_t kLeastLibraryRows = 9, kFewByteRows = 16;

// "packed", "dense", "bytes", "attention": the ops' names in tables and JSON.
const char* name_of(ChoiceOp);

}  // namespace fewbit
