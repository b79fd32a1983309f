#pragma once
// BlockF32: the weights of one block that transforms may rewrite, in f32, and the way back: into the block
// that runs, and into the tensors that are written.
#include <map>
#include <string>
#include <vector>

#include "formats/packing.h"
#include "src/model/absorb.h"
#include "src/run/block.h"

namespace fewbit {

// A norm's weight or a linear's bias. Small, so it stays in host memory.
struct VectorF32 {
  std::vector<float> value{};
  DType stored = DType::bf16;  // the checkpoint's type; every value is representable in it
  bool changed = false;
};

// A router whose input is scaled. One that changed is written in f32 whatever the checkpoint holds: it is
// small, and its products with the scales have no place in bf16.
struct RouterF32 {
  Tensor weight{};  // [experts, hidden] f32 on the device
  bool changed = false;
};

// Tensors by their names relative to the block: "self_attn.q_proj.weight", "input_layernorm.weight".
struct BlockF32 {
  std::map<std::string, Tensor> weights;     // [out, in] f32 on the device
  std::map<std::string, VectorF32> vectors;  // of the norms and linears that take part
  std::map<std::string, RouterF32> routers;
};

// The tensors that the absorbers name: their norms or linears (with biases), all linears behind them, and
// routers. `loaded`: null, or the block as it runs: a linear that it has in the stored type is not read again.
BlockF32 load_block_f32(Exec&, const Checkpoint&, int64_t layer, const std::vector<Absorber>& absorbers,
                        const BlockWeights* loaded = nullptr);

// The scale nearest to `s` that can be divided out of the absorber exactly: what is stored in the
// checkpoint's type (a norm's weight, a bias) is divided and rounded first, and the factor taken from the
// rounded value. A feature where that misses `s` by more than kFoldSlack keeps the factor 1, as one where s
// is not a positive number. `s` and the result have one value per feature of the absorber.
inline constexpr float kFoldSlack = 0.25f;
std::vector<float> foldable_scale(const BlockF32&, const std::vector<BlockOp>&, const Absorber&,
                                  const std::vector<float>& s);

// Divides the absorber by `s` (from foldable_scale) and multiplies the columns of its linears and routers;
// the block's function stays as it is.
void fold(Exec&, BlockF32&, const std::vector<BlockOp>&, const Absorber&, const std::vector<float>& s);

// s by input feature of the linears behind it: source() of the absorber applied.
std::vector<float> by_consumer_feature(const Absorber&, const std::vector<float>& s);

// Puts the rewritten tensors into a block of dense linears in its compute dtype.
void replace_in(Exec&, const BlockF32&, DType dtype, BlockWeights&);

// The changed norms and biases in the checkpoint's type and the changed routers in f32, under their full
// names.
std::vector<NamedTensor> changed_tensors(Exec&, const BlockF32&, const std::string& prefix);

}  // namespace fewbit
