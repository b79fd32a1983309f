#include "src/text/files/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "formats/container.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

const TensorInfo& ids_of(const CheckpointIndex& index, const fs::path& path) {
  const auto it = index.tensors.find("input_ids");
  if (it == index.tensors.end())
    fail(ErrorKind::checkpoint, fmt::format("{}: no tensor input_ids [windows, tokens]", path.string()));
  const TensorInfo& t = it->second;
  if (t.shape.rank() != 2 || (t.dtype != DType::i32 && t.dtype != DType::i64) || t.shape[0] < 1 || t.shape[1] < 2)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: input_ids: expected i32 or i64 [windows >= 1, tokens >= 2], found {} {}", path.string(),
                     name_of(t.dtype), t.shape.str()));
  return t;
}

// The mapping may be unaligned for the type.
template <class T>
int64_t value_at(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

bool is_token_file(const fs::path& path) { return path.extension() == ".safetensors"; }

TokenFileShape token_file_shape(const fs::path& path) {
  const CheckpointIndex index = container_safetensors.open(path);
  const TensorInfo& t = ids_of(index, path);
  return {t.shape[0], t.shape[1]};
}

Windows read_token_file(const fs::path& path, int64_t max_windows, int64_t length, int64_t vocab) {
  const CheckpointIndex index = container_safetensors.open(path);
  const TensorInfo& t = ids_of(index, path);
  const int64_t row = t.shape[1], count = max_windows > 0 ? std::min(max_windows, t.shape[0]) : t.shape[0];
  Windows out{count, length > 0 ? std::min(length, row) : row, {}, path.string()};
  out.ids.reserve(static_cast<size_t>(count * out.length));
  const void* data = index.view(t).data;
  for (int64_t w = 0; w < count; ++w)
    for (int64_t i = 0; i < out.length; ++i) {
      const int64_t at = w * row + i;
      const int64_t id = t.dtype == DType::i32 ? value_at<int32_t>(data, at) : value_at<int64_t>(data, at);
      if (id < 0 || id >= vocab)
        fail(ErrorKind::checkpoint,
             fmt::format("{}: input_ids[{}, {}] is {}; the model's vocabulary is [0, {}): ids and model need the same "
                         "tokenizer",
                         path.string(), w, i, id, vocab));
      out.ids.push_back(static_cast<int32_t>(id));
    }
  return out;
}

}  // namespace fewbit
