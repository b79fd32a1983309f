#pragma once
// BlockCoder takes the linears of one block, or the ends of the model, from weights to bytes. Each is quantized by its
// recipe (or restored from the block's sealed file), measured and packed; the journal seals them together. Packing and
// sealing go to the background: linears several at a time, blocks in their order.
//
// Several ranks make the same calls. They divide the rows of each linear (src/quant/row_share.h), or the linears of
// quantize_apart(); all get what takes the place of a linear, rank 0 packs, and restores what was sealed.
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "src/calib/lanes.h"
#include "src/calib/upload_ahead.h"
#include "src/quant/journal/journal.h"
#include "src/quant/loop/background.h"
#include "src/quant/loop/block_f32.h"
#include "src/quant/loop/code_ways.h"
#include "src/quant/loop/phases.h"
#include "src/quant/loop/quant_job.h"

namespace fewbit {

// A linear of the block at hand, coded but not packed yet.
struct CodedLinear {
  const PlannedLinear* plan = nullptr;
  std::string name{};  // relative to the block
  Tensor weight{};     // [out, in] f32 on the device; kept where the codes will be learned, to measure them
  std::optional<OutputCurvature> curvature{};  // until it is coded
  QuantizedLinear linear{};
  DeviceCodes there{};  // the same on the device, until it is packed; then `linear` may lack its codes
  LinearRecord record{};
};

class BlockCoder {
 public:
  // Statistics of an input, rounded as its linears round it; nothing where the run does not calibrate.
  using Observe = std::function<std::optional<InputStats>(const InputRounding&)>;
  // Linears that share an input, and its statistics; and where they are on the device as a stream runs them.
  struct Group {
    std::vector<LinearDef> items{};
    Observe observed{};
    std::function<ConstTensorView(const LinearDef&)> loaded{};
  };

  // `runs`: a quantized stream exists, which needs what takes the place of each linear. `ahead` may bring the weights.
  BlockCoder(Exec&, const Checkpoint&, const QuantPlan&, const QuantJob&, Phases&, Background&, UploadAhead& ahead,
             bool runs);

  // Begins the block of `layer`; the number of layers stands for the ends. The linears of a sealed block are restored.
  // `learning`: codes stay in reach until seal(), because they will change.
  void begin(int64_t layer, const Journal&, bool sealed, bool learning);
  bool restores() const { return restores_; }
  TensorSource restored() const;  // of rank 0: a sealed block's tensors

  // Takes the weights that transforms rewrote, and writes the vectors that changed with the block.
  void rewrite(BlockF32 block);
  void add(NamedTensor t);
  // By linears' names in the block, behind begin(); every rank codes such a linear as a whole.
  void weigh_outputs(std::map<std::string, OutputCurvature> curvatures) { curvatures_ = std::move(curvatures); }

  // Quantizes linears that share one input. `observed` returns its statistics; it is called only where a method needs
  // them, once for each rounding of the input. What takes the place of the linears in the quantized stream goes into
  // `replaced`, by relative name and without biases; null: nobody wants it yet.
  void quantize(const std::vector<LinearDef>& items, const Observe& observed, std::map<std::string, Linear>* replaced);

  // Whether the linears of these groups can be quantized several at a time, each by a lane: none is encoded, restored,
  // turned or learned.
  bool beside(const std::vector<Group>&) const;
  // The same of all groups, as many at a time as the plan has lanes; the bits are those of one after the other.
  void quantize_beside(const std::vector<Group>&, std::map<std::string, Linear>* replaced);

  // Whether the linears of these groups can be dealt to the ranks, each to be quantized by one: none is encoded or
  // restored, and the quantized ones round their input alike. That rounding; nothing where they cannot.
  std::optional<InputRounding> apart(const std::vector<Group>&) const;
  // Deals the groups to the ranks in turn. All call `next` before each takes its own of the next few, from `first` on.
  void quantize_apart(const std::vector<Group>&, const std::function<void(size_t first)>& next,
                      std::map<std::string, Linear>* replaced);

  bool keeps(const LinearDef& def) const { return plan_of(def).keep; }
  // Collective. What takes the place of a linear of the block that was quantized or is sealed, out of its bytes.
  DenseLinear again(const LinearDef&);

  std::deque<CodedLinear>& coded() { return block_->coded; }
  void measure_again(CodedLinear&, const InputStats&);
  // Packs what is not packed yet and writes the block's tensors and records, when the block before is on the disk. They
  // are sealed when the background is done with it.
  void seal(Journal&);

 private:
  const PlannedLinear& plan_of(const LinearDef&) const;
  float absmax(const PlannedLinear&);
  float shared_absmax(const std::vector<LinearDef>& items);
  // Shows every linear of the group that is not kept with the statistics of its input.
  void for_each(const Group&, const std::function<void(const LinearDef&, const PlannedLinear&, const InputStats*)>&);
  void show_squares(const PlannedLinear&, const InputStats&);
  void need_finite(const LinearRecord&) const;  // Error{numeric} that names the linear and the rung
  LinearJob job_of(const PlannedLinear& p, const Tensor& w, const InputStats* stats, float shared,
                   const RowShare& rows) const;
  CodedLinear code(const LinearDef&, const PlannedLinear&, const InputStats*, float shared, const RowShare&);
  void code(Exec&, CodedLinear&, const Tensor& w, const InputStats*, float shared, const RowShare&) const;
  void measure_coded(Exec&, CodedLinear&, const Tensor& w, const InputStats*, const RowShare&) const;
  Tensor encode(const LinearDef&, const PlannedLinear&, const InputStats*);
  CodedLinear pass(const LinearDef&, const PlannedLinear&, const InputStats*);
  CodedLinear begin_record(const LinearDef&, const PlannedLinear&, const InputStats*);
  void take(CodedLinear, std::map<std::string, Linear>* replaced);
  void pack(CodedLinear&);
  std::vector<NamedTensor> pack_now(CodedLinear&);
  DenseLinear dense_of(Exec&, const QuantizedLinear&, const DeviceCodes& there = {}) const;
  DenseLinear restore(const PlannedLinear&);
  TensorSource packed() const;  // of rank 0, when nothing is left in the background
  Tensor on_device(const Tensor& host_f32);
  Tensor* rewritten(const PlannedLinear&);
  Tensor weight_of(const PlannedLinear&);
  Tensor weight_of(const PlannedLinear&, ConstTensorView loaded);
  Tensor stored_weight(const PlannedLinear&);
  struct Dealt;
  std::unique_ptr<Dealt> deal(const Group&, const std::map<std::string, Linear>* replaced);
  void take(Dealt&, std::map<std::string, Linear>* replaced);
  using Rounds = std::deque<std::unique_ptr<Dealt>>;
  void take(const std::vector<Group>&, const Rounds&, std::map<std::string, Linear>* replaced);
  // Shared with the work in the background, which outlives the coder's interest in it.
  struct Block {
    std::deque<std::vector<NamedTensor>> packed{};  // each the background's until nothing is left there
    std::deque<CodedLinear> coded{};                // deques: references stay while they grow
  };

  Exec& ex_;
  const Checkpoint& ckpt_;
  const QuantPlan& plan_;
  const QuantJob& job_;
  Phases& phases_;
  Background& background_;
  UploadAhead& ahead_;
  const Ranks& ranks_;
  bool runs_;
  Background::Ticket sealed_ = 0;   // of the block before
  std::optional<CodeWays> ways_{};  // of codes that stay on the device until they are packed
  // Of the block at hand:
  int64_t layer_ = 0;
  std::string prefix_{};  // of its names
  bool learning_ = false, restores_ = false;
  BlockF32 rewritten_{};                                 // empty without transforms
  std::map<std::string, OutputCurvature> curvatures_{};  // of linears that are not coded yet
  std::shared_ptr<Block> block_ = std::make_shared<Block>();
  std::optional<WeightStore> restored_{};  // of rank 0
  std::optional<Lanes> lanes_{};           // the last member: their work ends before what it works on goes
};

}  // namespace fewbit
