// Finding a checkpoint's chat template, the built-in ones, and rendering.
#include "src/text/chat_template.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/text/corpus.h"
#include "src/text/jinja.h"

namespace fewbit {

struct ChatTemplate::Impl {
  std::string where, bos, eos;
  std::vector<jinja::Node> nodes;
};

namespace {

using Json = nlohmann::ordered_json;

struct Builtin {
  std::string_view name, source;
};
constexpr std::array kBuiltins = std::to_array<Builtin>({
    {"llama3",
     "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
     "{{ m.content | trim }}<|eot_id|>{% endfor %}"
     "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"},
    {"chatml",
     "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    {"mistral",
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = m.content ~ '\\n\\n' %}"
     "{% elif m.role == 'user' %}[INST] {{ ns.system ~ m.content }} [/INST]{% set ns.system = '' %}"
     "{% elif m.role == 'assistant' %} {{ m.content | trim }}{{ eos_token }}"
     "{% else %}{{ raise_exception('no role ' ~ m.role) }}{% endif %}{% endfor %}"},
    {"gemma",
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = m.content ~ '\\n\\n' %}"
     "{% else %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
     "{{ ns.system ~ (m.content | trim) }}<end_of_turn>\n{% set ns.system = '' %}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
});

Json tokenizer_config(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / "tokenizer_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Json::object();
  Json j = Json::parse(read_text(path), nullptr, false);
  if (!j.is_object()) fail(ErrorKind::checkpoint, path.string() + ": is not a JSON object");
  return j;
}

// A special token is a text, or an object with its `content`.
std::string special_token(const Json& config, const char* key) {
  const Json v = config.value(key, Json());
  if (v.is_string()) return v;
  return v.is_object() ? v.value("content", "") : "";
}

// The template in tokenizer_config.json: a text, or a list of {name, template}; "" without one.
std::string configured_template(const Json& config) {
  const Json v = config.value("chat_template", Json());
  if (v.is_string()) return v;
  std::string found;
  for (const Json& t : v.is_array() ? v : Json::array())
    if (t.is_object() && (found.empty() || t.value("name", "") == "default")) found = t.value("template", "");
  return found;
}

struct Source {
  std::string where, text;
};
Source source_of(const std::filesystem::path& checkpoint, const std::string& name, const Json& config) {
  for (const Builtin& b : kBuiltins)
    if (name == b.name) return {"built-in chat template " + name, std::string(b.source)};
  if (!name.empty()) return {name, read_text(name)};
  std::error_code ignored;
  if (const auto file = checkpoint / "chat_template.jinja"; std::filesystem::exists(file, ignored))
    return {file.string(), read_text(file)};
  const std::string text = configured_template(config);
  if (text.empty())
    fail(ErrorKind::usage, fmt::format("{}: the checkpoint has no chat template; give --chat-template llama3, chatml, "
                                       "mistral, gemma or a FILE",
                                       checkpoint.string()));
  return {(checkpoint / "tokenizer_config.json").string() + ": chat_template", text};
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::open(const std::filesystem::path& checkpoint, const std::string& name) {
  const Json config = tokenizer_config(checkpoint);
  const Source source = source_of(checkpoint, name, config);
  auto impl = std::make_unique<Impl>();
  impl->where = source.where;
  impl->bos = special_token(config, "bos_token");
  impl->eos = special_token(config, "eos_token");
  impl->nodes = jinja::parse(source.text, source.where);
  return ChatTemplate(std::move(impl));
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  Json variables = {
      {"bos_token", impl_->bos}, {"eos_token", impl_->eos}, {"add_generation_prompt", add_generation_prompt}};
  variables["messages"] = Json::array();
  for (const ChatMessage& m : messages) variables["messages"].push_back({{"role", m.role}, {"content", m.content}});
  return jinja::render(impl_->nodes, variables.dump(), impl_->where);
}

}  // namespace fewbit
