#pragma once
// The pipeline quantizes a checkpoint one block at a time, true-sequentially. Inside a block the calibration stops at
// every group of linears that share an input: observe, quantize, pack, replace, go on with the quantized weight. Two
// streams are kept; the quantized one feeds the next block.
#include "src/quant/journal/claim.h"
#include "src/quant/loop/quant_job.h"
#include "src/quant/output/report.h"
#include "src/text/corpus.h"

namespace fewbit {

// `windows` is empty (count 0) for recipes that need no calibration. Error{stopped} after a sealed block when
// a stop was requested; the run then resumes with job.resume. `folder` is claim_out()'s; null of a rank that is not the
// first, whose report knows no linears. All ranks of job.ranks call it with the same arguments otherwise.
QuantReport run_pipeline(Exec&, const Checkpoint&, const QuantPlan&, const Windows& windows, const QuantJob&,
                         RunFolder* folder);
// The same of one process, and claims OUT itself.
QuantReport run_pipeline(Exec&, const Checkpoint&, const QuantPlan&, const Windows& windows, const QuantJob&);

}  // namespace fewbit
