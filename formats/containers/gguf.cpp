// GGUF files as a container: names, types and bytes as they lie. Blocks of quantized values are u8 with the
// bytes of a row as last dimension; their type is told by gguf::parse (formats/gguf/file.h), which knows more
// than a container asks.
#include <utility>
#include <vector>

#include "formats/container.h"
#include "formats/gguf/file.h"
#include "formats/gguf/locate.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

bool probe(const fs::path& p) { return gguf::locate(p).has_value(); }

Shape stored_shape(const gguf::FileTensor& t) {
  if (t.type->plain) return t.shape;
  std::vector<int64_t> dims(t.shape.dims().begin(), t.shape.dims().end());
  dims.back() = gguf::row_bytes(*t.type, t.cols());
  return Shape(std::span<const int64_t>(dims));
}

CheckpointIndex open(const fs::path& p) {
  CheckpointIndex index;
  index.files.emplace_back(*gguf::locate(p));
  const MappedFile& file = index.files.back();
  const gguf::File parsed = gguf::parse(file.bytes(), file.path().string());
  for (const gguf::FileTensor& t : parsed.tensors)
    index.tensors[t.name] = {t.name, t.type->plain.value_or(DType::u8), stored_shape(t), 0, t.begin, t.bytes};
  for (const auto& [key, value] : parsed.metadata.values())
    if (const auto* text = std::get_if<std::string>(&value)) index.metadata[key] = *text;
  return index;
}

// Keeps the tensors until finish(), because the header, which comes first, needs them all.
class Writer final : public CheckpointWriter {
 public:
  explicit Writer(fs::path dir) : dir_(std::move(dir)) {}

  void add(const std::string& name, ConstTensorView host) override {
    tensors_.push_back(
        {name, &gguf::block_type_of(host.dtype), host.shape, [this, i = held_.size()] { return std::move(held_[i]); }});
    held_.push_back(clone_host(host));
  }
  void finish() override {
    std::error_code ec;
    fs::create_directories(dir_, ec);
    if (ec) fail(ErrorKind::io, dir_.string() + ": cannot create the folder: " + ec.message());
    gguf::write(dir_ / "model.gguf", {}, tensors_);
  }

 private:
  fs::path dir_;
  std::vector<gguf::TensorToWrite> tensors_;
  std::vector<Tensor> held_;
};

std::unique_ptr<CheckpointWriter> create(const fs::path& dir, const WriterOptions&) {
  return std::make_unique<Writer>(dir);
}

}  // namespace

constinit const Container container_gguf = {
    .name = "gguf",
    .summary = "a .gguf file, or a folder with one",
    .probe = probe,
    .open = open,
    .create = create,
};

}  // namespace fewbit
