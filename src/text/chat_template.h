#pragma once
// Chat templates: messages -> the text that a model was trained to see. The checkpoint's own template (Jinja,
// docs/chat-templates.md) or one of the built-in ones.
#include <filesystem>
#include <memory>
#include <string>

namespace fewbit {

// What a template is rendered with, as JSON. `messages` is a list of objects (role, content: a text or a list of parts,
// tool_calls, reasoning_content …), `tools` and `documents` are lists of objects, `more` an object of further variables
// (enable_thinking …); empty: none given.
struct Chat {
  std::string messages{}, tools{}, documents{}, more{};
  bool add_generation_prompt = false;
};

class ChatTemplate {
 public:
  // `model` is a model folder, a .gguf file, or a template itself, which then knows no special tokens. `name` "" = the
  // checkpoint's own: chat_template.jinja, `chat_template` of tokenizer_config.json or chat_template.json, or the GGUF
  // metadata (of several the one called "default", and with tools "tool_use"); else a built-in name (llama3, chatml,
  // mistral, gemma) or the path of a template. Error{usage} where there is none, Error{unsupported} naming a construct
  // that is not implemented, Error{checkpoint} for what is no template.
  static ChatTemplate open(const std::filesystem::path& model, const std::string& name);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // As transformers' apply_chat_template, without tokenizing: the special tokens are written out in the text, BOS
  // included where the template has it. Error{checkpoint} where the JSON is not of the form above, and what
  // Template::render refuses.
  std::string render(const Chat&) const;
  const std::string& where() const;  // the file, with its key, or the built-in name

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fewbit
