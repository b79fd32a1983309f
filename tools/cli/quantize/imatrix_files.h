#pragma once
// `--imatrix FILE` and `--write-imatrix FILE` of `quantize`.
#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "src/quant/importance.h"
#include "src/quant/loop/quant_job.h"
#include "src/quant/plan/plan.h"
#include "src/text/corpus.h"

namespace fewbit::cli {

struct ImatrixArgs {
  std::string read, write;
};
void add_imatrix_arguments(CLI::App& app, ImatrixArgs& a);

// The files of a run. It must outlive the job that it was given to.
class ImatrixFiles {
 public:
  // Reads --imatrix. Error{usage} where the plan has no use for what is asked, and for a folder that does not exist.
  ImatrixFiles(const ImatrixArgs&, const Checkpoint&, const QuantPlan&);

  void give_to(QuantJob&);
  // Writes --write-imatrix, when the run is done.
  void finish(const ModelSpec&, const Windows&) const;

 private:
  ImatrixArgs args_;
  std::string digest_{}, note_{};
  Importance importance_{};
  std::map<std::string, SeenInputs> seen_{};
};

}  // namespace fewbit::cli
