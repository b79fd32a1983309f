#pragma once
// A method turns weights and statistics into a QuantizedLinear. It is a plain struct: a name, a sentence, what it needs
// and a function.
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf/block_type.h"
#include "kernels/exec/exec.h"
#include "src/calib/input_stats.h"
#include "src/core/quantized_linear.h"
#include "src/quant/output_curvature.h"
#include "src/quant/row_share.h"

namespace fewbit {

enum class Effort : uint8_t { quick, standard, best, reference };  // "default" prints as such
enum class ActOrder : uint8_t { off, static_groups, gar, full };
// What codes are to reproduce: the weight; what makes the unquantized output of the quantized input, as half of the
// calibration shows it or all of it; and where outputs are added to the residual stream, some of that stream's error as
// well.
enum class Targets : uint8_t { off, half, inputs, residual };

struct LinearJob {
  std::string name;                   // full name, for messages
  ConstTensorView weight{};           // [out, in] f32 on ex's device; of several ranks, the rows of this one
  const InputStats* stats = nullptr;  // null for data-free methods
  QuantSpec spec{};
  Effort effort = Effort::standard;
  ActOrder act_order = ActOrder::off;
  bool two_of_four = false;    // 2:4 sparsity: of every four inputs of a row two weights at most are not zero
  float damp = 0.01f;          // relative to the mean of diag H
  bool shifts_targets = true;  // aims at the unquantized output, where the statistics hold both streams
  bool allow_rtn = false;      // permits the last rung
  uint64_t seed = 0;
  // Largest |w| of this linear and of those that share its input: they share a global scale, where there is one.
  float shared_absmax = 0;
  bool codes_stay = false;  // on the device, where the method has them in MethodResult::there
  // Weighs errors of the outputs together; null: each counts by itself. A method that takes it overwrites it, and has
  // all rows of the linear.
  OutputCurvature* curvature = nullptr;
  // How the rows are divided among ranks, which all call the method then. Results have the rows of `weight`; losses and
  // whatever is decided are those of all rows.
  const RowShare* rows = &RowShare::none();
};

// The neutral form of one linear while it is still on the device. `zeros` and `group_of` may be empty.
struct DeviceCodes {
  Tensor codes{};     // [out, in] u8
  Tensor scales{};    // [ceil(out / out_group), G]  f32
  Tensor zeros{};     // [out, G]  u8; empty when symmetric
  Tensor group_of{};  // [in]      i32; empty when groups are consecutive
};

struct MethodResult {
  QuantizedLinear linear{};  // host memory; without its codes where the job lets them stay
  DeviceCodes there{};       // the same on the device; empty where the method does not leave them
  double loss = 0;           // tr((W - Q) H (W - Q)^T) / tokens, H undamped; 0 without statistics
  double loss_rtn = 0;       // the same for rtn --effort reference on the same statistics
  // What the method itself minimised. With shifted targets T the two losses above measure a distance to a
  // weight that was not aimed at, and may be larger than rtn's in a better result; these two are comparable
  // with each other:
  double loss_target = 0;      // tr((T - Q) H (T - Q)^T) / tokens; equals loss where targets were not shifted
  double loss_target_rtn = 0;  // the same for the Q of rtn --effort reference
  std::string rung;            // "fp32", "fp64", "damp x10", "diagonal", "rtn"; "" for data-free methods
  bool coupled = false;        // the outputs' curvature made the rows' targets
};

// The grids that a method rounds to.
struct Grids {
  bool integer = true, f8 = false, f4 = false;  // f4: nvfp4 and mxfp4
  bool has(Grid g) const { return g == Grid::integer ? integer : g == Grid::f8_e4m3 ? f8 : f4; }
  Grid first() const { return integer ? Grid::integer : Grid::f8_e4m3; }
};

// What a method makes of a linear whose bytes are blocks of GGUF: `result` without its linear.
struct EncodedLinear {
  MethodResult result{};
  Tensor blocks{};  // u8 [out, row bytes], host
};

struct Method {
  std::string_view name, summary;
  Needs needs;
  Grids grids{};
  MethodResult (*quantize)(Exec&, const LinearJob&);
  // Every weight is rounded for itself: the encoder of a block format, which rounds to its own grid, may take
  // the place of `quantize`.
  bool rounds_alone = false;
  // Codes for a block type with scales of its own (gguf/open_block.h). Null: the method has none.
  EncodedLinear (*encode)(Exec&, const LinearJob&, const gguf::BlockType&) = nullptr;
};

const std::vector<const Method*>& methods();
const Method& method(std::string_view name);  // Error{usage} listing the known ones

#define FEWBIT_METHOD(id) extern const Method method_##id;
#include "src/quant/methods.def"
#undef FEWBIT_METHOD

}  // namespace fewbit
