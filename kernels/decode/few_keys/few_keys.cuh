#pragma once
// append_attention() over a cache of bf16 in one launch, where it takes the call; else false, and nothing is done.
#include "kernels/decode/append_attention.h"

namespace fewbit::cuda::few_keys {

bool append_attention(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                      const HeadNorms&, const RopeTable&, const KvCache&, const AttentionArgs&, TensorView out);
bool append_attention_paged(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows&,
                            const HeadNorms&, const RopeTable&, const KvCache&, const AttentionArgs&, TensorView out);

}  // namespace fewbit::cuda::few_keys
