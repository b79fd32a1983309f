#pragma once
// Rates: how fast this machine does the parts of a run, from a measurement of some seconds by small calls of the ops
// and methods that the run itself uses. time_plan.h makes times of them. Nothing that is written depends on any of it.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kernels/exec/exec.h"
#include "src/calib/chunks.h"
#include "src/quant/plan/plan.h"

namespace fewbit {

// Seconds of work that grows with a width n as low * n^power + high * n^(power + 1).
struct Law {
  int power = 1;
  double low = 0, high = 0;
  double at(int64_t n) const;
};
// The law through the last of the measured points {n, seconds} and the last that is at most half as wide (else the
// first), with no part below 0; of one point its higher power alone, of none 0.
Law law_of(int power, const std::vector<std::pair<int64_t, double>>& points);

// Linears of one recipe and packing, by the width n of their input; weights are out * n.
struct LinearRates {
  Law row{.power = 1};      // the method: seconds for a row of the weight
  Law system{.power = 2};   // the method: once for a linear
  Law factor{.power = 2};   // the method: once for an input, paid by the first of the linears that share it
  Law measure{.power = 1};  // what the result lost: for a row
  double pack = 0;          // codes into bytes, with their hash: for a weight
};

// Seconds for a byte that moves; `sync` is one for a file, `resident` a share.
struct ByteRates {
  double source = 0;    // of MODEL, read where it is not in memory already
  double resident = 0;  // the share of MODEL's files that is in memory already, 0 to 1
  double write = 0;     // written where OUT goes, down to the disk
  double sync = 0;      // for a file or folder that is made safe on the disk, whatever its size
  double digest = 0;    // read back and hashed
  double sha256 = 0;    // of a file of OUT, by one thread
  double scratch = 0;   // states written to their file and read once, together
  double device = 0;    // states copied on the device; on the CPU that is its memory
  double link = 0;      // between host and device, one way; 0 without a GPU
};

struct Rates {
  // By kind of block and op: seconds of the op for a token of one stream.
  std::vector<std::vector<double>> op{};
  std::vector<std::vector<double>> op_f32{};     // the same in f32; empty where the plan has no way back to run
  Law gram{.power = 1}, cross{.power = 1};       // sums over inputs n wide: for a token
  double convert = 0;                            // a stored weight into the type that computes: for a weight
  double embed = 0;                              // a token's row of the embedding: for a feature
  std::map<std::string, LinearRates> linears{};  // by rate_key()
  std::map<std::string, Law> transforms{};       // by name: for a linear behind an absorber n wide
  ByteRates bytes{};
  double seconds = 0;  // that the measurement took
};

// Linears with one key have the same rates.
std::string rate_key(const PlannedLinear&);

struct RateOptions {
  DType dtype = DType::f32;     // of the calibration
  Chunks chunks{};              // of the calibration; no windows: none
  std::filesystem::path out{};  // written beside it; a path whose folder exists
  std::filesystem::path scratch{};
  double budget = 2;  // seconds, about; a machine that is slower than it gets coarser rates
};
// Measures on `ex`. Reads a piece of the model's files and writes a file without a name into the folder of `out`.
// Error{io} where that cannot be written.
Rates measure_rates(Exec& ex, const Checkpoint&, const QuantPlan&, const RateOptions&);

// Runs what the run will run, once each at the model's widths, so that a GPU's kernels are loaded and chosen: a first
// use of one takes up to some milliseconds, those of a block more than half a second. To be called beside what keeps
// the GPU waiting anyway; leaves the pool's threads to that, and begins nothing more when o.budget is over.
void warm_up(Exec& ex, const Checkpoint&, const QuantPlan&, const RateOptions&);

class Bench;  // rate_probe.h
// The part of files and of one processor; the memory's and the link's.
ByteRates measure_files(const Checkpoint&, const QuantPlan&, const RateOptions&);
void measure_copies(Bench&, ByteRates&);

}  // namespace fewbit
