// Finding a checkpoint's chat template, the built-in ones, and rendering.
#include "src/text/chat_template.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/gguf/file.h"
#include "formats/gguf/locate.h"
#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/mapped_file.h"
#include "src/text/corpus.h"
#include "src/text/gguf_tokenizer_files.h"
#include "src/text/jinja/jinja.h"
#include "src/text/json_problem.h"

namespace fewbit {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct Source {
  std::string where{}, text{};
};

}  // namespace

struct ChatTemplate::Impl {
  std::string where;
  Json tokens;  // special tokens by name
  jinja::Template main;
  std::optional<Source> with_tools{};  // another template for chats with tools
};

namespace {

struct Builtin {
  std::string_view name, source;
};
// Of a message's content, which is a text or a list of parts.
constexpr std::string_view kText =
    "{%- macro text(content) %}{% if content is string %}{{ content }}{% elif content %}{% for part in content %}"
    "{{ part.text }}{% endfor %}{% endif %}{% endmacro -%}";
constexpr std::array kBuiltins = std::to_array<Builtin>({
    {"llama3",
     "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
     "{{ text(m.content) | trim }}<|eot_id|>{% endfor %}"
     "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"},
    {"chatml",
     "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ text(m.content) }}<|im_end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    {"mistral",
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = text(m.content) ~ '\\n\\n' %}"
     "{% elif m.role == 'user' %}[INST] {{ ns.system ~ text(m.content) }} [/INST]{% set ns.system = '' %}"
     "{% elif m.role == 'assistant' %} {{ text(m.content) | trim }}{{ eos_token }}"
     "{% else %}{{ raise_exception('no role ' ~ m.role) }}{% endif %}{% endfor %}"},
    {"gemma",
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = text(m.content) ~ '\\n\\n' %}"
     "{% else %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
     "{{ ns.system ~ (text(m.content) | trim) }}<end_of_turn>\n{% set ns.system = '' %}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
});

bool there_is(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Json object_in(const fs::path& path) {
  if (!there_is(path)) return Json::object();
  Json j = parse_ordered_json(json_text(path, kConfigJson), path.string(), kConfigJson);
  if (!j.is_object()) fail(ErrorKind::checkpoint, path.string() + ": is not a JSON object");
  return j;
}

// tokenizer_config.json, or what says the same in a .gguf file.
Json tokenizer_config(const fs::path& model) {
  const fs::path path = model / "tokenizer_config.json";
  if (there_is(path)) return object_in(path);
  const auto file = gguf::locate(model);
  if (!file) return Json::object();
  const MappedFile mapped(*file);
  return Json::parse(tokenizer_files_from_gguf(gguf::parse(mapped.bytes(), file->string()).metadata).config);
}

// The named special tokens that there are, as texts; a token is a text, or an object with its `content`.
Json special_tokens(const fs::path& model, const Json& config) {
  Json tokens = Json::object();
  const Json map = object_in(model / "special_tokens_map.json");
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    for (const Json* from : {&config, &map}) {
      const Json v = from->value(key, Json());
      const Json text = v.is_object() ? v.value("content", Json()) : v;
      if (!tokens.contains(key) && text.is_string()) tokens[key] = text;
    }
  return tokens;
}

// Templates by name, as the files of a checkpoint have them; a single one is the default.
std::map<std::string, Source> named_templates(const fs::path& model, const Json& config) {
  std::map<std::string, Source> found;
  if (const auto file = model / "chat_template.jinja"; there_is(file))
    found["default"] = {file.string(), read_text(file)};
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(model / "additional_chat_templates", ignored))
    if (entry.path().extension() == ".jinja")
      found[entry.path().stem().string()] = {entry.path().string(), read_text(entry.path())};
  if (!found.empty()) return found;
  const auto add = [&](const Json& v, const std::string& where) {
    if (v.is_string()) found["default"] = {where, v};
    for (const Json& t : v.is_array() ? v : Json::array())
      if (t.is_object() && t.contains("name") && t["name"].is_string() && t.contains("template") &&
          t["template"].is_string())
        found[t["name"]] = {where, t["template"]};
  };
  const bool folder = fs::is_directory(model, ignored);
  add(config.value("chat_template", Json()),
      (folder ? model / "tokenizer_config.json" : model).string() + ": chat_template");
  if (found.empty())
    add(object_in(model / "chat_template.json").value("chat_template", Json()),
        (model / "chat_template.json").string());
  return found;
}

// Whether `path` is a template, not a model.
bool is_template(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && path.extension() != ".gguf";
}

// The template that `name` means, and in `with_tools` the checkpoint's own for chats with tools.
Source source_of(const fs::path& model, const std::string& name, const Json& config,
                 std::optional<Source>& with_tools) {
  for (const Builtin& b : kBuiltins)
    if (name == b.name) return {"built-in chat template " + name, std::string(kText) + std::string(b.source)};
  if (!name.empty()) return {name, read_text(name)};
  if (is_template(model)) return {model.string(), read_text(model)};
  const std::map<std::string, Source> found = named_templates(model, config);
  if (const auto at = found.find("tool_use"); at != found.end()) with_tools = at->second;
  if (const auto at = found.find("default"); at != found.end()) return at->second;
  std::string names;
  for (const auto& [other, source] : found) names += (names.empty() ? " called default, only " : ", ") + other;
  fail(ErrorKind::usage, fmt::format("{}: the checkpoint has no chat template{}; give --chat-template llama3, chatml, "
                                     "mistral, gemma or a FILE",
                                     model.string(), names));
}

Json parsed(const std::string& text, const std::string& what) {
  if (const std::string problem = json_problem(text); !problem.empty())
    fail(ErrorKind::checkpoint, fmt::format("{}: {}", what, problem));
  return parse_ordered_json(text, what, kConfigJson);
}
Json objects(const std::string& text, const std::string& what) {
  Json list = parsed(text, what);
  if (!list.is_array())
    fail(ErrorKind::checkpoint, fmt::format("{}: expected a list, found {}", what, list.type_name()));
  for (size_t i = 0; i < list.size(); ++i)
    if (!list[i].is_object())
      fail(ErrorKind::checkpoint, fmt::format("{}[{}]: expected an object, found {}", what, i, list[i].type_name()));
  return list;
}

// What a model thought has had several names: `reasoning_content` and `thinking` both get the first that there is.
Json with_reasoning(const Json& message) {
  Json reasoning;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"})
    if (reasoning.is_null()) reasoning = message.value(key, Json());
  if (reasoning.is_null()) return message;
  Json out = {{"thinking", reasoning}};
  for (const auto& [key, v] : message.items()) out[key] = v;
  out["reasoning_content"] = reasoning;
  return out;
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;
const std::string& ChatTemplate::where() const { return impl_->where; }

ChatTemplate ChatTemplate::open(const fs::path& model, const std::string& name) {
  if (!there_is(model)) fail(ErrorKind::io, model.string() + ": no such file or folder");
  const bool bare = is_template(model);
  const Json config = bare ? Json::object() : tokenizer_config(model);
  std::optional<Source> with_tools;
  const Source source = source_of(model, name, config, with_tools);
  return ChatTemplate(
      std::make_unique<Impl>(Impl{source.where, bare ? Json::object() : special_tokens(model, config),
                                  jinja::Template::parse(source.text, source.where), std::move(with_tools)}));
}

std::string ChatTemplate::render(const Chat& chat) const {
  Json variables = impl_->tokens;
  const Json more = chat.more.empty() ? Json::object() : parsed(chat.more, "the template's variables");
  if (!more.is_object()) fail(ErrorKind::checkpoint, "the template's variables: expected an object");
  for (const auto& [key, v] : more.items()) variables[key] = v;
  variables["messages"] = Json::array();
  for (const Json& m : objects(chat.messages, "messages")) variables["messages"].push_back(with_reasoning(m));
  variables["tools"] = chat.tools.empty() ? Json() : objects(chat.tools, "tools");
  variables["documents"] = chat.documents.empty() ? Json() : objects(chat.documents, "documents");
  variables["add_generation_prompt"] = chat.add_generation_prompt;
  const std::string json = variables.dump();
  if (chat.tools.empty() || !impl_->with_tools) return impl_->main.render(json);
  return jinja::Template::parse(impl_->with_tools->text, impl_->with_tools->where).render(json);
}

}  // namespace fewbit
