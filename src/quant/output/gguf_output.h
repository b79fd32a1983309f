#pragma once
// Writes checkpoints as .gguf files, at the end of a quantization and for conversions.
#include <functional>

#include "src/model/gguf/mixes.h"
#include "src/model/gguf/writer.h"
#include "src/quant/journal/journal.h"
#include "src/quant/plan/plan.h"

namespace fewbit {

// The finished run: linears and rewritten vectors from the sealed blocks, the rest from the model.
WrittenFile write_gguf_output(const Checkpoint&, const QuantPlan&, const Journal&, const std::filesystem::path& file);

// A checkpoint as it is. Without `type`, the linears of `codes` keep theirs in the blocks that it says
// (same_codes.h) and dense ones their float type; with it, every linear is dequantized and stored in that
// type (blocks are searched without calibration, and fall back where a width does not fit), or with `mix` in that
// mix's, embedding and head too. `step(linears
// done, in all)` is called before each.
WrittenFile convert_to_gguf(const Checkpoint&, const std::filesystem::path& file, const QuantizationSummary& codes,
                            const gguf::BlockType* type, const GgufMix* mix,
                            const std::function<void(size_t, size_t)>& step);

}  // namespace fewbit
