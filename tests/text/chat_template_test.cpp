// Chat templates: the subset of Jinja, the built-in templates, and what is refused.
#include "src/text/chat_template.h"

#include <gtest/gtest.h>

#include "src/text/jinja/jinja.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

std::string rendered(const std::string& source, const json& variables = json::object()) {
  return jinja::Template::parse(source, "test").render(variables.dump());
}

TEST(Jinja, ExpressionsHavePythonsPrecedence) {
  EXPECT_EQ(rendered("{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ -7 % 3 }} {{ 7 // 2 }}"), "7 9 2 3");
  EXPECT_EQ(rendered("{{ 'a' + ' b ' | trim + 'c' }}"), "abc");
  EXPECT_EQ(rendered("{{ not x is defined and 1 < 2 }}"), "True");
  EXPECT_EQ(rendered("{{ 'yes' if 'b' in 'abc' else 'no' }} {{ 'x' not in ['y'] }}"), "yes True");
  EXPECT_EQ(rendered("{{ 1 ~ 'a' ~ none ~ true }}"), "1aNoneTrue");
}

TEST(Jinja, ListsSlicesAndMethods) {
  const json v = {{"l", {1, 2, 3}}, {"s", " a,b "}, {"m", {{"k", "v"}}}};
  EXPECT_EQ(rendered("{{ l[-1] }}{{ l[1:] | join('+') }}{{ l[::-1][0] }}{{ l | length }}", v), "32+333");
  EXPECT_EQ(rendered("{{ s.strip().split(',')[1] }}{{ s.startswith(' a') }}{{ m.k }}{{ m['k'] }}{{ m.none }}", v),
            "bTruevv");
  EXPECT_EQ(rendered("{% for k, x in m.items() %}{{ k }}={{ x }}{% endfor %}", v), "k=v");
  EXPECT_EQ(rendered("{{ m | tojson }}", v), "{\"k\": \"v\"}");
}

TEST(Jinja, LoopsBranchesAndNamespaces) {
  const json v = {{"l", {"a", "b", "c"}}};
  EXPECT_EQ(rendered("{% for x in l %}{{ loop.index }}{{ x }}{{ '' if loop.last else ',' }}{% endfor %}", v),
            "1a,2b,3c");
  EXPECT_EQ(rendered("{% for x in l if x != 'b' %}{{ loop.index0 }}{{ x }}{% endfor %}", v), "0a1c");
  EXPECT_EQ(rendered("{% set ns = namespace(n=0) %}{% for x in l %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", v),
            "3");
  EXPECT_EQ(rendered("{% set n = 0 %}{% for x in l %}{% set n = 1 %}{% endfor %}{{ n }}", v), "0")
      << "a loop has its own scope";
  EXPECT_EQ(rendered("{% if l[0] == 'b' %}1{% elif l[0] == 'a' %}2{% else %}3{% endif %}", v), "2");
}

TEST(Jinja, WhitespaceAsHuggingFaceRendersIt) {
  EXPECT_EQ(rendered("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(rendered("a \n {%- if true -%} \n b {%- endif %}\n"), "ab");
  EXPECT_EQ(rendered("{# gone #}\nx {{- ' y' -}} z"), "x yz");
}

const char* const kMessages =
    R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi? "},
        {"role": "assistant", "content": "Hello."}])";

class Templates : public ::testing::Test {
 protected:
  void SetUp() override { config({{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}}); }
  void config(const json& j) { std::ofstream(dir / "tokenizer_config.json") << j.dump(); }
  std::string render(const std::string& name, bool prompt = false) {
    return ChatTemplate::open(dir.path(), name).render({.messages = kMessages, .add_generation_prompt = prompt});
  }
  TempDir dir;
};

TEST_F(Templates, BuiltIn) {
  EXPECT_EQ(render("llama3"),
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe "
            "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
            "Hi?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>");
  EXPECT_EQ(render("chatml", true),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi? "
            "<|im_end|>\n<|im_start|>assistant\nHello."
            "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(render("mistral"), "<s>[INST] Be brief.\n\n Hi?  [/INST] Hello.</s>");
  EXPECT_EQ(render("gemma"),
            "<s><start_of_turn>user\nBe brief.\n\nHi?<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n");
}

TEST_F(Templates, TheCheckpointsOwn) {
  std::string what;
  EXPECT_EQ(error_of([&] { render(""); }, &what), ErrorKind::usage);
  EXPECT_NE(what.find("--chat-template"), std::string::npos) << what;
  config({{"bos_token", "<s>"},
          {"chat_template",
           {{{"name", "tools"}, {"template", "no"}},
            {{"name", "default"}, {"template", "{{ bos_token }}{{ messages[1]['content'] }}"}}}}});
  EXPECT_EQ(render(""), "<s> Hi? ");
  std::ofstream(dir / "chat_template.jinja") << "{{ messages | length }}";
  EXPECT_EQ(render(""), "3") << "the file comes first";
}

TEST_F(Templates, WhatAChatBringsReachesTheTemplate) {
  const auto write = [&](const std::string& source) { std::ofstream(dir / "chat_template.jinja") << source; };
  const auto text = [&](const Chat& chat) { return ChatTemplate::open(dir.path(), "").render(chat); };
  write(
      "{{ tools }} {{ documents }} {{ enable_thinking is defined }} {{ pad_token is defined }} {{ "
      "add_generation_prompt }}");
  EXPECT_EQ(text({.messages = "[]"}), "None None False False False") << "as transformers passes them";
  write("{{ tools | tojson }}{{ documents | length }}{{ enable_thinking }}{{ bos_token }}{{ eos_token }}");
  EXPECT_EQ(text({.messages = "[]",
                  .tools = R"([{"b": 1, "a": 1.0}])",
                  .documents = "[{}]",
                  .more = R"({"enable_thinking": false})"}),
            R"([{"b": 1, "a": 1.0}]1False<s></s>)");
  write(
      "{% for m in messages %}{{ m | tojson }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endfor "
      "%}");
  EXPECT_EQ(
      text({.messages = R"([{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}])"}),
      R"({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}f)");
  EXPECT_EQ(text({.messages = R"([{"role": "a", "reasoning": "r"}])"}),
            R"({"thinking": "r", "role": "a", "reasoning": "r", "reasoning_content": "r"})");
}

TEST_F(Templates, AnotherOneForTools) {
  config({{"chat_template",
           {{{"name", "default"}, {"template", "plain"}},
            {{"name", "tool_use"}, {"template", "{{ tools | length }} tools"}}}}});
  const ChatTemplate chat = ChatTemplate::open(dir.path(), "");
  EXPECT_EQ(chat.render({.messages = "[]"}), "plain");
  EXPECT_EQ(chat.render({.messages = "[]", .tools = "[{}]"}), "1 tools");
  config({{"chat_template", {{{"name", "rag"}, {"template", "x"}}}}});
  std::string what;
  EXPECT_EQ(error_of([&] { render(""); }, &what), ErrorKind::usage);
  EXPECT_NE(what.find("only rag"), std::string::npos) << what;
}

TEST_F(Templates, BrokenChatsAreNamed) {
  const ChatTemplate chat = ChatTemplate::open(dir.path(), "chatml");
  for (const auto& [given, word] : std::vector<std::pair<Chat, const char*>>{
           {{.messages = "[1]"}, "messages[0]: expected an object, found number"},
           {{.messages = "{}"}, "messages: expected a list"},
           {{.messages = "[}"}, "messages: is no JSON at byte 2"},
           {{.messages = "[]", .tools = "[3]"}, "tools[0]"},
           {{.messages = "[]", .more = R"({"x": 18446744073709551615})"}, "64 bits"},
           {{.messages = std::string(1000000, '[')}, "nested more than"}}) {
    std::string what;
    EXPECT_EQ(error_of([&, &given = given] { chat.render(given); }, &what), ErrorKind::checkpoint);
    EXPECT_NE(what.find(word), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace fewbit::test
