#include "kernels/choice/kernel_choice.h"

#include <algorithm>

#include "kernels/choice/skinny_shape.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

constexpr KnownGpu kGpus[] = {
    {"A100", {80, 108, 166912}},       {"RTX 3090", {86, 82, 101376}}, {"RTX 4090", {89, 128, 101376}},
    {"H100, H200", {90, 132, 232448}}, {"B200", {100, 148, 232448}},   {"RTX 5090", {120, 170, 101376}},
};

using Problem = KernelProblem;
using Gpu = GpuTraits;

// --- packed weights ----------------------------------------------------------------------------------------------

// Groups of 32 and 64 end inside of the 128 values of k that a warp of the kernels for few rows has.
bool fine_groups(const Problem& p) { return p.group > 0 && p.group < 128 && p.group < p.in; }

// Fewer rows are faster by the kernels for few rows; more, by dequantizing once and cuBLAS.
bool takes_marlin_wide(const Problem& p, const Gpu& g) {
  return g.hopper() && p.tensor_maps && p.rows >= 17 && p.rows <= 2048;
}
bool takes_marlin_limbs(const Problem& p, const Gpu&) {
  return p.bits == 4 && !fine_groups(p) && !p.zeros && p.rows == 1;
}
bool takes_marlin_rows(const Problem& p, const Gpu&) {
  return p.bits == 4 && !fine_groups(p) && p.rows <= kPackedFewRows;
}
bool takes_marlin_stream(const Problem& p, const Gpu&) { return p.rows <= kPackedFewRows; }

// --- weights in bytes, dense weights -----------------------------------------------------------------------------

bool takes_everything(const Problem&, const Gpu&) { return true; }

// cuBLASLt wants rows of 16 bytes of its 8-bit matrices.
bool library_takes(const Problem& p) { return p.in % 16 == 0 && p.out % 16 == 0 && p.aligned; }
bool unrounded(const Problem& p) { return p.codes == DType::f16; }

bool takes_skinny_dense(const Problem& p, const Gpu& g) {
  return p.x == DType::bf16 && p.aligned && skinny_k_splits(g, {DType::bf16, DType::bf16}, p.rows, p.in) == 1;
}

// The library's tensor cores take x in codes, and all rows at once: quicker than our kernel where that takes several
// launches, and than unrounded x by it, from a few rows on.
bool library_is_quicker(const Problem& p, const Gpu& g, int splits) {
  const int64_t least = unrounded(p) && splits > 1 ? 5 : kLeastLibraryRows;
  if (p.rows < least || (splits == 1 && !unrounded(p))) return false;
  return (p.codes == DType::i8 || g.fp8_tensor_cores()) && library_takes(p);
}
bool takes_skinny_bytes(const Problem& p, const Gpu& g) {
  if (p.x != DType::bf16 || !p.aligned || p.x_is_codes) return false;
  const int splits = skinny_k_splits(g, {unrounded(p) ? DType::f8_e4m3 : p.codes, p.codes}, p.rows, p.in);
  return splits > 0 && !library_is_quicker(p, g, splits);
}
bool takes_library_codes(const Problem& p, const Gpu& g) {
  return !unrounded(p) && p.rows >= kLeastLibraryRows && library_takes(p) &&
         (p.codes == DType::i8 || g.fp8_tensor_cores());
}
bool takes_few_byte_rows(const Problem& p, const Gpu&) {
  return p.codes == DType::i8 || (p.codes == DType::f8_e4m3 && p.rows <= kFewByteRows);
}
bool takes_widened_codes(const Problem& p, const Gpu&) { return p.codes == DType::f8_e4m3; }
// Two rows of codes for each row of x double the tensor cores' work: on an H200 the products of an 8B block take 430 us
// by two terms and 477 dequantized at 512 rows, 1,713 and 1,203 at 2,048.
bool takes_two_terms(const Problem& p, const Gpu& g) {
  return unrounded(p) && p.x == DType::bf16 && p.rows <= 512 && g.fp8_tensor_cores() && library_takes(p);
}

// --- attention ---------------------------------------------------------------------------------------------------

bool coded_cache(const Problem& p) { return p.weight == DType::f8_e4m3 || p.weight == DType::i8; }
bool nibbles(const Problem& p) { return p.weight == DType::u8; }  // a cache of 4 bits
// Rows can be copied and stored in whole pieces of 16 bytes, and the tiles of a head fit the shared memory of a block.
bool fits_tensor_cores(const Problem& p) {
  return p.x == DType::bf16 && p.aligned && p.head_dim <= 256 && p.head_dim % (coded_cache(p) ? 16 : 8) == 0;
}
// Up to so many rows (new tokens times the query heads of a kv head) attention over the cache is split along the keys:
// beyond, the flash kernel's blocks of 64 rows fill the GPU by themselves.
bool takes_attention_decode(const Problem& p, const Gpu&) {
  const bool widths = p.head_dim == 64 || p.head_dim == 96 || p.head_dim == 128 || p.head_dim == 256;
  return (!nibbles(p) || widths) && fits_tensor_cores(p) && p.over_cache && p.rows * (p.heads / p.kv_heads) <= 64;
}
// Fewer rows would leave a warpgroup idle. The maximum is taken before scores are scaled, so the scale must be
// positive; sequences are the second dimension of the grid.
bool takes_attention_wide(const Problem& p, const Gpu& g) {
  return fits_tensor_cores(p) && !coded_cache(p) && !nibbles(p) && g.hopper() && p.tensor_maps &&
         (p.head_dim == 64 || p.head_dim == 128) && p.rows > 64 && p.scale > 0 && p.sequences < 65536;
}
bool takes_attention_flash(const Problem& p, const Gpu&) { return fits_tensor_cores(p) && !nibbles(p); }
bool takes_attention_widened(const Problem& p, const Gpu&) { return p.x == DType::bf16 && nibbles(p); }

constexpr const char* kAny = "any";

// clang-format off
constexpr KernelRule kRules[] = {
    {ChoiceOp::packed, Kernel::marlin_wide, "marlin_wide_kernel", "products/marlin/marlin_wide.cuh",
     "int4, int8", "17 to 2,048", "sm_90a, a driver with tensor maps",
     "warp-specialised wgmma, stream-K over the clusters; tiles of 32 rows (17 to 32), 64 (33 to 64), 128 (an odd "
     "number of 128s, or no room for clusters), else 256",
     takes_marlin_wide},
    {ChoiceOp::packed, Kernel::marlin_limbs, "marlin_stream_kernel", "products/marlin/marlin_stream.cuh",
     "int4, large groups, no zero points", "1", kAny,
     "split-K; words as they lie are the int8 operand, x in three limbs of base 256",
     takes_marlin_limbs},
    {ChoiceOp::packed, Kernel::marlin_rows, "marlin_rows_kernel", "products/marlin/marlin_rows.cuh",
     "int4, large groups", "1 to 64", kAny,
     "split-K, 16 rows a launch; codes as bf16 subnormals, partial sums as flagged words or at an arrival counter",
     takes_marlin_rows},
    {ChoiceOp::packed, Kernel::marlin_stream, "marlin_stream_kernel", "products/marlin/marlin_stream.cuh",
     "int8; int4 in small groups", "1 to 64", kAny,
     "split-K; codes become bf16 in registers, 8 or 16 rows a pass, 32 of int8 in large groups",
     takes_marlin_stream},
    {ChoiceOp::packed, Kernel::marlin_dequantized, "marlin_dequantize_kernel, cuBLAS",
     "products/marlin/marlin_gemm_cuda.cu",
     kAny, kAny, kAny,
     "a dense product of slabs of 256 MiB of bf16 weight; also where a kernel above cannot hold all its blocks at "
     "once",
     takes_everything},

    {ChoiceOp::dense, Kernel::skinny, "skinny::product_kernel", "products/skinny.cuh",
     "bf16", "1 to 2", "any with room for x beside the rings: not sm_80",
     "in a multiple of 32 and at least 512; pointers at multiples of 16 bytes; up to three weights a launch",
     takes_skinny_dense},
    {ChoiceOp::dense, Kernel::library_dense, "cuBLAS", "products/gemm_cuda.cu",
     "bf16, f32", kAny, kAny,
     "f32 sums, a weight a launch",
     takes_everything},

    {ChoiceOp::bytes, Kernel::skinny, "skinny::product_kernel", "products/skinny.cuh",
     "int8 x int8, E4M3 x E4M3, E4M3 x unrounded bf16", "1 to 16", kAny,
     "x in bf16 before it is quantized, in a multiple of 64 and at least 1,024; up to three weights a launch, and "
     "a launch for each split of k where x finds no room. Not where the library has the product and is quicker: x "
     "in codes from 9 rows on with several splits; x unrounded from 9 rows on, from 5 with several splits",
     takes_skinny_bytes},
    {ChoiceOp::bytes, Kernel::library_codes, "cuBLASLt", "products/bytes/library_product_cuda.cu",
     "int8 x int8, E4M3 x E4M3", "9 and more", "any; E4M3: sm_89 and newer",
     "in and out multiples of 16; int32 or f32 sums, then scale_sums_kernel; on sm_90 the library scales E4M3 "
     "itself from 256 rows on",
     takes_library_codes},
    {ChoiceOp::bytes, Kernel::few_byte_rows, "few_rows_kernel", "products/bytes/byte_rows.cuh",
     "int8 x int8, E4M3 x E4M3", "int8: any, E4M3: 1 to 16", kAny,
     "16 rows a launch; shapes that none of the above takes",
     takes_few_byte_rows},
    {ChoiceOp::bytes, Kernel::widened_codes, "widen_kernel, cuBLAS", "products/bytes/fp8_gemm_cuda.cu",
     "E4M3 x E4M3", "17 and more", kAny,
     "codes become bf16, which is exact, for a dense product; then scale_sums_kernel",
     takes_widened_codes},
    {ChoiceOp::bytes, Kernel::two_term_codes, "split_kernel, cuBLASLt", "products/bytes/fp8_unrounded_cuda.cu",
     "E4M3 x unrounded bf16", "1 to 512", "sm_89 and newer",
     "in and out multiples of 16; x as the sum of two E4M3 terms, a row of codes each",
     takes_two_terms},
    {ChoiceOp::bytes, Kernel::dequantized_codes, "dequantize_kernel, cuBLAS", "products/bytes/fp8_unrounded_cuda.cu",
     "E4M3 x unrounded bf16 or f32", kAny, kAny,
     "a dense product of slabs of 256 MiB of weight",
     takes_everything},

    {ChoiceOp::attention, Kernel::attention_decode, "decode_kernel", "attention/attention_decode.cuh",
     "bf16 over a bf16, E4M3, int8 or int4 cache", "times query heads of a kv head: 1 to 64", kAny,
     "keys split over the blocks, the splits merged by combine_splits_kernel; head size up to 256, a multiple of "
     "8 (over codes 16; over int4 64, 96, 128 or 256); one group of columns for up to 8 query rows, else two",
     takes_attention_decode},
    {ChoiceOp::attention, Kernel::attention_wide, "attention_wide_kernel", "attention/attention_wide.cuh",
     "bf16", "65 and more", "sm_90a, a driver with tensor maps",
     "warp-specialised wgmma, keys and values by the bulk copy engine; head size 64 or 128, scale above 0, fewer "
     "than 65,536 sequences",
     takes_attention_wide},
    {ChoiceOp::attention, Kernel::attention_flash, "flash_kernel", "attention/attention_flash.cuh",
     "bf16 over bf16, E4M3 or int8", kAny, kAny,
     "blocks of 64 query rows; head size up to 256, a multiple of 8 (over codes 16)",
     takes_attention_flash},
    {ChoiceOp::attention, Kernel::attention_widened, "widen_kernel, then as over bf16", "kv/int4_rows.cuh",
     "bf16 over an int4 cache", kAny, kAny,
     "the whole cache of the layer becomes bf16 in scratch memory",
     takes_attention_widened},
    {ChoiceOp::attention, Kernel::attention_plain, "plain_attention_kernel", "attention/attention_plain.cuh",
     "f32, and bf16 that does not fit", kAny, kAny,
     "head size up to 256; above it the op throws",
     takes_everything},
};
// clang-format on

}  // namespace

std::span<const KnownGpu> known_gpus() { return kGpus; }

std::span<const KernelRule> kernel_rules() { return kRules; }

const KernelRule& choose_kernel(const KernelProblem& p, const GpuTraits& gpu) {
  const auto rule = std::find_if(std::begin(kRules), std::end(kRules),
                                 [&](const KernelRule& r) { return r.op == p.op && r.takes(p, gpu); });
  FEWBIT_ASSERT(rule != std::end(kRules));
  return *rule;
}

const char* name_of(ChoiceOp op) {
  switch (op) {
    case ChoiceOp::packed:
      return "packed";
    case ChoiceOp::dense:
      return "dense";
    case ChoiceOp::bytes:
      return "bytes";
    case ChoiceOp::attention:
      return "attention";
  }
  return "";
}

int skinny_k_splits(const GpuTraits& gpu, SkinnyTypes types, int64_t rows, int64_t in) {
  constexpr int64_t kStatic = 1024;  // bytes of shared memory that the kernel has besides
  const int64_t value_bytes = bytes_of(types.w), row_bytes = in * value_bytes, steps = row_bytes / kSkinnyStepBytes;
  if (rows > (types.w == DType::bf16 ? kSkinnyBf16Rows : kSkinnyRows) || row_bytes % kSkinnyStepBytes != 0 ||
      steps < kSkinnyWarps || row_bytes >= 1 << 20)
    return 0;
  const int64_t most = types.w == DType::bf16 ? 1 : steps / kSkinnyWarps;  // cuBLAS has what is left of bf16
  for (int splits = 1; splits <= most; ++splits) {
    const int64_t values = skinny_steps(steps, 0, splits) * (kSkinnyStepBytes / value_bytes);
    if (skinny_shared_bytes(skinny_shape(types, rows), rows, static_cast<int>(values)) + kStatic <= gpu.max_shared)
      return splits;
  }
  return 0;
}

}  // namespace fewbit
