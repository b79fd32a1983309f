// `runner template` as a user types it.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

class TemplateCommand : public CommandTest {
 protected:
  void write(const std::string& name, const std::string& text) { std::ofstream(dir / name) << text; }
  void fails(const std::string& flags, int code, const std::string& word) {
    const ProcessResult r = run("runner template " + flags);
    EXPECT_EQ(r.exit_code, code) << flags << "\n" << r.out;
    EXPECT_NE(r.err.find(word), std::string::npos) << flags << ": " << r.err;
    EXPECT_TRUE(r.out.empty()) << r.out;
  }
};

TEST_F(TemplateCommand, PrintsTheText) {
  write("m.json", R"([{"role": "user", "content": "Hi"}])");
  write("tools.json", R"([{"name": "f"}])");
  write("t.jinja",
        "{{ messages[0].content }}|{{ tools | tojson }}|{{ thinking }}|{{ bos_token }}{% if add_generation_prompt "
        "%}>{% endif %}");
  EXPECT_EQ(run("runner template t.jinja --messages m.json").out, "Hi|null||>");
  EXPECT_EQ(
      run("runner template t.jinja --messages m.json --tools tools.json --set thinking=false --set 'bos_token=\"<s>\"' "
          "--no-generation-prompt")
          .out,
      "Hi|[{\"name\": \"f\"}]|False|<s>");
  const Json j = json("runner template " + kDemo + " --chat-template chatml --messages m.json");
  EXPECT_EQ(j["text"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(j["template"], "built-in chat template chatml");
  write("all.json",
        R"({"messages": [{"role": "user", "content": "x"}], "tools": [], "chat_template_kwargs": {"thinking": 1}})");
  EXPECT_EQ(run("runner template t.jinja --messages all.json").out, "x|[]|1|>");
}

TEST_F(TemplateCommand, RefusesInOneLine) {
  write("m.json", "[]");
  write("bad.json", "[{\"role\": }]");
  write("t.jinja", "{{ raise_exception('no') }}");
  fails("t.jinja --messages m.json", 1, "t.jinja: line 1: the chat template refuses: no");
  fails("t.jinja --messages bad.json", 1, "bad.json: is no JSON at byte");
  fails("t.jinja --messages absent.json", 1, "absent.json");
  fails("absent --messages m.json", 1, "absent");
  fails("t.jinja --messages m.json --set x", 2, "key=json");
  fails("t.jinja --messages m.json --set x=abc", 2, "a text needs its quotes");
  fails("t.jinja --messages m.json --set tools=1", 2, "has a flag of its own");
  fails(kDemo + " --messages m.json", 2, "no chat template");
  fails(kDemo + " --messages m.json", 2, "usual for LlamaForCausalLM: llama3");
  fails("t.jinja", 2, "--messages is required");
}

}  // namespace
}  // namespace fewbit::test
