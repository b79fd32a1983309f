#pragma once
// The attention half of a DeepSeek V4 block.
#include "src/model/archs/decoder.h"

namespace fewbit {

// What a layer sees behind its window: keys of blocks of `every` tokens (0: none), all of them or those that an indexer
// chooses; its experts by the token where `hashed`.
struct SharedKeyForm {
  int64_t every = 0;
  bool chooses = false, hashed = false;
  bool operator==(const SharedKeyForm&) const = default;
};
// Of every layer, by layer_types and compress_rates or by compress_ratios. Error{checkpoint|unsupported} naming the
// key.
std::vector<SharedKeyForm> shared_key_forms(const ConfigView&, const DecoderSizes&);
// What the branch `name` (hc_attn, hc_ffn) reads of the residual streams, into h.
ReadStreams read_streams_of(const ConfigView&, const DecoderSizes&, const std::string& name);
// From the streams through attention back into them.
std::vector<BlockOp> shared_key_block(const ConfigView&, const DecoderSizes&, const SharedKeyForm&);

}  // namespace fewbit
