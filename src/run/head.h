#pragma once
// Everything outside the blocks: embedding, final norm, head; and losses without ever holding all logits.
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/exec/exec.h"
#include "src/model/checkpoint.h"
#include "src/run/fused.h"

namespace fewbit {

struct Ends {
  Tensor embed;                                          // [vocab, hidden] compute dtype; empty where it is blocks
  std::optional<Linear> embed_blocks{};                  // a GgufLinear
  Tensor final_norm;                                     // [hidden]
  std::optional<Linear> lm_head;                         // nothing when it is the embedding
  Tensor streams_fn{}, streams_base{}, streams_scale{};  // f32, of a model with several residual streams
  Tensor logit_scale{};                                  // f32 [1], of ModelSpec::logit_scale; empty: 1
};
// A packed embedding is dequantized, for rows are looked up in it; a packed head runs as any packed linear, a float one
// as LoadOptions::head says: Error{usage} where it cannot. `notes` as in load_block, and what
// is to be said of the checkpoint as a whole; may be null.
Ends load_ends(Exec&, const Checkpoint&, const LoadOptions&, std::vector<std::string>* notes = nullptr);
// y [rows, vocab] f32 = x head^T times the scale of logits.
void apply_head(Exec&, const Ends&, ConstTensorView x, TensorView y);
// The same of x after the final norm; `normed` as in kernels/products/normed_gemms.h.
void apply_head_normed(Exec&, const ModelSpec&, const Ends&, ConstTensorView x, TensorView normed, TensorView y);
// Of several ranks: the logits of one row x, of which rank r makes those of the rows [band[r], band[r + 1]) of the
// head; all get all. The bands are empty where every rank had better make all of them. Both are collective.
std::vector<int64_t> head_bands(Exec&, const ModelSpec&, const Ends&, int64_t rows, RankSums*);
void apply_head_shared(Exec&, const ModelSpec&, const Ends&, ConstTensorView x, TensorView normed,
                       std::span<const int64_t> band, RankSums&, TensorView y);
const Linear* head_of(const Ends&);       // null where it is the embedding, and that is dense
int64_t embedding_bytes(const Ends&);     // that the embedding takes
int64_t head_bytes(const Ends&);          // that one application reads
std::string_view head_kind(const Ends&);  // kind_of() its linear

// Checks every id against the vocabulary: Error{usage} names the first that is outside.
void check_ids(const ModelSpec&, std::span<const int32_t> ids);

// 0 … len - 1 for every sequence: i32 [seqs * len] on the device.
Tensor sequence_positions(Exec&, int64_t seqs, int64_t len);

// Rows of the embedding for `ids`, scaled, in every residual stream: [ids, width] in `dtype`. Of a float embedding only
// these rows are read, so that neither table nor file is ever held whole. Ids must have been checked.
Tensor embed_rows(Exec&, const Checkpoint&, std::span<const int32_t> ids, DType dtype);
// What is needed behind the last block, without the head: final_norm, and the streams' tensors.
Ends load_final_norm(Exec&, const Checkpoint&, DType dtype);
// x [ids, width] = the embeddings of ids, scaled, in every residual stream. room [ids, hidden]: memory to work in; null
// where it may be allocated, which a recorded step must not do.
void embed_streams(Exec&, const ModelSpec&, ConstTensorView ids, ConstTensorView table, TensorView x,
                   TensorView room = {});
void embed_streams(Exec&, const ModelSpec&, ConstTensorView ids, const Ends&, TensorView x, TensorView room = {});

// The embedding of ids [seqs, len] in `dtype`, with their positions.
struct EmbeddedTokens {
  Tensor x;          // [seqs * len, width]
  Tensor positions;  // i32 [seqs * len]
  Tensor ids;        // i32 [seqs * len]
};
EmbeddedTokens embed_tokens(Exec&, const ModelSpec&, const Ends&, std::span<const int32_t> ids, int64_t seqs,
                            DType dtype);

// x [rows, width] after the final norm, [rows, hidden] in x's dtype.
Tensor final_normed(Exec&, const ModelSpec&, const Ends&, ConstTensorView x);
// Final norm and head of rows of x: f32 [rows, vocab], soft cap applied.
Tensor logits_of(Exec&, const ModelSpec&, const Ends&, ConstTensorView x);

// Rows [first - 1, len - 1) of every sequence of x [seqs * len, hidden]: those that predict the targets first … len -
// 1.
Tensor predicting_rows(Exec&, ConstTensorView x, int64_t seqs, int64_t first);
// Those targets: i32 [seqs, len - first] on the host.
std::vector<int32_t> targets_of(std::span<const int32_t> ids, int64_t seqs, int64_t first);

// NLL of the targets under the states x behind the last block: f32 [seqs, len - first]. Logits are made in chunks of
// rows that never take more than kLogitBytes (CUDA) or kHostLogitBytes.
inline constexpr int64_t kLogitBytes = int64_t{512} << 20, kHostLogitBytes = int64_t{64} << 20;
int64_t logit_rows_at_once(const Exec&, int64_t vocab);
std::vector<float> nll_of_states(Exec&, const ModelSpec&, const Ends&, ConstTensorView x, std::span<const int32_t> ids,
                                 int64_t seqs, int64_t first);

// Seconds on the device by phase of a forward pass: "embedding", "linears", "attention", "experts", "other", "head".
// Everything since the mark before belongs to the phase that is named.
class PhaseClock {
 public:
  explicit PhaseClock(Exec& ex) : ex_(ex) { restart(); }
  void restart() { last_ = ex_.mark(); }
  void mark(const char* phase) { marks_.emplace_back(phase, ex_.mark()); }
  // Waits for the marks so far and adds them up.
  void settle();
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  Exec& ex_;
  int last_ = 0;
  std::vector<std::pair<const char*, int>> marks_;
  std::map<std::string, double> seconds_;
};

}  // namespace fewbit
