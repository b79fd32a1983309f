#pragma once
// What stands beside the weights of a checkpoint: its config, the files of the model directory that travel
// along, and the report and card that are written anew.
#include <filesystem>
#include <optional>
#include <string>

#include "formats/checkpoint_format.h"
#include "formats/gguf/metadata.h"
#include "src/model/checkpoint.h"
#include "src/text/gguf_tokenizer_files.h"

namespace fewbit {

// Error{io} where it cannot be written.
void write_text(const std::filesystem::path& path, const std::string& text);

// Copies what does not belong to the weights and is not written anew: tokenizer files,
// generation_config.json, chat templates, licences. Nothing where `model` is no folder.
void copy_companions(const std::filesystem::path& model, const std::filesystem::path& dir);
int64_t companion_bytes(const std::filesystem::path& model);  // of what copy_companions() copies

// The tokenizer files that a MODEL which is a .gguf file suffices for. Nothing where it does not, with the
// reason in `why_not`, and nothing where MODEL is a folder of safetensors.
std::optional<TokenizerFiles> gguf_tokenizer_files(const Checkpoint&, std::string* why_not);
// The tokenizer as the metadata of a .gguf file: from the folder's tokenizer.json, or from the .gguf file that MODEL
// is.
gguf::Metadata gguf_tokenizer_of(const Checkpoint&);
// Writes the files of gguf_tokenizer_files() where `dir` has no tokenizer of its own.
void write_gguf_tokenizer(const Checkpoint&, const std::filesystem::path& dir);

// config.json of the model with the quantization_config of `summary` in the place of its own, and the file
// that older readers look for beside it. `dense`: the float type of all weights, where it changes.
void write_config(const Checkpoint&, const CheckpointFormat&, const QuantizationSummary& summary,
                  std::optional<DType> dense, const std::filesystem::path& dir);

// The card of a checkpoint above that of its model ("" = it has none), whose metadata stay on top.
std::string above_model_card(const std::string& card, const std::string& source_card);

}  // namespace fewbit
