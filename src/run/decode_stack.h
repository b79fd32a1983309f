#pragma once
// Makes the stack of kernels/decode/decode_layers.h out of a model's op list, weights and caches, where the op list has
// that form: then all layers of a decode step are one launch, or one for each run of products between attention.
#include <optional>

#include "kernels/decode/decode_layers.h"
#include "src/run/block.h"
#include "src/run/kv_cache.h"

namespace fewbit {

// Positions in sight up to which attention inside of the one launch is the faster one: its few warps read the cache
// slower than the split kernel, whose launches cost some 10 us a layer. Where the two cross was timed on an H200 for
// each type of cache; codes halve what the split kernel reads and hardly help the one launch, so it wins earlier there.
constexpr int64_t long_context(KvType cache) {
  switch (cache) {
    case KvType::int8:
      return 3072;  // it reads the scales of the keys one by one
    case KvType::fp8:
    case KvType::fp8_plain:
      return 5120;
    case KvType::plain:
    case KvType::int4:  // no one launch has these
    case KvType::kivi2:
    case KvType::kivi4:
      break;
  }
  return 6144;
}

// The stack over the blocks' weights and caches (one each per layer), which must outlive it. Nothing where the op list
// or the device asks for the ops one by one; `why` then says the reason. `peer`: of an op list of one rank of two,
// whose GPUs exchange the sums in the launch; else none.
std::optional<DecodeStack> decode_stack(Exec&, const ModelSpec&, const std::vector<BlockWeights>&, const RopeTables&,
                                        const std::vector<KvCache>&, const DecodePeer& peer, bool turned_keys,
                                        bool attention_apart, std::string* why);

}  // namespace fewbit
