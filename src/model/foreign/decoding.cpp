#include "src/model/foreign/decoding.h"

#include <fmt/format.h>

#include "src/core/error.h"
#include "src/core/half.h"
#include "src/core/strings.h"
#include "src/model/checkpoint.h"

namespace fewbit {

Tensor Stored::bytes() const {
  const MappedFile mapped = MappedFile::windowed(file);
  return clone_host({mapped.at(info.begin, info.bytes), info.dtype, info.shape, {}});
}

Tensor Stored::floats() const { return float_values(bytes()); }

float in_type(float v, DType type) {
  return type == DType::bf16 ? round_to_bf16(v) : type == DType::f16 ? round_to_f16(v) : v;
}

const std::filesystem::path& Decoding::path_of(const TensorInfo& t) const {
  return index_.files[static_cast<size_t>(t.file)].path();
}

const TensorInfo* Decoding::find(const std::string& tensor) const {
  const auto t = index_.tensors.find(tensor);
  return t == index_.tensors.end() ? nullptr : &t->second;
}

std::string Decoding::where(const std::string& tensor) const {
  const TensorInfo* t = find(tensor);
  return t ? fmt::format("{}: tensor '{}'", path_of(*t).string(), tensor) : tensor;
}

void Decoding::complain(const std::string& tensor, const std::string& what) {
  complaints_.push_back(fmt::format("{}: {}", where(tensor), what));
}

std::optional<Stored> Decoding::stored(const std::string& tensor, std::initializer_list<DType> types,
                                       int64_t elements) {
  const TensorInfo* t = find(tensor);
  const bool known = t && std::find(types.begin(), types.end(), t->dtype) != types.end();
  if (known && t->shape.numel() == elements) return Stored{path_of(*t), *t};
  std::vector<std::string> names;
  for (const DType type : types) names.emplace_back(name_of(type));
  complain(tensor, fmt::format("expected {} of {} elements, found {}", join(names, " or "), elements,
                               t ? fmt::format("{} {}", name_of(t->dtype), t->shape.str()) : "nothing"));
  return std::nullopt;
}

void Decoding::put(const std::string& weight, const std::string& codes, std::string_view kind, DType type,
                   const Shape& shape, const std::vector<std::string>& beside, std::function<Tensor()> make) {
  TensorInfo info = index_.tensors.at(codes);
  info.name = weight;
  info.dtype = type;
  info.shape = shape;
  info.stored = kind;
  index_.tensors.erase(codes);
  for (const std::string& name : beside) index_.tensors.erase(name);
  index_.tensors[weight] = info;
  makers_[weight] = std::move(make);
}

void Decoding::fail_if_any() const {
  if (!complaints_.empty()) fail(ErrorKind::checkpoint, join(complaints_, "\n"));
}

}  // namespace fewbit
