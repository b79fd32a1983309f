#include "src/model/gguf/writer.h"

#include <algorithm>
#include <cstring>

#include "src/model/gguf/config.h"
#include "src/model/gguf/mixes.h"
#include "src/model/gguf/names.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// general.file_type, for people: what most of the linears are, unless all types are those of a mix.
struct FileType {
  const gguf::BlockType* type;
  uint32_t id;
};
constexpr FileType kFileTypes[] = {
    {&gguf::type_f32, 0},     {&gguf::type_f16, 1},   {&gguf::type_q4_0, 2},  {&gguf::type_q4_1, 3},
    {&gguf::type_q8_0, 7},    {&gguf::type_q2_k, 10}, {&gguf::type_q3_k, 12}, {&gguf::type_iq4_nl, 25},
    {&gguf::type_iq4_xs, 30}, {&gguf::type_q5_0, 8},  {&gguf::type_q5_1, 9},  {&gguf::type_q4_k, 14},
    {&gguf::type_q5_k, 16},   {&gguf::type_q6_k, 18}, {&gguf::type_bf16, 32}, {&gguf::type_mxfp4, 38}};

// "demo-model" of "models/demo-model/" and of "demo-model.gguf".
std::string name_of(const fs::path& model) {
  const fs::path absolute = fs::absolute(model).lexically_normal();
  if (absolute.extension() == ".gguf") return absolute.stem().string();
  return (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string();
}

class Writing {
 public:
  Writing(const Checkpoint& c, const GgufContents& given) : c_(c), given_(given) {}

  gguf::TensorToWrite tensor(const GgufTensor& g) {
    const gguf::BlockType& type = type_of(g, g.parts.front());
    for (const std::string& part : g.parts)
      if (&type_of(g, part) != &type)
        fail(ErrorKind::unsupported, g.name + ": GGUF stacks the experts of a layer in one type; found " +
                                         std::string(type.name) + " and, in " + part + ", " +
                                         std::string(type_of(g, part).name));
    if (g.linear) elements_[&type] += g.shape().numel();
    for (const std::string& part : g.parts) types_[module_of(part)] = &type;
    return {g.name, &type, g.shape(), [this, g, &type] { return bytes(g, type); }};
  }

  const std::map<std::string, const gguf::BlockType*>& types() const { return types_; }
  const gguf::BlockType& commonest() const {
    return *std::max_element(elements_.begin(), elements_.end(), [](const auto& a, const auto& b) {
              return a.second < b.second;
            })->first;
  }

 private:
  const gguf::BlockType& type_of(const GgufTensor& g, const std::string& part) const {
    if (const auto it = given_.find(part); it != given_.end()) return *it->second.type;
    if (!g.linear && !is_matrix(g)) return gguf::type_f32;
    const TensorInfo* stored = c_.store.find(part);  // its type alone: nothing is decoded for that
    return gguf::block_type_of(stored ? stored->dtype : c_.store.get(part).dtype);
  }
  // Embedding and head; routers are small and decide much.
  static bool is_matrix(const GgufTensor& g) {
    for (const char* name : {"token_embd", "output", "per_layer_token_embd", "per_layer_model_proj"})
      if (g.name == std::string(name) + ".weight") return true;
    return false;
  }

  Tensor content(const std::string& part, const gguf::BlockType& type) const {
    if (const auto it = given_.find(part); it != given_.end()) return it->second.bytes();
    const ConstTensorView stored = c_.store.get(part);
    Tensor copy = stored.dtype == type.plain ? clone_host(stored) : float_values(stored);
    c_.store.release(part);
    return copy;
  }

  Tensor bytes(const GgufTensor& g, const gguf::BlockType& type) const {
    const auto one = [&](const std::string& part) {
      Tensor t = content(part, type);
      constexpr auto kTo = GgufDirection::to_gguf;
      if (g.of > 0) {
        t = picked_rows(t, g.rows, g.of);
        return g.turned > 0 ? turned_blocks(t, g.turned, std::ssize(g.rows) / g.turned, g.part[-1]) : std::move(t);
      }
      if (g.computed()) t = computed_values(g, t, kTo);
      if (!g.rows.empty()) t = reordered(t, g.rows, kTo);
      return g.runs.empty() ? std::move(t) : reordered_runs(t, g.runs, gguf::tensor_bytes(type, {g.run}), kTo);
    };
    if (g.parts.size() == 1) return one(g.parts.front());
    const int64_t each = gguf::tensor_bytes(type, g.part);
    Tensor all = Tensor::host(DType::u8, {static_cast<int64_t>(g.parts.size()), each});
    for (size_t i = 0; i < g.parts.size(); ++i) {
      const Tensor part = one(g.parts[i]);
      FEWBIT_ASSERT(part.bytes() == each);
      std::memcpy(all.as<uint8_t>() + static_cast<int64_t>(i) * each, part.view().data, static_cast<size_t>(each));
    }
    return all;
  }

  const Checkpoint& c_;
  const GgufContents& given_;
  std::map<const gguf::BlockType*, int64_t> elements_;
  std::map<std::string, const gguf::BlockType*> types_{};  // by the name of the module
};

}  // namespace

WrittenFile write_gguf(const Checkpoint& c, const fs::path& file, const GgufContents& given,
                       const gguf::Metadata& tokenizer) {
  gguf::Metadata metadata = gguf_metadata(c.config, c.spec);
  metadata.merge(tokenizer);
  Writing writing(c, given);
  std::vector<gguf::TensorToWrite> tensors;
  for (const GgufTensor& g : gguf_tensors(c.spec)) tensors.push_back(writing.tensor(g));
  for (const auto& [name, factors] : gguf_rope_factors(c.config, c.spec)) {
    const Shape shape{static_cast<int64_t>(factors.size())};
    tensors.push_back({name, &gguf::type_f32, shape,
                       [shape, factors = factors] { return Tensor::host_from<float>(DType::f32, shape, factors); }});
  }
  for (const FileType& t : kFileTypes)
    if (t.type == &writing.commonest()) metadata.set("general.file_type", t.id);
  if (const GgufMix* mix = mix_of_types(writing.types(), c.spec)) metadata.set("general.file_type", mix->file_type);
  metadata.set("general.name", name_of(c.dir));
  return gguf::write(file, metadata, tensors);
}

const gguf::BlockType& gguf_type_for(const gguf::BlockType& wanted, int64_t in) {
  if (in % wanted.elements == 0) return wanted;
  const gguf::BlockType* simple = &gguf::type_f16;
  for (const gguf::BlockType* low : {&gguf::type_q2_k, &gguf::type_q3_k, &gguf::type_iq4_xs})
    if (&wanted == low) simple = &gguf::type_iq4_nl;
  if (&wanted == &gguf::type_q4_k) simple = &gguf::type_q5_0;
  if (&wanted == &gguf::type_q5_k) simple = &gguf::type_q5_1;
  if (&wanted == &gguf::type_q6_k) simple = &gguf::type_q8_0;
  return in % simple->elements == 0 ? *simple : gguf::type_f16;
}

}  // namespace fewbit
