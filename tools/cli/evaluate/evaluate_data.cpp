// Reading the data of `evaluate`: built-in text, text files, JSONL, pre-tokenized windows.
#include "tools/cli/evaluate/evaluate_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/run/plan/step_bytes.h"
#include "src/text/builtin_texts.h"
#include "src/text/files/text_file.h"
#include "src/text/files/token_file.h"
#include "tools/cli/chat.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

// A text up to kWholeText is read whole, a larger one in parts.
ScoredWindows windows_of_text(const DataArgs& a, const Checkpoint& c, const ProtocolOptions& options) {
  const Tokenizer tokenizer = Tokenizer::open(c.dir);
  if (is_builtin_evaluation(a.data))
    return make_windows(options, tokenizer, {.texts = {builtin_evaluation(a.data)}}, a.data, c.spec.max_positions);
  std::optional<ChatTemplate> chat;
  const auto template_of = [&]() -> const ChatTemplate& {
    if (!chat) chat = open_chat(c.dir, a.chat_template);
    return *chat;
  };
  if (const TextFile file(a.data); file.size() > kWholeText)
    return make_windows(options, tokenizer, file, template_of, c.spec.max_positions);
  return make_windows(options, tokenizer, read_documents(a.data, template_of), a.data, c.spec.max_positions);
}

}  // namespace

int64_t DataArgs::cache_bytes_per_token(const Checkpoint& c) const {
  return position_bytes(c.spec, load().kv_cache, load().dtype);
}

void add_data_arguments(CLI::App& app, DataArgs& a) {
  app.add_option("--data", a.data,
                 "builtin (English prose and handbooks) or builtin:multilingual; a text FILE; a .jsonl FILE of `text` "
                 "or chat `messages`; or a .safetensors FILE whose "
                 "input_ids [n, t] are n windows")
      ->capture_default_str();
  app.add_option("--protocol", a.protocol,
                 "plain, gptq (rows joined by \"\\n\\n\"), llama.cpp (BOS in front, second half scored) or sliding")
      ->capture_default_str();
  app.add_option("--context", a.context,
                 "Tokens per window (default: 2048, llama.cpp 512; at most the model's positions)")
      ->check(in_range(2, int64_t{1} << 24));
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
  if (std::error_code ignored; !is_builtin_evaluation(a.data) && !std::filesystem::exists(a.data, ignored))
    fail(ErrorKind::usage,
         fmt::format("--data {}: there is no such file; give builtin, builtin:multilingual, or a text, a .jsonl or a "
                     ".safetensors file that is there",
                     a.data));
  const ProtocolOptions options{protocol_from(a.protocol), a.context, a.stride, a.max_windows};
  if (a.context > c.spec.max_positions)  // before the text is read
    fail(ErrorKind::usage, fmt::format("--context: expected at most the model's {} positions, found {}",
                                       c.spec.max_positions, a.context));
  if (is_token_file(a.data)) {
    const std::optional<Tokenizer> tokenizer = tokenizer_of(c);
    return score_windows(options, read_token_file(a.data, a.max_windows, 0, c.spec.vocab),
                         tokenizer ? &*tokenizer : nullptr, c.spec.max_positions);
  }
  ScoredWindows w = windows_of_text(a, c, options);
  check_ids(c.spec, w.windows.ids);
  return w;
}

std::function<void(int64_t, int64_t)> report_to(Progress& progress, std::string what) {
  return [&progress, what = std::move(what)](int64_t done, int64_t total) {
    progress.update(what, static_cast<double>(done) / static_cast<double>(total));
  };
}

}  // namespace fewbit::cli
