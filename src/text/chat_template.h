#pragma once
// Chat templates: messages -> the text that a model was trained to see. The checkpoint's own template (a
// documented subset of Jinja, docs/chat-templates.md) or one of the built-in ones.
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fewbit {

struct ChatMessage {
  std::string role, content;
};

class ChatTemplate {
 public:
  // "" = the checkpoint's own: chat_template.jinja, or `chat_template` of tokenizer_config.json (of several
  // the one called "default"); else a built-in name (llama3, chatml, mistral, gemma) or the path of a
  // template. The special tokens are the checkpoint's. Error{usage} where the checkpoint has none,
  // Error{unsupported} naming a construct that is not understood.
  static ChatTemplate open(const std::filesystem::path& checkpoint, const std::string& name);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The special tokens are written out in the text, BOS included where the template has it.
  std::string render(std::span<const ChatMessage>, bool add_generation_prompt) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fewbit
