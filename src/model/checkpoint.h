#pragma once
// Checkpoint: a model directory or .gguf file, opened and checked: its config, its architecture, its tensors and how
// each linear is stored. Everything above reads models through this.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "formats/checkpoint_format.h"
#include "src/model/config_view.h"
#include "src/model/model_spec.h"
#include "src/model/weight_store.h"

namespace fewbit {

namespace gguf {
struct BlockType;  // formats/gguf/block_type.h
}

// A matrix that lies in a .gguf file as blocks, for those who multiply it as such.
struct StoredBlocks {
  const gguf::BlockType* type = nullptr;
  ConstTensorView rows{};      // u8 [out, row bytes], as the file has them
  std::vector<int64_t> order;  // row i of the file is row order[i] of the matrix; empty: they lie in order
  std::string tensor;          // of the store, whose forget() gives the memory of `rows` back
};

struct Checkpoint {
  std::filesystem::path dir;  // the folder, or the .gguf file
  ConfigView config;
  ModelSpec spec;
  WeightStore store;
  QuantizationSummary quantization;  // empty for a dense checkpoint
  std::string format;                // "dense", "marlin", "gptq", "gguf", …
  // Packed matrices that the op list does not know (a tower, MTP layers), with layer kOutsideModel.
  std::vector<NamedLinear> others{};
  // Of a .gguf file, by the name of the linear or end; packed or not, for a type may have no neutral form.
  std::map<std::string, StoredBlocks> blocks{};
  // Of a model that is turned as it is read (src/model/rotation/rotation.h): how, in lines for people; "" otherwise.
  std::string rotation{};
  uint64_t rotation_seed = 0;

  // Opens and checks everything: Error{checkpoint} carries all complaints, one a line.
  static Checkpoint open(const std::filesystem::path& dir);
  // A linear, an end (ends_of) or one of `others`.
  bool packed(const std::string& linear) const { return quantization.linears.count(linear) > 0; }
  // The linears of the op list, then the ends that are packed, then the others.
  std::vector<NamedLinear> linears() const;
  // A packed linear in the neutral form. sound_codes() is the same, with Error{checkpoint} for what check() finds.
  QuantizedLinear sound_codes(const NamedLinear&) const;
  QuantizedLinear unpack(const std::string& linear, int64_t out, int64_t in) const;
  // The weight of a linear in f32 [out, in], dequantized (sound_codes) where it is packed.
  Tensor values(const NamedLinear&) const;
  TensorSource source() const;
};

inline constexpr int64_t kOutsideModel = -2;  // NamedLinear::layer of Checkpoint::others

// A host tensor of f32, f16 or bf16, at any address, as f32.
Tensor float_values(ConstTensorView);

}  // namespace fewbit
