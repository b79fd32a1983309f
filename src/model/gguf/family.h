#pragma once
// What the .gguf files of a family say, and what their readers take for granted where a key is absent, after
// llama.cpp's src/models/*.cpp. Part of the family's record (src/model/family.h); read by the GGUF code of src/model
// alone.
#include <cstdint>
#include <string>
#include <string_view>

#include "src/model/block_ops.h"

namespace fewbit {

struct Family;
struct ModelSpec;

// A name relative to the block that is not the usual one of gguf/names.cpp: "model.layers.7." here, "blk.7." there.
struct GgufName {
  std::string_view model{}, gguf{};
};

// A key of config.json that is true where the file has a tensor.
struct GgufPresence {
  std::string_view key{}, tensor{};
};

// Mixtures of experts: what readers take for granted of the weights that a router gives, and which keys say otherwise.
struct GgufExperts {
  RouterScore score = RouterScore::softmax;
  bool renormalise = true;
  bool score_key = false, norm_key = false;  // the latter with the factor on the weights and groups of experts
  bool leading_dense = false;                // the first layers may have an MLP; their number has a key
  bool step_key = false;                     // "every n-th layer has experts", which is 1
  bool width_key = false;                    // the width of an expert has a key of its own, else it is the MLP's
  float swiglu_limit = 0;
  // The keys of config.json.
  std::string_view count = "num_local_experts", used = "num_experts_per_tok", width{}, renormalised{}, scaling{},
                   dense_layers{}, shared_count{}, shared_width{};
};

struct GgufFamily {
  std::string_view arch{};     // general.architecture; "" = no such file is written or read
  std::string_view why_not{};  // then, for people
  std::string_view read_as{};  // the class that a file is read as; "" = the family's own
  GgufName names[4]{};
  bool has_experts = false;
  GgufExperts experts{};
  bool pairs = false;           // readers turn neighbouring features of a head, not its halves
  bool output_biases = false;   // biases behind attention and in the MLP have a place
  bool partial_rotary = false;  // fewer rotary features than a head has
  // A gated delta net beside attention; with `tiled` its value heads lie by turns: the first of every key head, then
  // the second of every key head, where the model has all of a key head together.
  bool delta_net = false, tiled = false;
  bool square = false;                // heads times their size is the hidden size
  bool sections = false;              // says which rotary features belong to which axis of a picture: text has one
  std::string_view usual_sections{};  // JSON, where config.json says none
  bool untruncated_yarn = false;      // YaRN's limits are no whole features, whatever readers make of them
  bool divisors = false;              // of rotary frequencies have a tensor
  bool long_rope = false;             // LongRoPE's tables have tensors
  // Layers that do not turn: every n-th (0: none), or those without a window where others have one.
  int still_period = 0;
  bool full_layers_still = false;
  // Layers with a sliding window where the file does not list them. kNoWindow: the file cannot say a window;
  // kEveryLayer; else every n-th layer sees everything.
  static constexpr int kNoWindow = -1, kEveryLayer = 0;
  int window_period = kNoWindow;
  int64_t window = 0;                      // where the file does not say
  int64_t window_layers = 0;               // > 0: only a model of so many layers has windows, whatever the file says
  bool windows_tell = false;               // only a file that says a window is of this family
  bool sliding_rotation = false;           // windowed layers turn by rope.freq_base_swa
  float attention_cap = 0, logit_cap = 0;  // where the file does not say; 0 = none
  bool logit_cap_key = false;
  int64_t scaled_by_width = 0;      // a model of so many layers divides scores by sqrt(hidden / heads)
  bool score_keys = false;          // config.json says soft caps and the divisor of scores, and no biases in the MLP
  bool untied = true, tied = true;  // a head of its own is possible; the embedding as the head
  GgufPresence presence[3]{};
  std::string_view config{};  // what config.json says beside all that: a JSON object
  // The function of the MLP in config.json, which the file does not say: "hidden_act": "silu".
  std::string_view activation_key = "hidden_act", activation = "silu";

  bool windowed(int64_t layer) const {
    return window_period == kEveryLayer || (window_period > 0 && (layer + 1) % window_period != 0);
  }
  bool has_windows(int64_t layers) const {
    return window_period != kNoWindow && (window_layers == 0 || window_layers == layers);
  }
  bool still(int64_t layer, bool layer_windowed, bool some_windowed) const {
    return (still_period > 0 && (layer + 1) % still_period == 0) ||
           (full_layers_still && some_windowed && !layer_windowed);
  }
  // Attention scores are divided by the root of this.
  int64_t score_divisor(int64_t layers, int64_t hidden, int64_t heads, int64_t head_dim) const {
    return layers == scaled_by_width ? hidden / heads : head_dim;
  }
};

// The number of a router's function in a file.
constexpr int64_t gating_function(RouterScore score) { return score == RouterScore::sigmoid ? 2 : 1; }

// Error{unsupported} with the reason and the list of those that have one.
const GgufFamily& gguf_family_of(const ModelSpec&);
// The family that an architecture of a file stands for, the first in archs.def; mixtures of experts have their own, and
// so have some models with windows. Error{unsupported} naming the file.
const Family& gguf_family_named(const std::string& architecture, bool experts, bool windows, const std::string& where);

}  // namespace fewbit
