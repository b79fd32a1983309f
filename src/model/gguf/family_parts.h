#pragma once
// The parts of a family's record about .gguf files (src/model/gguf/family.h): names, experts, recurrent layers, latent
// attention, multipliers.
#include <cstdint>
#include <string_view>

#include "src/model/block_ops.h"

namespace fewbit {

// A name relative to the block that is not the usual one of names.cpp: "model.layers.7." here, "blk.7." there.
struct GgufName {
  std::string_view model{}, gguf{};
};

// A key of config.json that is true where the file has a tensor; "blk.*.NAME" means that of any block.
struct GgufPresence {
  std::string_view key{}, tensor{};
};

// A key of the architecture and the integer that it has; 0: it is there, whatever its value.
struct GgufTell {
  std::string_view key{};
  int64_t value = 0;
};

// Mixtures of experts: what readers take for granted of the weights that a router gives, and which keys say otherwise.
struct GgufExperts {
  RouterScore score = RouterScore::softmax;
  bool renormalise = true;
  bool score_key = false, norm_key = false;  // the latter with the factor on the weights and groups of experts
  bool scale_key = false;                    // the factor on the weights and groups alone
  bool weigh_inputs = false;                 // the weight multiplies what an expert reads
  bool leading_dense = false;                // the first layers may have an MLP; their number has a key
  bool step_key = false;                     // "every n-th layer has experts"
  bool any_step = false;                     // n may be above 1
  bool beside_mlp = false;                   // layers have an MLP and experts
  bool anywhere = false;                     // layers without experts are told apart otherwise
  bool width_key = false;                    // the width of an expert has a key of its own, else it is the MLP's
  int64_t without_head_norms = 0;            // > 0: the heads of q and k have norms but in a model of so many experts
  float swiglu_limit = 0;
  // The keys of config.json.
  std::string_view count = "num_local_experts", used = "num_experts_per_tok", width{}, renormalised{}, scaling{},
                   dense_layers{}, shared_count{}, shared_width{}, step{}, groups = "n_group";
};

// Layers that keep a state in place of keys and values: a state space of Mamba-2, LFM2's short convolution, KDA. They,
// and layers without attention, have 0 in the list attention.head_count_kv.
struct GgufRecurrent {
  enum class Kind : uint8_t { none, state_space, short_conv, channel_decay } kind = Kind::none;
  // How config.json says which layers they are: words of layer_types; the letters of hybrid_override_pattern; lists of
  // numbers from 1 on in linear_attn_config.
  enum class List : uint8_t { types, letters, numbers } list = List::types;
  std::string_view word{}, attention_word{};
  bool twice_hidden = false;  // readers want twice as many inner features as the hidden size
  // Keys of config.json.
  std::string_view heads{}, head_dim{}, groups{}, state{}, taps{};
};

// Latent attention, whose kv_b_proj lies in two tensors, the keys' part turned over.
struct GgufLatent {
  bool used = false;
  bool turns = true;
  // Readers look for queries without a latent in a model of so many layers alone, or of so many with such a vocabulary;
  // any_queries: wherever there is no key of their rank.
  int64_t plain_layers[2]{}, plain_wide_layers = 0, plain_vocab = 0;
  bool any_queries = false;
  bool indexer = false, indexer_neighbours = false;  // a choice of keys, and how its rotation pairs features
  bool indexer_types = false;                        // layers may look at the keys that the one before chose
};

// The keys of config.json for factors on the embedding, on what a branch adds, on scores, and on logits; "": 1 each.
struct GgufMultipliers {
  std::string_view embedding{}, residual{}, scores{}, logits{};
  bool logits_divided = false;  // by what the file says
};

}  // namespace fewbit
