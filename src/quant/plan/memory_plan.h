#pragma once
// The memory of a run, before anything is computed: what each phase needs at its peak, where the calibration's states
// will lie, and what is computed again because it is not kept. A pure function of the plan and the limits; the bits of
// the output do not depend on it.
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "src/calib/states.h"
#include "src/model/model_spec.h"

namespace fewbit {

struct QuantPlan;
struct PlanOptions;
struct Checkpoint;

// Bytes that a run may use.
struct MemoryLimits {
  int64_t device = std::numeric_limits<int64_t>::max();  // of GPU memory
  int64_t host = std::numeric_limits<int64_t>::max();
  std::string host_name{};          // what sets the limit of the host: "--max-host-memory", "MemAvailable" …
  std::filesystem::path scratch{};  // folder of the states that fit neither
};

// The most that a phase needs, states aside, and the layer at which it does.
struct PhaseMemory {
  std::string phase{};
  int64_t layer = 0;
  int64_t device = 0, host = 0;
};

// What is done with what lives in front of a stop, besides the residual stream: kept in a place from one pass to the
// next, or computed again. Seconds are those of a block.
struct StopChoice {
  enum class Where : uint8_t { device, host, disk, computed } place = Where::computed;
  int kind = 0;
  size_t op = 0;               // of the kind's ops: the stop is in front of it
  std::string linears{};       // that read it, by their names in the block
  int64_t bytes = 0;           // that it takes, in all streams
  double store_seconds = 0;    // to write and read them, where they would lie
  double compute_seconds = 0;  // to compute them again
};
const char* name_of(StopChoice::Where);  // "on the device", "in host memory", "on disk", "computed again"

struct MemoryPlan {
  std::vector<PhaseMemory> phases{};
  int64_t states = 0;            // bytes of states at their most, in all places together
  int64_t device = 0, host = 0;  // the peaks, states included; without a GPU everything is the host's
  int64_t scratch = 0;           // bytes on disk
  // Of MODEL's files in memory at once, on top of `host`: the system may take them back, so no limit counts them.
  int64_t mapped = 0;
  int64_t least_device = 0, least_host = 0;        // without any states, with as many experts at once as below
  int64_t smallest_device = 0, smallest_host = 0;  // the smallest limits that would do, whatever the limits are
  StateRoom room{};
  std::vector<std::set<size_t>> stored{};  // by kind of block: ops in front of which all that lives is kept
  std::vector<StopChoice> stops{};         // where rates were measured: what decided `stored`
  int experts_at_once = 1;                 // experts of a mixture whose statistics are held side by side
  bool experts_in_waves = false;           // their weights too, those of no others
  int lanes = 1;                           // experts of a mixture that a GPU solves side by side
  // Copies beside the computation take so much of the device, where it has room: slots of the largest stored weight on
  // their way in, codes on their way out. 0: everything is copied when it is its turn.
  int64_t slot = 0, beside = 0;
  int64_t experts_ahead = 0;  // of `beside`: the experts of the next block, where there is room for them
  std::string refusal{};      // one line where the limits are too small; "" otherwise

  bool stores_before(int kind, size_t op) const {
    return static_cast<size_t>(kind) < stored.size() && stored[static_cast<size_t>(kind)].count(op) > 0;
  }
};

// What is costly to compute again is stored where there is memory for it. stop_choice.h decides by time, where that is
// known.
MemoryPlan plan_memory(const Checkpoint&, const QuantPlan&, const PlanOptions&);

// Bytes of the calibration's states at their most, with what is stored in front of those stops.
int64_t state_bytes(const Checkpoint&, const QuantPlan&, const PlanOptions&,
                    const std::vector<std::set<size_t>>& stored);
// Lets copies run beside the computation where the device has room for that and for the states of `m`.
void copy_beside(MemoryPlan& m, const Checkpoint&, const QuantPlan&, const PlanOptions&);
// Puts the states of what `m` stores where there is room, the device first and the disk last.
void lay_states(MemoryPlan& m, const Checkpoint&, const QuantPlan&, const PlanOptions&);

}  // namespace fewbit
