// The commands of README.md and of docs/guide.md, as they stand there, each in turn in one folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "formats/container.h"
#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

// What follows makes a command quick, or small enough for this machine; nothing that the README says is taken away.
struct Shorter {
  const char *begins, *more;
};
constexpr Shorter kShorter[] = {
    {"quantize gptq ", " --samples 16 --seq-len 256"},
    {"quantize rotate+balance+gptq ", " --samples 16 --seq-len 256"},
    {"evaluate perplexity", " --max-windows 2"},
    {"evaluate compare", " --max-windows 2"},
    {"evaluate report", " --max-windows 2"},
    {"evaluate sweep", " --max-windows 2 --samples 2 --seq-len 64"},
    {"convert synth", " --layers 1"},
    {"runner bench out/ --concurrency", " --requests 8"},
};
// Disk and memory of a checkpoint of real size are no test's.
constexpr const char* kLarge = "llama3-8b";
constexpr const char* kNeedsGpu = "runner bench --ops";

std::vector<std::string> commands_of(const std::string& page) {
  std::vector<std::string> commands;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);)
    for (const char* program : {"quantize ", "evaluate ", "runner ", "convert "})
      if (line.starts_with("    " + std::string(program))) {
        std::string command = line.substr(4, line.find(" #") == std::string::npos ? line.npos : line.find(" #") - 4);
        command.erase(command.find_last_not_of(' ') + 1);
        commands.push_back(std::move(command));
      }
  return commands;
}

class Readme : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    if (IsSkipped()) return;
    fs::copy(kDemo, dir / "model");
    write("model/chat_template.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ");
    write("chats.jsonl",
          R"({"messages": [{"role": "user", "content": "A word?"}, {"role": "assistant", "content": "One."}]})"
          "\n");
    write("chat.json", R"([{"role": "user", "content": "A word?"}])");
    write("tasks.jsonl", R"({"context": "Once upon a", "choices": [" time", " of"], "answer": 0})"
                         "\n");
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "The river runs past the mill, and line " + std::to_string(i) + " ends here.\n";
    write("text.txt", text);
    const auto adapter = container_safetensors.create(dir / "adapter", {});
    const std::string module = "base_model.model.model.layers.0.mlp.down_proj";
    adapter->add(module + ".lora_A.weight", random_normal(DType::f32, {4, 768}, 1, 0.05f));
    adapter->add(module + ".lora_B.weight", random_normal(DType::f32, {256, 4}, 2, 0.05f));
    adapter->finish();
    fs::rename(dir / "adapter/model.safetensors", dir / "adapter/adapter_model.safetensors");
    write("adapter/adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": 16})");
    done("quantize fp8 model fp8-model --device cpu");
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(dir / name) << text; }
};

// Those of one program; the others work on a checkpoint that `quantize` has made.
class ReadmeOf : public Readme, public ::testing::WithParamInterface<const char*> {};

TEST_P(ReadmeOf, EveryCommandRunsAsItStandsThere) {
  const std::string program = std::string(GetParam()) + " ";
  if (program != "quantize ") done("quantize gptq model/ out/ --samples 16 --seq-len 256");
  const std::vector<std::string> commands = commands_of(bytes_of_file(in_source("README.md")));
  ASSERT_GT(commands.size(), 25u);
  size_t ran = 0;
  for (std::string command : commands) {
    if (!command.starts_with(program)) continue;
    if (command == kNeedsGpu || command.find(kLarge) != std::string::npos) continue;
    if (command.starts_with("runner serve")) continue;  // serves until it is stopped; serve_test.cpp runs it
    SCOPED_TRACE(command);
    // Several commands make `out`: each is another way, and begins with nothing there.
    if (command.starts_with("quantize gptq ") || command.starts_with("quantize rotate+balance+gptq "))
      fs::remove_all(dir / "out");
    for (const Shorter& s : kShorter)
      if (command.starts_with(s.begins)) command += s.more;
    const ProcessResult r = run(command);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_FALSE(r.out.empty() && r.err.empty() && !command.starts_with("quantize gptq "));
    ++ran;
  }
  EXPECT_GE(ran, 4u) << "of " << program;
}

INSTANTIATE_TEST_SUITE_P(Programs, ReadmeOf, ::testing::Values("quantize", "evaluate", "runner", "convert"),
                         [](const auto& info) { return std::string(info.param); });

// docs/guide.md: MODEL, OUT, RECIPE and N are what a reader fills in.

constexpr std::string_view kAnd = " && ";
constexpr const char* kPrograms[] = {"quantize ", "evaluate ", "runner ", "convert "};

bool is_command(const std::string& text) {
  return std::any_of(std::begin(kPrograms), std::end(kPrograms), [&](const char* p) { return text.starts_with(p); });
}

// What stands between backticks; a line may end inside.
std::vector<std::string> spans_of(std::string page) {
  std::replace(page.begin(), page.end(), '\n', ' ');
  std::vector<std::string> spans;
  for (size_t begin = page.find('`'); begin != page.npos; begin = page.find('`', begin)) {
    const size_t end = page.find('`', begin + 1);
    if (end == page.npos) break;
    spans.push_back(page.substr(begin + 1, end - begin - 1));
    begin = end + 1;
  }
  return spans;
}

// Each once: those between backticks that name what they work on, and those of the indented lines, taken apart at "&&".
std::set<std::string> guide_commands(const std::string& page) {
  std::set<std::string> commands;
  for (const std::string& span : spans_of(page))
    if (is_command(span) && span.find("MODEL") != span.npos) commands.insert(span);
  for (std::string chain : commands_of(page)) {
    for (size_t end = chain.find(kAnd); end != chain.npos; end = chain.find(kAnd)) {
      commands.insert(chain.substr(0, end));
      chain.erase(0, end + kAnd.size());
    }
    commands.insert(chain);
  }
  return commands;
}

// The recipes of its tables. Those of auto stand in commands too, which have their plans already.
std::set<std::string> guide_recipes(const std::string& page) {
  static const std::regex kRecipe(
      R"('?((?:(?:rotate|balance|awq|smoothquant)\+)*(?:rtn|gptq|awq|fp8)(?: [^-'][^ ']*)*)'?( --.*)?)");
  std::set<std::string> recipes;
  for (const std::string& span : spans_of(page))
    if (std::smatch m; std::regex_match(span, m, kRecipe)) recipes.insert("'" + m.str(1) + "'" + m.str(2));
  return recipes;
}

class Guide : public Readme {
 protected:
  const std::string page = bytes_of_file(in_source("docs/guide.md"));
  void expect_zero(const std::string& command) {
    const ProcessResult r = run(command);
    EXPECT_EQ(r.exit_code, 0) << command << "\n" << r.err;
  }
};

TEST_F(Guide, EveryCommandRuns) {
  const std::set<std::string> commands = guide_commands(page);
  ASSERT_GT(commands.size(), 20u);
  done("quantize rtn model made --device cpu");
  for (std::string command : commands) {
    SCOPED_TRACE(command);
    // What a quantization makes is not needed again; the other commands work on a checkpoint that is there.
    const bool quantizes = command.starts_with("quantize ") && command.find(" OUT") != command.npos;
    for (const auto& [word, stands_for] : {std::pair{"RECIPE", "'gptq format=gptq'"}, {"MODEL", "model"}, {" N", " 2"}})
      command = std::regex_replace(command, std::regex(std::string(word) + "(?= |$)"), stands_for);
    // The search of effort=best and the measurements of auto take minutes on any model: theirs is the plan.
    const bool plans = command.find("effort=best") != command.npos || command.starts_with("quantize auto");
    command = std::regex_replace(command, std::regex(" OUT(?= |$)"), !quantizes ? " made" : plans ? "" : " out");
    if (plans) command.insert(sizeof("quantize"), "plan ");
    if (quantizes) command += kFastest;
    if (command.starts_with("evaluate compare")) command += " --max-windows 2";
    expect_zero(command);
    fs::remove_all(dir / "out");
  }
}

TEST_F(Guide, EveryRecipeHasAPlan) {
  const std::set<std::string> recipes = guide_recipes(page);
  ASSERT_GT(recipes.size(), 15u);
  for (const std::string& recipe : recipes) expect_zero("quantize plan " + recipe + " model" + kFastest);
}

}  // namespace
}  // namespace fewbit::test
