#pragma once
// The layer behind the last one that predicts one token further (multi-token prediction, MTP), as a model of its own.
//
// Its input at position i is a linear of [norm(embedding of token i + 1); norm(hidden state i of the model, behind the
// final norm)], what it says behind its own norm and the model's head is token i + 2 (DeepSeek-V3 report, section 2.2;
// which half comes first, and that the state is the normed one: vLLM's deepseek_mtp.py and qwen3_next_mtp.py).
#include <string>
#include <vector>

#include "src/model/checkpoint.h"

namespace fewbit {

struct MtpLayer {
  // One block, with the model's embedding and head; its tensors have the names that block 0 and the final norm of the
  // model have, however they are stored.
  Checkpoint block;
  NamedLinear joined;                       // [hidden, 2 hidden]
  std::string embedding_norm, hidden_norm;  // [hidden]
};

// That of a checkpoint, of the forms of Qwen3-Next and Qwen3.5 (mtp.fc, mtp.layers.0) and of DeepSeek-V3 and GLM-4.5
// (model.layers.L.eh_proj); of several such layers the first. Reads no weight. Error{unsupported} where it has none, or
// one of another form; Error{checkpoint} where parts of it are missing.
MtpLayer open_mtp(const Checkpoint&);

// The linears of that layer by their names in the checkpoint, with layer kOutsideBlocks; those that share an input
// stand together. None where there is no such layer of a known form. An expert's linear that lies in a stack is named
// too: whether there is a tensor of that name, the store says.
std::vector<std::vector<NamedLinear>> mtp_linears(const ModelSpec&, const WeightStore&);

// Whether the store has tensors of a linear, packed or not.
bool has_linear(const WeightStore&, const std::string& linear);

}  // namespace fewbit
