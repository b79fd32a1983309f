// The spec around the blocks of a decoder, and which of its layers have a window.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/decoder.h"

namespace fewbit {

ModelSpec decoder_spec(const ConfigView& c, const DecoderSizes& s, const std::vector<std::vector<BlockOp>>& variants,
                       const std::vector<int>& variant_of_layer, const std::vector<int64_t>& window_of_layer) {
  ModelSpec spec;
  spec.arch = c.architecture();
  spec.layers = s.layers;
  spec.hidden = s.hidden;
  spec.vocab = s.vocab;
  spec.max_positions = s.positions;
  spec.final_norm_eps = s.eps;
  if (c.flag("tie_word_embeddings", false)) spec.lm_head = spec.embed;
  if (const std::vector<int64_t> bos = c.i64_list("bos_token_id"); !bos.empty()) spec.bos = bos.front();
  spec.eos = c.i64_list("eos_token_id");
  std::vector<std::pair<int, int64_t>> kinds;  // variant and window
  for (size_t i = 0; i < window_of_layer.size(); ++i) {
    const std::pair<int, int64_t> kind = {variant_of_layer.empty() ? 0 : variant_of_layer[i], window_of_layer[i]};
    const auto it = std::find(kinds.begin(), kinds.end(), kind);
    spec.kind_of_layer.push_back(static_cast<int>(it - kinds.begin()));
    if (it == kinds.end()) kinds.push_back(kind);
  }
  for (const auto& [variant, window] : kinds) {
    spec.kinds.push_back(variants[static_cast<size_t>(variant)]);
    for (BlockOp& op : spec.kinds.back())
      if (Attention* a = std::get_if<Attention>(&op)) a->window = window;
  }
  if (spec.kinds.size() == 1) spec.kind_of_layer.clear();
  return spec;
}

ModelSpec decoder_spec(const ConfigView& c, const DecoderSizes& s, const std::vector<BlockOp>& block,
                       const std::vector<int64_t>& window_of_layer) {
  return decoder_spec(c, s, std::vector<std::vector<BlockOp>>{block}, {}, window_of_layer);
}

std::vector<std::string> layer_types(const ConfigView& c, const DecoderSizes& s,
                                     const std::vector<std::string>& known) {
  std::vector<std::string> types = c.str_list("layer_types");
  if (types.empty()) return types;
  if (static_cast<int64_t>(types.size()) != s.layers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: layer_types: expected {} entries, found {}", c.where(), s.layers, types.size()));
  for (size_t i = 0; i < types.size(); ++i)
    if (std::find(known.begin(), known.end(), types[i]) == known.end())
      fail(ErrorKind::unsupported, fmt::format("{}: layer_types[{}]: found \"{}\"; supported: {}", c.where(), i,
                                               types[i], fmt::join(known, ", ")));
  return types;
}

std::vector<int64_t> layer_windows(const ConfigView& c, const DecoderSizes& s, int64_t window, int64_t first_windowed) {
  std::vector<int64_t> out(static_cast<size_t>(s.layers), 0);
  const std::vector<std::string> types = layer_types(c, s, {"full_attention", "sliding_attention"});
  for (int64_t i = 0; i < s.layers; ++i)
    if (types.empty() ? i >= first_windowed : types[static_cast<size_t>(i)] == "sliding_attention")
      out[static_cast<size_t>(i)] = window;
  return out;
}

std::vector<int64_t> no_windows(const DecoderSizes& s) {
  return std::vector<int64_t>(static_cast<size_t>(s.layers), 0);
}

std::vector<int64_t> mistral_windows(const ConfigView& c, const DecoderSizes& s) {
  const int64_t window = c.i64("sliding_window", 0);
  if (window < 0)
    fail(ErrorKind::checkpoint, fmt::format("{}: sliding_window: expected at least 0, found {}", c.where(), window));
  return layer_windows(c, s, window, 0);
}

std::vector<int64_t> qwen_windows(const ConfigView& c, const DecoderSizes& s) {
  const int64_t window = c.flag("use_sliding_window", false) ? size_key(c, "sliding_window", 4096) : 0;
  return layer_windows(c, s, window, c.i64("max_window_layers", 28));
}

}  // namespace fewbit
