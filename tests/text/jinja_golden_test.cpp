// Templates and expressions with what Jinja renders of them in the environment of transformers (reference folder).
#include <gtest/gtest.h>

#include <fstream>

#include "src/text/jinja/jinja.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

// The order of keys counts.
nlohmann::ordered_json cases_of(const fs::path& file) { return nlohmann::ordered_json::parse(std::ifstream(file)); }

// What is rendered, or "error: …".
std::string outcome(const std::string& source, const std::string& variables, ErrorKind* kind = nullptr) {
  try {
    return jinja::Template::parse(source, "test").render(variables);
  } catch (const Error& e) {
    if (kind) *kind = e.kind();
    return std::string("error: ") + e.what();
  }
}

// Cases whose value is `rendered`, or `error`, whose words count only where raise_exception says them.
void check(const std::string& source, const nlohmann::ordered_json& c, const std::string& what) {
  ErrorKind kind = ErrorKind::io;
  const std::string ours = outcome(source, c.value("variables", nlohmann::ordered_json::object()).dump(), &kind);
  if (c.contains("rendered")) {
    EXPECT_EQ(ours, c["rendered"].get<std::string>()) << what;
  } else {
    EXPECT_TRUE(ours.starts_with("error: ")) << what << " rendered " << ours;
    EXPECT_EQ(kind, ErrorKind::checkpoint) << ours;
  }
}

TEST(JinjaGoldens, Expressions) {
  FEWBIT_NEEDS_REFERENCE("goldens/chat_templates/expressions.cases.json");
  const auto cases = cases_of(reference("goldens/chat_templates/expressions.cases.json"));
  ASSERT_GE(cases.size(), 200u);
  for (const auto& c : cases) check(c["template"], c, c["template"]);
}

TEST(JinjaGoldens, Templates) {
  const fs::path folder = reference("goldens/chat_templates");
  FEWBIT_NEEDS_REFERENCE("goldens/chat_templates");
  int templates = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    ++templates;
    const std::string name = entry.path().stem().string(), source = bytes_of_file(entry.path());
    int number = 0;
    for (const auto& c : cases_of(folder / (name + ".cases.json")))
      check(source, c, name + ", case " + std::to_string(number++));
  }
  EXPECT_GE(templates, 12);
}

TEST(JinjaGoldens, RaisedWordsArePassedOn) {
  FEWBIT_NEEDS_REFERENCE("goldens/chat_templates/simple_turns.jinja");
  const fs::path folder = reference("goldens/chat_templates");
  for (const char* name : {"simple_turns", "tool_calls_xml", "typescript_tools"}) {
    const std::string source = bytes_of_file(folder / (std::string(name) + ".jinja"));
    for (const auto& c : cases_of(folder / (std::string(name) + ".cases.json")))
      if (c.contains("error")) {
        const std::string ours = outcome(source, c["variables"].dump());
        EXPECT_NE(ours.find(c["error"].get<std::string>()), std::string::npos) << ours;
      }
  }
}

}  // namespace
}  // namespace fewbit::test
