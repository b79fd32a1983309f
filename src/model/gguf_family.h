#pragma once
// What the .gguf files of a family say, and what their readers take for granted where a key is absent, after
// llama.cpp's src/models/*.cpp. Part of the family's record (src/model/family.h); read by the GGUF code of src/model
// alone.
#include <cstdint>
#include <string>
#include <string_view>

namespace fewbit {

struct Family;
struct ModelSpec;

// A name relative to the block that is not the usual one of gguf_names.cpp: "model.layers.7." here, "blk.7." there.
struct GgufName {
  std::string_view model{}, gguf{};
};

struct GgufFamily {
  std::string_view arch{};     // general.architecture; "" = no such file is written or read
  std::string_view why_not{};  // then, for people
  std::string_view read_as{};  // the class that a file is read as; "" = the family's own
  GgufName names[4]{};
  bool experts = false;
  bool expert_width = false;    // the width of an expert has a key of its own
  bool pairs = false;           // interleaved rotary features
  bool output_biases = false;   // biases behind attention and in the MLP have a place
  bool partial_rotary = false;  // fewer rotary features than a head has
  // Layers with a sliding window where the file does not list them. kNoWindow: the file cannot say a window;
  // kEveryLayer; else every n-th layer sees everything.
  static constexpr int kNoWindow = -1, kEveryLayer = 0;
  int window_period = kNoWindow;
  int64_t window = 0;                      // where the file does not say
  float attention_cap = 0, logit_cap = 0;  // where the file does not say; 0 = none
  bool logit_cap_key = false;
  bool sliding_rotation = false;  // windowed layers turn by rope.freq_base_swa
  bool long_rope = false;         // LongRoPE's tables have tensors
  int64_t scaled_by_width = 0;    // a model of so many layers divides scores by sqrt(hidden / heads)
  bool score_keys = false;        // config.json says soft caps and the divisor of scores, and no biases in the MLP
  bool untied = true;             // a head of its own is possible
  // The function of the MLP in config.json, which the file does not say: "hidden_act": "silu".
  std::string_view activation_key = "hidden_act", activation = "silu";

  bool windowed(int64_t layer) const {
    return window_period == kEveryLayer || (window_period > 0 && (layer + 1) % window_period != 0);
  }
  // Attention scores are divided by the root of this.
  int64_t score_divisor(int64_t layers, int64_t hidden, int64_t heads, int64_t head_dim) const {
    return layers == scaled_by_width ? hidden / heads : head_dim;
  }
};

// Error{unsupported} with the reason and the list of those that have one.
const GgufFamily& gguf_family_of(const ModelSpec&);
// The family that an architecture of a file stands for, the first in archs.def; a mixture of experts has its own.
// Error{unsupported} naming the file.
const Family& gguf_family_named(const std::string& architecture, bool experts, const std::string& where);

}  // namespace fewbit
