// Reading the data of `evaluate`: built-in text, text files, JSONL, pre-tokenized windows.
#include "tools/cli/evaluate_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/strings.h"

namespace fewbit::cli {
namespace {

Windows windows_from_safetensors(const std::string& path, int64_t max_windows) {
  const CheckpointIndex index = container_safetensors.open(path);
  const auto it = index.tensors.find("input_ids");
  if (it == index.tensors.end())
    fail(ErrorKind::checkpoint, fmt::format("{}: no tensor input_ids [windows, tokens]", path));
  const TensorInfo& info = it->second;
  if (info.shape.rank() != 2 || (info.dtype != DType::i32 && info.dtype != DType::i64) || info.shape[1] < 2)
    fail(ErrorKind::checkpoint, fmt::format("{}: input_ids: expected i32 or i64 [windows, tokens >= 2], found {} {}",
                                            path, name_of(info.dtype), info.shape.str()));
  const Tensor t = clone_host(index.view(info));
  std::vector<int32_t> ids(static_cast<size_t>(t.numel()));
  for (int64_t i = 0; i < t.numel(); ++i)
    ids[static_cast<size_t>(i)] =
        info.dtype == DType::i32 ? t.as<int32_t>()[i] : static_cast<int32_t>(t.as<int64_t>()[i]);
  const int64_t count = max_windows > 0 ? std::min(max_windows, info.shape[0]) : info.shape[0];
  ids.resize(static_cast<size_t>(count * info.shape[1]));
  return windows_from_ids(std::move(ids), count, info.shape[1], path);
}

Documents documents_of(const DataArgs& a, const Checkpoint& c) {
  if (a.data == "builtin") return {.texts = {builtin_evaluation()}};
  std::optional<ChatTemplate> chat;
  return read_documents(a.data, [&]() -> const ChatTemplate& {
    if (!chat) chat = ChatTemplate::open(c.dir, a.chat_template);
    return *chat;
  });
}

}  // namespace

void add_data_arguments(CLI::App& app, DataArgs& a) {
  app.add_option("--data", a.data,
                 "builtin; a text FILE; a .jsonl FILE of `text` or chat `messages`; or a .safetensors FILE whose "
                 "input_ids [n, t] are n windows")
      ->capture_default_str();
  app.add_option("--protocol", a.protocol,
                 "plain, gptq (rows joined by \"\\n\\n\"), llama.cpp (BOS in front, second half scored) or sliding")
      ->capture_default_str();
  app.add_option("--context", a.context,
                 "Tokens per window (default: 2048, llama.cpp 512; at most the model's positions)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  app.add_option("--stride", a.stride, "Of --protocol sliding: tokens between two windows (default: half of them)")
      ->check(at_least(1));
  app.add_option("--max-windows", a.max_windows, "Only the first N windows")->check(at_least(1));
  app.add_option("--chat-template", a.chat_template,
                 "For chat messages: llama3, chatml, mistral, gemma or a FILE (default: the checkpoint's own)");
  app.add_option("--dtype", a.dtype, "Arithmetic: bf16 or float32 (packed weights are then dequantized)")
      ->capture_default_str();
  add_kv_cache(app, a.kv_cache);
  add_head(app, a.head);
  app.add_option("--batch-tokens", a.batch_tokens, "Tokens per forward pass")->check(at_least(1));
  add_common(app, a.common);
}

std::optional<Tokenizer> tokenizer_of(const Checkpoint& c) {
  std::error_code ignored;
  if (!std::filesystem::exists(c.dir / "tokenizer.json", ignored)) return std::nullopt;
  return Tokenizer::open(c.dir);
}

ScoredWindows load_windows(const DataArgs& a, const Checkpoint& c) {
  const ProtocolOptions options{protocol_from(a.protocol), a.context, a.stride, a.max_windows};
  if (a.context > c.spec.max_positions)  // before the text is read
    fail(ErrorKind::usage,
         fmt::format("--context {} exceeds the model's {} positions", a.context, c.spec.max_positions));
  if (ends_with(a.data, ".safetensors")) {
    const std::optional<Tokenizer> tokenizer = tokenizer_of(c);
    return score_windows(options, windows_from_safetensors(a.data, a.max_windows), tokenizer ? &*tokenizer : nullptr,
                         c.spec.max_positions);
  }
  const Documents documents = documents_of(a, c);
  const Tokenizer tokenizer = Tokenizer::open(c.dir);
  ScoredWindows w = make_windows(options, tokenizer, documents, a.data, c.spec.max_positions);
  check_ids(c.spec, w.windows.ids);
  return w;
}

std::function<void(int64_t, int64_t)> report_to(Progress& progress, std::string what) {
  return [&progress, what = std::move(what)](int64_t done, int64_t total) {
    progress.update(what, static_cast<double>(done) / static_cast<double>(total));
  };
}

}  // namespace fewbit::cli
