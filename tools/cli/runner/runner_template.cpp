// `runner template MODEL --messages FILE`: a chat as the model's template writes it.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/text/corpus.h"
#include "src/text/json_problem.h"
#include "tools/cli/chat.h"
#include "tools/cli/options.h"
#include "tools/cli/runner/runner_commands.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TemplateArgs {
  Common common;
  std::string model, name, messages, tools, documents;
  std::vector<std::string> variables;  // "key=json"
  bool no_generation_prompt = false;
};

Json json_in(const std::string& file) {
  const std::string text = read_text(file);
  if (const std::string problem = json_problem(text); !problem.empty())
    fail(ErrorKind::checkpoint, file + ": " + problem);
  return parse_ordered_json(text, file, kConfigJson);
}

// The lists and the variables that a file of messages and the flags give. A file may hold the list of messages alone,
// or an object with it under `messages`, and with `tools`, `documents` and `chat_template_kwargs`.
Chat chat_of(const TemplateArgs& a) {
  Json given = json_in(a.messages);
  if (given.is_array()) given = Json{{"messages", std::move(given)}};
  if (!given.is_object() || !given.contains("messages"))
    fail(ErrorKind::checkpoint, a.messages + ": expected a list of messages, or an object with `messages`");
  if (!a.tools.empty()) given["tools"] = json_in(a.tools);
  if (!a.documents.empty()) given["documents"] = json_in(a.documents);
  const auto part = [&](const char* key) {
    return given.contains(key) && !given[key].is_null() ? given[key].dump() : std::string();
  };
  Json variables = given.value("chat_template_kwargs", Json::object());
  if (!variables.is_object()) fail(ErrorKind::checkpoint, a.messages + ": chat_template_kwargs: expected an object");
  for (const std::string& v : a.variables) {
    const size_t equals = v.find('=');
    if (equals == std::string::npos || equals == 0)
      fail(ErrorKind::usage, fmt::format("--set: expected key=json, found \"{}\"", v));
    const std::string key = v.substr(0, equals), text = v.substr(equals + 1);
    for (const char* own : {"messages", "tools", "documents", "add_generation_prompt"})
      if (key == own) fail(ErrorKind::usage, fmt::format("--set: {} has a flag of its own", key));
    if (const std::string problem = json_problem(text); !problem.empty())
      fail(ErrorKind::usage, fmt::format("--set {}: {}; a text needs its quotes: --set '{}=\"…\"'", key, problem, key));
    variables[key] = parse_ordered_json(text, "--set " + key, kRecordJson);
  }
  return {part("messages"), part("tools"), part("documents"), variables.dump(), !a.no_generation_prompt};
}

void run_template(const TemplateArgs& a) {
  const ChatTemplate chat = open_chat(a.model, a.name);
  const std::string text = chat.render(chat_of(a));
  if (!a.common.json_to_stdout()) fmt::print("{}", text);
  const Json j = {{"model", a.model},
                  {"template", chat.where()},
                  {"add_generation_prompt", !a.no_generation_prompt},
                  {"text", text}};
  write_json(a.common, j.dump(1) + "\n");
}

}  // namespace

void add_template_command(CLI::App& app) {
  const auto t = std::make_shared<TemplateArgs>();
  CLI::App* c = app.add_subcommand("template", "Print a chat as the model's template writes it");
  c->add_option("MODEL", t->model, "Model folder, .gguf file, or a template (TEMPLATE.jinja)")->required();
  c->add_option("--messages", t->messages, "JSON file: a list of messages, or an object with `messages`")->required();
  c->add_option("--tools", t->tools, "JSON file: a list of tools");
  c->add_option("--documents", t->documents, "JSON file: a list of documents");
  c->add_option("--set", t->variables, "A variable of the template, e.g. enable_thinking=false (repeatable)")
      ->type_name("KEY=JSON")
      ->allow_extra_args(false);
  c->add_flag("--no-generation-prompt", t->no_generation_prompt, "Do not begin the assistant's turn at the end");
  c->add_option("--chat-template", t->name, "Instead of the model's own: llama3, chatml, mistral, gemma, or a FILE");
  c->add_option("--json", t->common.json, "Write the result as JSON to FILE (- for standard output)");
  c->callback([t] { run_template(*t); });
}

}  // namespace fewbit::cli
