// BlockLoop, the curvature of a block's outputs: asked for before any of its linears is coded.
#include "src/quant/loop/block_loop.h"
#include "src/quant/loop/learn/block_tape.h"
#include "src/quant/plan/way_back.h"

namespace fewbit {

// Every rank looks at the same windows by itself; the states in front of the block come from those that have them.
void BlockLoop::weigh_outputs() {
  FEWBIT_ASSERT(full_);
  phases_.timed("curvature", [&] {
    if (!gradients_)
      gradients_.emplace(ex_, ckpt_, store_,
                         OutputGradients::Job{.windows = &windows_,
                                              .ropes = &ropes_,
                                              .dtype = job_.dtype,
                                              .seed = job_.seed,
                                              .tokens = walk_tokens(plan_),
                                              .first = layer_,
                                              .progress = [&](double done) {
                                                if (job_.progress) job_.progress("looking at the way back", done);
                                              }});
    const LoadOptions options{.dtype = DType::f32, .weights = Weights::values};
    const BlockWeights weights =
        plan_.transforms.empty() ? load_block(ex_, ckpt_, layer_, options, nullptr) : in_f32(ex_, weights_);
    coder_.weigh_outputs(gradients_->of(layer_, weights, [&](int64_t begin, int64_t end, TensorView into) {
      share_.get(full_->x(), begin, end, into);
    }));
  });
}

}  // namespace fewbit
