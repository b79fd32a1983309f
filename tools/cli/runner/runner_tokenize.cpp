// `runner tokenize [MODEL] --data FILE`: the ids of a text, of any size.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/text/documents.h"
#include "src/text/files/text_ids.h"
#include "tools/cli/chat.h"
#include "tools/cli/options.h"
#include "tools/cli/runner/runner_commands.h"

namespace fewbit::cli {
namespace {

struct TokenizeArgs {
  Common common;
  std::string model, data, chat_template;
  bool no_special = false;
};

// The ids lie here once, in pieces as they came; nothing else grows with the text.
struct Tokenized {
  std::vector<std::vector<int32_t>> pieces{};
  int64_t count = 0, parts = 0;
  std::vector<int64_t> documents{};  // of a .jsonl file: how many ids each has
  void take(std::vector<int32_t> ids) {
    count += static_cast<int64_t>(ids.size());
    pieces.push_back(std::move(ids));
  }
};

Tokenized tokenize_lines(const TokenizeArgs& a, const std::filesystem::path& model, const Tokenizer& tokenizer,
                         const TextFile& file) {
  const std::filesystem::path folder = std::filesystem::is_directory(model) ? model : model.parent_path();
  std::optional<ChatTemplate> chat;
  const auto template_of = [&]() -> const ChatTemplate& {
    if (!chat) chat = open_chat(folder, a.chat_template);
    return *chat;
  };
  Tokenized out;
  read_in_parts(file, template_of, [&](const Documents& part) {
    // A chat's template writes the special tokens itself.
    const Special special = a.no_special || part.chat ? Special::none : Special::add;
    std::vector<int32_t> ids;
    for (const std::string& text : part.texts) {
      const std::vector<int32_t> of_text = tokenizer.encode(text, special);
      out.documents.push_back(static_cast<int64_t>(of_text.size()));
      ids.insert(ids.end(), of_text.begin(), of_text.end());
    }
    out.take(std::move(ids));
    ++out.parts;
    return true;
  });
  return out;
}

// Calls put(text) with the ids in decimal, `between` between two of them, some thousand at a time.
template <class Put>
void write_ids(const Tokenized& t, std::string_view between, const Put& put) {
  std::string text;
  bool first = true;
  for (const std::vector<int32_t>& ids : t.pieces)
    for (const int32_t id : ids) {
      if (!first) text += between;
      first = false;
      fmt::format_to(std::back_inserter(text), "{}", id);
      if (text.size() < 65536) continue;
      put(text);
      text.clear();
    }
  put(text);
}

// The keys in front of the ids, then the ids as they lie: no second copy of them is made.
template <class Put>
void write_result(const nlohmann::ordered_json& keys, const Tokenized& t, const Put& put) {
  const std::string head = keys.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  put(head.substr(0, head.size() - 2) + ",\n \"ids\": [");  // without the closing "\n}"
  write_ids(t, ",", put);
  put("]\n}\n");
}

void report(const TokenizeArgs& a, const nlohmann::ordered_json& keys, const Tokenized& t) {
  const auto to_stdout = [](const std::string& s) { std::fwrite(s.data(), 1, s.size(), stdout); };
  if (a.common.json_to_stdout()) return write_result(keys, t, to_stdout);
  if (!a.common.json.empty()) {
    std::ofstream out(a.common.json, std::ios::binary);
    write_result(keys, t, [&](const std::string& s) { out << s; });
    if (!out.flush()) fail(ErrorKind::io, fmt::format("{}: cannot write", a.common.json));
    return;
  }
  write_ids(t, " ", to_stdout);
  to_stdout("\n");
}

void run_tokenize(const TokenizeArgs& a) {
  const TextFile file(a.data);
  const std::filesystem::path model = model_or_demo(a.common, a.model);
  const Tokenizer tokenizer = Tokenizer::open(model);
  const bool lines = file.path().extension() == ".jsonl";
  Tokenized t;
  if (lines)
    t = tokenize_lines(a, model, tokenizer, file);
  else
    t.parts = tokenize_parts(tokenizer, file, a.no_special ? Special::none : Special::add, kWholeText,
                             [&](std::vector<int32_t> ids) { t.take(std::move(ids)); });
  nlohmann::ordered_json keys = {
      {"model", model.string()},  {"data", a.data},   {"bytes", file.size()}, {"vocab_size", tokenizer.vocab_size()},
      {"special", !a.no_special}, {"parts", t.parts}, {"count", t.count}};
  if (lines) keys["documents"] = t.documents;
  report(a, keys, t);
  if (!lines && t.parts > 1)
    say(a.common, fmt::format("note: tokenized in {} parts of {} MiB, cut where documents or lines begin\n", t.parts,
                              kWholeText >> 20));
  say(a.common, fmt::format("{} tokens of {} bytes\n", t.count, file.size()));
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  const auto a = std::make_shared<TokenizeArgs>();
  CLI::App* tokenize = app.add_subcommand("tokenize", "Print the token ids of a text file of any size");
  tokenize->add_option("MODEL", a->model,
                       "Checkpoint folder, a tokenizer.json or a .gguf FILE (left out: the embedded demo model)");
  tokenize
      ->add_option("--data", a->data,
                   "A text FILE, or a .jsonl FILE of `text` or chat `messages`, whose lines are tokenized one by one")
      ->required();
  tokenize->add_flag("--no-special", a->no_special, "Without what the tokenizer puts in front of a text and behind it");
  tokenize->add_option("--chat-template", a->chat_template,
                       "For chat messages: llama3, chatml, mistral, gemma or a FILE (default: the checkpoint's own)");
  add_common(*tokenize, a->common);
  tokenize->callback([a] { run_tokenize(*a); });
}

}  // namespace fewbit::cli
