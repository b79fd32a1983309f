// Every value of a valid file becomes every other kind of JSON value, in turn: a result or an Error, never anything
// else. The mutants of one value share a child process, so that there can be some ten thousand.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/model/checkpoint.h"
#include "src/model/synth/synth.h"
#include "src/quant/output/report.h"
#include "tests/hostile/contained.h"
#include "tests/hostile/readers.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Read = std::function<void(const std::string&)>;

const std::vector<Json>& others() {
  static const std::vector<Json> all = [] {
    Json deep = 1;
    for (int i = 0; i < 120; ++i) deep = Json::array({deep});
    return std::vector<Json>{nullptr,
                             true,
                             false,
                             0,
                             1,
                             -1,
                             7,
                             INT64_MAX,
                             INT64_MIN,
                             UINT64_MAX,
                             1e308,
                             -1e308,
                             0.5,
                             1e-320,
                             int64_t{1} << 31,
                             int64_t{1} << 40,
                             "",
                             "x",
                             "\x1b[2J",
                             std::string(10'000, 'a'),
                             Json::array(),
                             Json::array({1}),
                             Json::array({"x"}),
                             Json::array({nullptr}),
                             Json::object(),
                             Json{{"x", 1}},
                             deep};
  }();
  return all;
}

// Paths of at most `most` values, spread over the document.
std::vector<Json::json_pointer> places_in(const Json& document, size_t most) {
  std::vector<Json::json_pointer> all;
  const Json flat = document.flatten();
  for (const auto& [path, value] : flat.items()) {
    Json::json_pointer p(path);
    for (; !p.empty(); p = p.parent_pointer())
      if (std::find(all.begin(), all.end(), p) == all.end()) all.push_back(p);
  }
  std::vector<Json::json_pointer> some;
  const size_t step = (all.size() + most - 1) / most;
  for (size_t i = 0; i < all.size(); i += step) some.push_back(all[i]);
  return some;
}

// All mutants of one place in one child: whatever one does besides an Error ends the child, and its number is said.
void expect_each_contained(const std::string& text, size_t most, const Read& read) {
  const Json document = Json::parse(text);
  std::vector<Hostile> cases;
  for (const Json::json_pointer& at : places_in(document, most)) cases.push_back({at.to_string(), at.to_string()});
  ASSERT_GT(cases.size(), 2u);
  expect_contained(cases, [&](const std::string& path) {
    const Json::json_pointer at(path);
    for (const Json& other : others()) {
      Json mutant = document;
      mutant[at] = other;
      try {
        read(mutant.dump());
      } catch (const Error&) {
      } catch (const std::exception& e) {
        throw std::runtime_error(other.dump().substr(0, 60) + ": " + e.what());
      }
    }
    Json without = document;
    Json& around = without[at.parent_pointer()];
    if (around.is_object())
      around.erase(at.back());
    else
      around.erase(0u);
    read(without.dump());
  });
}

TEST(JsonMutations, OfConfigs) {
  for (const char* preset : {"tiny", "tiny-moe"})
    for (const char* format : {"bf16", "marlin", "gptq", "awq", "compressed-tensors", "fp8"}) {
      if (preset == std::string("tiny-moe") && format != std::string("bf16")) continue;
      const TempDir dir;
      synthesize(dir.path(), {.preset = preset, .format = format}, {});
      expect_each_contained(bytes_of_file(dir / "config.json"), 60, [&](const std::string& bytes) {
        put(dir.path(), "config.json", bytes);
        Checkpoint::open(dir.path());
      });
    }
}

TEST(JsonMutations, OfTokenizers) {
  const TempDir dir;
  const Read read = [&](const std::string& bytes) { read_tokenizer_bytes(bytes, dir.path()); };
  json j = frame({{"a", 0}, {"b", 1}, {"ab", 2}, {"<s>", 3}}, json::array({json::array({"a", "b"})}));
  j["added_tokens"] = {added("<s>", 3)};
  j["normalizer"] = {{"type", "Sequence"},
                     {"normalizers",
                      {{{"type", "NFC"}},
                       {{"type", "Prepend"}, {"prepend", "_"}},
                       {{"type", "Replace"}, {"pattern", {{"Regex", "x+"}}}, {"content", "y"}},
                       {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}}}};
  j["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}, {"split", true}},
        {{"type", "Digits"}, {"individual_digits", true}}}}};
  j["post_processor"] = template_of({special_piece("<s>"), text_piece()}, {{"<s>", 3}});
  j["decoder"] = {{"type", "Sequence"},
                  {"decoders",
                   {{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}},
                    {{"type", "Fuse"}},
                    {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}}}};
  expect_each_contained(j.dump(), 150, read);
  json unigram = j;
  unigram["model"] = {
      {"type", "Unigram"}, {"unk_id", 0}, {"byte_fallback", false}, {"vocab", {{"a", -1.0}, {"b", -2.0}}}};
  expect_each_contained(unigram.dump(), 20, read);
}

TEST(JsonMutations, OfReportsAndJournals) {
  const TempDir dir;
  QuantReport report;
  report.linears = {LinearRecord{}};
  report.experts = {ExpertRecord{}};
  report.kv_scales = {KvRecord{}};
  expect_each_contained(to_json(report), 80, [&](const std::string& b) { read_report_bytes(b, dir.path()); });
  const Json block = {{"layer", 0}, {"bytes", 1}, {"digest", "x"}, {"linears", {Json::parse(to_json(LinearRecord{}))}}};
  expect_each_contained(block.dump(), 80, [&](const std::string& b) { read_journal_bytes("{}\n" + b, dir.path()); });
}

TEST(JsonMutations, OfDataAndTasks) {
  const TempDir dir;
  const Read texts = [&](const std::string& b) { read_documents_bytes(b, dir.path()); };
  const Read tasks = [&](const std::string& b) { read_tasks_bytes(b, dir.path()); };
  expect_each_contained(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},)"
      R"({"role":"assistant","content":"b","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}],)"
      R"("tools":[{"name":"f"}],"documents":[{"title":"t"}],"chat_template_kwargs":{"x":1}})",
      80, texts);
  for (const char* task :
       {R"({"ctx":"c","endings":["a","b"],"label":"1","activity_label":"x"})",
        R"({"goal":"g","sol1":"a","sol2":"b","label":0})",
        R"({"sentence":"s _ t","option1":"a","option2":"b","answer":"1"})",
        R"({"passage":"p","question":"q","answer":true})",
        R"({"subject":"s","question":"q","choices":["a","b"],"answer":1,"x":0,"y":0})",
        R"({"question":{"stem":"q","choices":[{"text":"a","label":"A"},{"text":"b","label":"B"}]},"answerKey":"A"})"})
    expect_each_contained(task, 40, tasks);
}

TEST(JsonMutations, OfSafetensorsHeaders) {
  const TempDir dir;
  expect_each_contained(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                        R"("b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})",
                        40, [&](const std::string& header) {
                          const uint64_t length = header.size();
                          read_safetensors_bytes(
                              std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(9, '\0'),
                              dir.path());
                        });
}

}  // namespace
}  // namespace fewbit::test
