#pragma once
// Tensor parallelism: how the blocks of a model are divided among ranks. Every rank runs the model's list of ops on all
// tokens, with its part of the heads, of the features inside the MLPs and of the experts; the residual stream is whole
// on all of them. What becomes of an op follows from its type and from which of its slots are divided:
//
//   Norm, Project, Scale, AddTo    the same on every rank: replicated
//   Linears                        whole input, divided outputs: a rank has rows of the weight (column-parallel);
//                                  divided input: a rank has columns, its outputs are summed over the ranks, rounded
//                                  once behind that (row-parallel: Linears::summed), and rank 0 adds the bias
//   Split                          a rank has its part of every output: fused linears are divided part by part
//   HeadNorm, Rope                 head-wise: the rank's heads, the whole weight
//   Attention                      head-wise: the rank's heads and key/value heads, with their sinks, cache and static
//                                  scales; ranks that outnumber the key/value heads have one together
//   LatentAttention                head-wise: the rank's heads of queries and of `kv`, the whole latent and its cache
//   KeyChoice, BiasedNorm          the same on every rank: replicated, rank 0's choice
//   GatedAct, SigmoidGate          the rank's features
//   Moe                            by experts: the router is replicated, a rank runs its own experts
//                                  (Moe::own_begin), and what they make is summed over the ranks
//   ShortConv, DeltaRule           not divided: the model is refused
//
// Embedding, final norm and head are replicated; of one sequence ranks may share the rows of the head (head_bands()).
#include <string>
#include <vector>

#include "src/model/checkpoint.h"
#include "src/model/parallel/linear_share.h"

namespace fewbit {

struct RankPart {
  int rank = 0, ranks = 1;
  bool alone() const { return ranks == 1; }
};

// Why `ranks` ranks cannot share the model, each reason once and naming its op or linear; empty where they can.
std::vector<std::string> refuses_ranks(const Checkpoint&, int ranks);

// For models that refuses_ranks() takes:
// the same list of ops in the widths of one rank;
ModelSpec spec_of_rank(const ModelSpec&, RankPart);
// what a rank has of a linear of `block`, a block of the whole model, by its name there. Of an expert: all;
LinearShare share_of(const std::vector<BlockOp>& block, const LinearDef&, RankPart);
// the experts that it has of an op's;
Moe experts_of_rank(const Moe&, RankPart);
// and its heads of those of an Attention, its key/value heads.
Range heads_of(const Attention&, RankPart);
Range kv_heads_of(const Attention&, RankPart);

}  // namespace fewbit
