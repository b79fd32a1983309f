#pragma once
// What the .gguf files of a family say, and what their readers take for granted where a key is absent, after
// llama.cpp's src/models/*.cpp. Part of the family's record (src/model/family.h); read by the GGUF code of src/model
// alone.
#include <cstdint>
#include <string>
#include <string_view>

#include "src/model/gguf/family_parts.h"

namespace fewbit {

namespace gguf {
class Metadata;
}
struct Family;
struct ModelSpec;

struct GgufFamily {
  std::string_view arch{};               // general.architecture; "" = no such file is written or read
  std::string_view arch_with_experts{};  // of a model with experts, where that is another
  std::string_view why_not{};            // where there is none, for people
  std::string_view read_as{};            // the class that a file is read as; "" = the family's own
  GgufTell tell{};                       // only a file that has this key is of this family
  GgufName names[16]{};
  std::string_view final_norm = "output_norm";
  bool has_experts = false, dense_too = false;  // the latter: with experts or without
  GgufExperts experts{};
  GgufRecurrent recurrent{};
  GgufLatent latent{};
  GgufMultipliers multipliers{};
  bool pairs = false;           // readers turn neighbouring features of a head, not its halves
  bool output_biases = false;   // biases behind attention and in the MLP have a place
  bool partial_rotary = false;  // fewer rotary features than a head has
  // A gated delta net beside attention; with `tiled` its value heads lie by turns: the first of every key head, then
  // the second of every key head, where the model has all of a key head together.
  bool delta_net = false, tiled = false;
  // Models of 80 layers are those of 70 G parameters to the mixes of types, where so many queries or more share a key;
  // 0: none is.
  int queries_of_70b = 0;
  bool square = false;                // heads times their size is the hidden size
  bool sections = false;              // says which rotary features belong to which axis of a picture: text has one
  std::string_view usual_sections{};  // JSON, where config.json says none
  bool untruncated_yarn = false;      // YaRN's limits are no whole features, whatever readers make of them
  float yarn_log = 0;                 // rope.scaling.yarn_log_multiplier is mscale_all_dim times this; 0: no such key
  bool yarn_follows = false;          // readers take mscale for mscale_all_dim, where others take it for 1
  bool scaled_queries = false;        // attention.temperature_scale: queries grow with their positions
  bool divisors = false;              // of rotary frequencies have a tensor
  bool long_rope = false;             // LongRoPE's tables have tensors
  // Layers that do not turn: every n-th (0: none, 1: all), or those without a window where others have one, or, with
  // the switch, all or none as rope.scaling.finetuned says.
  int still_period = 0;
  bool full_layers_still = false, still_switch = false;
  // Layers that turn see their own chunk of so many positions alone, and the others scale their queries by the number
  // of the chunk: both as Llama 4 was published.
  int64_t chunk = 0;
  // Layers with a sliding window where the file does not list them. kNoWindow: the file cannot say a window;
  // kEveryLayer; kListed: a file always lists them; else every n-th layer sees everything.
  static constexpr int kNoWindow = -1, kEveryLayer = 0, kListed = 1;
  int window_period = kNoWindow;
  int64_t window = 0;                      // where the file does not say
  int64_t window_layers = 0;               // > 0: only a model of so many layers has windows, whatever the file says
  bool windows_tell = false;               // only a file that says a window is of this family
  bool sliding_rotation = false;           // windowed layers turn by rope.freq_base_swa
  bool sliding_heads = false;              // windowed layers have heads of a size of their own (Gemma 4)
  float attention_cap = 0, logit_cap = 0;  // where the file does not say; 0 = none
  bool logit_cap_key = false;
  int64_t scaled_by_width = 0;      // a model of so many layers divides scores by sqrt(hidden / heads)
  bool undivided = false;           // scores are not divided at all
  bool score_keys = false;          // config.json says soft caps and the divisor of scores, and no biases in the MLP
  bool untied = true, tied = true;  // a head of its own is possible; the embedding as the head
  int64_t head_norms_from = 0;      // > 0: readers want norms of q and k from so many layers on
  bool layer_norms = false;         // the key of the norms' epsilon is that of layer norms
  std::string_view epsilon = "rms_norm_eps", mlp_width = "intermediate_size";  // keys of config.json
  GgufPresence presence[3]{};
  std::string_view config{};  // what config.json says beside all that: a JSON object
  // The function of the MLP in config.json, which the file does not say: "hidden_act": "silu".
  std::string_view activation_key = "hidden_act", activation = "silu";

  bool windowed(int64_t layer) const {
    return window_period == kEveryLayer || (window_period > 1 && (layer + 1) % window_period != 0);
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
    return undivided ? 1 : layers == scaled_by_width ? hidden / heads : head_dim;
  }
  std::string_view arch_of(bool experts) const {
    return experts && !arch_with_experts.empty() ? arch_with_experts : arch;
  }
};

// The number of a router's function in a file.
constexpr int64_t gating_function(RouterScore score) { return score == RouterScore::sigmoid ? 2 : 1; }

// Error{unsupported} with the reason and the list of those that have one.
const GgufFamily& gguf_family_of(const ModelSpec&);
// The family that a file is of, the first in archs.def; mixtures of experts have their own, and so have some models
// with windows or with a key that tells. Error{unsupported} naming the file.
const Family& gguf_family_named(const gguf::Metadata&);

}  // namespace fewbit
