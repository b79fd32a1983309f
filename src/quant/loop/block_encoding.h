#pragma once
// Encodes linears into blocks that have scales of their own (GGUF): by the type's encoder, weighted by what calibration
// saw, and measured like any other linear.
#include "formats/packing.h"
#include "src/calib/input_stats.h"
#include "src/quant/plan/plan.h"
#include "src/quant/row_share.h"

namespace fewbit {

struct EncodedBlocks {
  NamedTensor bytes{};                            // "<linear>.<type>", u8 [out, row bytes]
  Tensor values{};                                // what they decode to, f32 [out, in], host
  double loss = 0;                                // tr((W - Q) H (W - Q)^T) / tokens; 0 without statistics
  double loss_plain = 0;                          // the same for the type's plain encoder
  double loss_target = 0, loss_target_plain = 0;  // as in MethodResult
  std::string rung{};                             // of a method's
  std::string hash;                               // as a reader of the file finds it (`evaluate verify`)
};

// `weight` f32 [out, in] on ex's device. With statistics the diagonal of their Gram matrix is the importance
// of the inputs, without them `importance`, f32 [in] in host memory, or nothing. Effort `reference` takes the plain
// encoder. Error{checkpoint} where a weight is not finite. Ranks that have all of the weight encode their rows; each
// gets all.
EncodedBlocks encode_blocks(Exec&, const PlannedLinear&, ConstTensorView weight, const InputStats* stats,
                            ConstTensorView importance = {}, const RowShare& rows = RowShare::none());
// The same by a method that has codes for such blocks (Method::encode). The job's weight has the rows of this rank.
EncodedBlocks encode_blocks(Exec&, const PlannedLinear&, const LinearJob&);

// The values of blocks that were sealed, f32 [out, in].
Tensor decode_blocks(const PlannedLinear&, const TensorSource&);

}  // namespace fewbit
