// The commands of README.md, as they stand there, each in turn in one folder.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
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
    {"quantize 'rotate+gptq ", " --samples 16 --seq-len 256"},
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

TEST_F(Readme, EveryCommandRunsAsItStandsThere) {
  const std::vector<std::string> commands = commands_of(bytes_of_file(in_source("README.md")));
  ASSERT_GT(commands.size(), 25u);
  for (std::string command : commands) {
    if (command == kNeedsGpu || command.find(kLarge) != std::string::npos) continue;
    if (command.starts_with("runner serve")) continue;  // serves until it is stopped; serve_test.cpp runs it
    SCOPED_TRACE(command);
    // Several commands make `out`: each is another way, and begins with nothing there.
    if (command.starts_with("quantize gptq ") || command.starts_with("quantize 'rotate+gptq "))
      fs::remove_all(dir / "out");
    for (const Shorter& s : kShorter)
      if (command.starts_with(s.begins)) command += s.more;
    const ProcessResult r = run(command);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_FALSE(r.out.empty() && r.err.empty() && !command.starts_with("quantize gptq "));
  }
}

}  // namespace
}  // namespace fewbit::test
