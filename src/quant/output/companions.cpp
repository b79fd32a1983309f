#include "src/quant/output/companions.h"

#include <fcntl.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/gguf/file.h"
#include "formats/guarded_json.h"
#include "src/core/file_io.h"
#include "src/core/files/checksums.h"
#include "src/core/mapped_file.h"
#include "src/core/strings.h"
#include "src/text/gguf_tokenizer.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// Files of the model directory that are rewritten or belong to its weights; everything else travels along.
bool travels(const fs::path& file) {
  const std::string name = file.filename().string();
  for (const char* suffix :
       {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf"})
    if (ends_with(name, suffix)) return false;
  if (std::find(std::begin(kSideFiles), std::end(kSideFiles), name) != std::end(kSideFiles)) return false;
  return name != "config.json" && name != "quant_report.json" && name != "README.md" && name != kChecksumsFile &&
         name[0] != '.';
}

// The files of the model's folder that travel; none where it is a file.
std::vector<fs::path> companions_of(const fs::path& model) {
  std::vector<fs::path> files;
  std::error_code ec;
  if (!fs::is_directory(model, ec)) return files;
  for (fs::directory_iterator it(model, ec), end; !ec && it != end; it.increment(ec))
    if (std::error_code unreadable; it->is_regular_file(unreadable) && travels(it->path())) files.push_back(it->path());
  if (ec) fail(ErrorKind::io, model.string() + ": cannot read the folder: " + ec.message());
  return files;
}

// As Hugging Face writes it.
const char* torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

// Whether the experts are packed as in the model: `expert_dtype` (DeepSeek V4) says so of a model.
bool same_experts(const Checkpoint& c, const QuantizationSummary& summary) {
  const auto packing = [](const QuantizationSummary& s, const std::string& linear) {
    const auto at = s.linears.find(linear);
    return at == s.linears.end() ? nullptr : at->second.packing;
  };
  for (int64_t layer = 0; layer < c.spec.layers; ++layer)
    for (const BlockOp& op : c.spec.block(layer))
      if (std::holds_alternative<Moe>(op))
        for (const LinearDef& l : linears_of(op))
          if (const std::string name = c.spec.prefix(layer) + l.name;
              packing(summary, name) != packing(c.quantization, name))
            return false;
  return true;
}

}  // namespace

void write_text(const fs::path& path, const std::string& text) {
  File file = File::with_flags(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (!file.open()) file.refuse("cannot create");
  file.append_whole(text);
}

void copy_companions(const fs::path& model, const fs::path& dir) {
  for (const fs::path& file : companions_of(model)) {
    std::error_code ec;
    fs::copy_file(file, dir / file.filename(), ec);
    if (ec) fail(ErrorKind::io, file.string() + ": cannot copy into " + dir.string() + ": " + ec.message());
  }
}

int64_t companion_bytes(const fs::path& model) {
  int64_t bytes = 0;
  for (const fs::path& file : companions_of(model))
    if (std::error_code ec; const auto size = fs::file_size(file, ec)) bytes += ec ? 0 : static_cast<int64_t>(size);
  return bytes;
}

std::optional<TokenizerFiles> gguf_tokenizer_files(const Checkpoint& c, std::string* why_not) {
  if (fs::is_directory(c.dir)) return std::nullopt;
  const MappedFile file(c.dir);
  const gguf::Metadata metadata = gguf::parse(file.bytes(), c.dir.string()).metadata;
  if (has_no_tokenizer(metadata)) {
    if (why_not) *why_not = c.dir.string() + " has no tokenizer";
    return std::nullopt;
  }
  try {
    return tokenizer_files_from_gguf(metadata);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::unsupported) throw;
    if (why_not) *why_not = e.what();
    return std::nullopt;
  }
}

gguf::Metadata gguf_tokenizer_of(const Checkpoint& c) {
  if (fs::is_directory(c.dir)) return tokenizer_to_gguf(c.dir, c.spec.vocab);
  const MappedFile file(c.dir);
  const gguf::File parsed = gguf::parse(file.bytes(), c.dir.string());
  gguf::Metadata out;
  for (const auto& [key, value] : parsed.metadata.values())
    if (starts_with(key, "tokenizer.")) out.set(key, value);
  return out;
}

void write_gguf_tokenizer(const Checkpoint& c, const fs::path& dir) {
  if (fs::exists(dir / "tokenizer.json")) return;
  const auto files = gguf_tokenizer_files(c, nullptr);
  if (!files) return;
  write_text(dir / "tokenizer.json", files->tokenizer);
  if (!fs::exists(dir / "tokenizer_config.json")) write_text(dir / "tokenizer_config.json", files->config);
}

void write_config(const Checkpoint& c, const CheckpointFormat& format, const QuantizationSummary& summary,
                  std::optional<DType> dense, const fs::path& dir) {
  auto config = parse_ordered_json(c.config.text(), c.config.where(), kConfigJson);
  for (const char* old : {"quantization_config", "compression_config"}) config.erase(old);
  if (!same_experts(c, summary)) config.erase("expert_dtype");
  if (dense) config[config.contains("dtype") ? "dtype" : "torch_dtype"] = torch_name(*dense);
  if (dense && config.contains("torch_dtype")) config["torch_dtype"] = torch_name(*dense);
  if (const std::string quantization = format.write_config(summary); !quantization.empty()) {
    config["quantization_config"] = nlohmann::ordered_json::parse(quantization);
    if (format.side_file) {
      const ConfigFile side = format.side_file(summary);
      write_text(dir / side.name, side.text + "\n");
    }
  }
  write_text(dir / "config.json", python_json(config, 2) + "\n");
}

std::string above_model_card(const std::string& card, const std::string& source_card) {
  if (source_card.empty()) return card;
  size_t body = 0;
  if (starts_with(source_card, "---\n"))
    if (const size_t end = source_card.find("\n---\n", 3); end != std::string::npos) body = end + 5;
  return source_card.substr(0, body) + (body ? "\n" : "") + card + "\n## The model's own card\n\n" +
         source_card.substr(body);
}

}  // namespace fewbit
