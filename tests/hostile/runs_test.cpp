// What a run writes and reads again, in the hands of somebody else: recipes, journals, reports, benches.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "src/core/digest.h"
#include "src/quant/journal/journal.h"
#include "src/quant/journal/run_status.h"
#include "tests/hostile/contained.h"
#include "tests/hostile/readers.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

using Json = nlohmann::json;

std::vector<Hostile> recipes() {
  std::vector<Hostile> cases;
  for (const char* words : {"",
                            " ",
                            "+",
                            "gptq+",
                            "+gptq",
                            "gptq+gptq",
                            "awq",
                            "auto awq",
                            "nothing",
                            "\x1b[2J",
                            "gptq \x1b[2J",
                            "gptq int",
                            "gptq int1",
                            "gptq int9",
                            "gptq int-4",
                            "gptq int99999999999999999999",
                            "gptq int4.5",
                            "gptq g",
                            "gptq g0",
                            "gptq g-1",
                            "gptq g-9223372036854775808",
                            "gptq g99999999999999999999",
                            "gptq g1e9",
                            "gptq g128 g64",
                            "gptq int4 int3",
                            "gptq sym sym",
                            "gptq sym asym",
                            "gptq act=",
                            "gptq act",
                            "gptq act=sideways",
                            "gptq acts=maybe",
                            "gptq =",
                            "gptq =x",
                            "gptq x=",
                            "gptq damp=",
                            "gptq damp=0",
                            "gptq damp=-1",
                            "gptq damp=1",
                            "gptq damp=nan",
                            "gptq damp=inf",
                            "gptq damp=1e999",
                            "gptq damp=0x1",
                            "gptq percentile=0",
                            "gptq percentile=101",
                            "gptq percentile=nan",
                            "gptq alpha=2",
                            "gptq alpha=-1",
                            "gptq alpha=nan",
                            "gptq scale=f8",
                            "gptq effort=more",
                            "gptq kv=int8",
                            "gptq kv=fp4",
                            "gptq format=",
                            "gptq format=nothing",
                            "gptq format=gguf",
                            "gptq format=gguf:",
                            "gptq format=gguf:q9_9",
                            "gptq format=marlin:q4_0",
                            "auto target-bits=1",
                            "auto target-bits=nan",
                            "auto target-bits=1e300",
                            "gptq target-bits=4",
                            "gptq bits=1",
                            "gptq bits=9",
                            "gptq bits=4294967300",
                            "gptq effort=reference act=full g0",
                            "gptq group=0",
                            "gptq method=rtn",
                            "gptq\nrtn",
                            "rtn\trtn",
                            "gptq,rtn",
                            "{\"method\":\"gptq\"}",
                            "gptq # comment"})
    cases.push_back({std::string("\"") + words + "\"", words, "", true});
  cases.push_back({"a group of 63 bits", "gptq g9223372036854775807", "", true});
  cases.push_back({"a word with a zero byte", std::string("gptq \0int4", 10)});
  cases.push_back({"a word of a megabyte", "gptq " + std::string(1 << 20, 'x')});
  cases.push_back({"a number of a megabyte", "gptq g" + std::string(1 << 20, '9')});
  cases.push_back({"a million words", "gptq " + repeated("int4 ", 5'000'000), "", true});
  cases.push_back({"a million links of a chain", repeated("awq+", 400'000) + "gptq"});
  cases.push_back({"noise", "\xff\xfe\x80\x01"});
  return cases;
}

std::string digested(const std::string& lines) {
  std::string text;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) text += digest_of(line) + " " + line + "\n";
  return text;
}

// A journal on which --resume goes on: the identity, then records.
std::vector<Hostile> journals() {
  const std::string identity = "{\"a\":1}\n";
  const Json linear = Json::parse(to_json(LinearRecord{})),
             block = {{"layer", 0}, {"bytes", 1}, {"digest", "x"}, {"linears", {linear}}},
             finished = {{"finished", "x"}}, shard = {{"shard", 0}, {"bytes", 1}, {"digest", "x"}, {"blocks", 1}};
  std::vector<Hostile> cases = {
      {"nothing", "", "", true},
      {"no digests", "{}\n5\n", "", true},
      {"half of a line", digested(identity).substr(0, 9), "", true},
      {"noise", std::string(5000, '\xfe') + "\n", "", true},
      {"a line of ten megabytes", std::string(10 << 20, 'a') + "\n", "", true},
      {"another identity", digested("{\"a\":2}\n"), "other settings"},
      {"an identity that is a number", digested("5\n"), ""},
      {"an identity that is a list", digested("[]\n"), ""},
      {"an identity that is no JSON", digested("{\n"), ""},
      {"an identity a million deep", digested(repeated("[", 1'000'000) + "\n"), ""},
      {"an identity with escape sequences", digested("{\"\\u001b[2J\":1}\n"), ""},
  };
  const Json values = {nullptr, true, 0,  -1,        INT64_MIN,     INT64_MAX,        UINT64_MAX,     1e300,
                       -1e300,  0.5,  "", "\x1b[2J", Json::array(), Json::array({1}), Json::object(), {{"a", 1}}};
  for (const auto& [of, record] : {std::pair{"block", block}, {"shard", shard}, {"finished", finished}})
    for (const auto& [key, was] : record.items())
      for (const Json& v : values) {
        Json changed = record;
        changed[key] = v;
        cases.push_back(
            {std::string(of) + ": " + key + " of " + v.dump(), digested(identity + changed.dump() + "\n"), "", true});
      }
  for (const auto& [key, was] : linear.items())
    for (const Json& v : values) {
      Json changed = block;
      changed["linears"][0][key] = v;
      cases.push_back({"linear: " + key + " of " + v.dump(), digested(identity + changed.dump() + "\n"), "", true});
    }
  for (const char* record : {"5", "{}", "[]", "null", "{\"layer\":0,\"shard\":0}", "1e999", "{\"layer\":0}", "\xff"})
    cases.push_back({std::string("a record of ") + record, digested(identity + record + "\n"), "", true});
  cases.push_back({"a record a million deep", digested(identity + repeated("[", 1'000'000) + "\n"), "", true});
  cases.push_back({"100,000 records", digested(identity + repeated("{\"layer\":0}\n", 1'200'000)), "", true});
  return cases;
}

TEST(HostileRuns, Recipes) {
  const TempDir dir;
  expect_refused(recipes(), [&](const std::string& bytes) { read_recipe_bytes(bytes, dir.path()); });
}

TEST(HostileRuns, Journals) {
  const TempDir dir;
  expect_refused(journals(), [&](const std::string& bytes) {
    RunFolder folder = RunFolder::claim(dir / "out.partial");
    put(folder.dir(), "journal", bytes);
    folder.keep(true);
    recorded_blocks(folder.dir());
    finished_report(folder.dir());
    const Journal journal(folder, "{\"a\":1}", Journal::Start::resume);
  });
}

TEST(HostileRuns, Reports) {
  const TempDir dir;
  const auto read = [&](const std::string& bytes) { read_report_bytes(bytes, dir.path()); };
  const std::string report =
      R"({"recipe":"gptq","model":"m","out":"o","bits_per_weight":4.1,"calibration":"builtin","samples":1,)"
      R"("seq_len":2,"seed":3,"seconds":1.5,"linears":[{"name":"model.layers.0.q_proj","rel_error":0.1}]})";
  expect_refused(hostile_json(report), read);
  std::vector<Hostile> cases;
  const Json whole = Json::parse(report);
  for (const auto& [key, was] : whole.items())
    for (const Json& v : {Json(), Json(true), Json(INT64_MIN), Json(UINT64_MAX), Json(1e300), Json("\x1b[2J"),
                          Json::array({1}), Json::object()}) {
      Json changed = whole;
      changed[key] = v;
      cases.push_back({key + " of " + v.dump(), changed.dump()});
    }
  cases.push_back({"a layer of a thousand digits",
                   R"({"linears":[{"name":"model.layers.)" + std::string(1000, '9') + R"(.q","rel_error":0}]})"});
  cases.push_back({"a linear that is a number", R"({"linears":[1]})"});
  cases.push_back({"an error that is a text", R"({"linears":[{"name":"a","rel_error":"b"}]})"});
  cases.push_back({"a source that ends in a mark", R"({"calibration":" bytes, digest "})"});
  expect_contained(cases, read);
}

TEST(HostileRuns, Benches) {
  const TempDir dir;
  const auto read = [&](const std::string& bytes) { read_bench_bytes(bytes, dir.path()); };
  const std::string bench =
      R"({"ms_per_token":{"mean":1,"p99":2},"tokens_per_s":1,"prefill_tokens_per_s":1,"ttft_ms":1,"device":"d"})";
  expect_refused(hostile_json(bench.substr(0, 1) + "\"ms_per_token\":[]," + bench.substr(1)), read);
  std::vector<Hostile> cases;
  const Json whole = Json::parse(bench);
  for (const auto& [key, was] : whole.items())
    for (const Json& v : {Json(), Json(true), Json(Json::array({1})), Json(Json::object())}) {
      Json changed = whole;
      changed[key] = v;
      cases.push_back({key + " of " + v.dump(), changed.dump()});
    }
  for (const char* more :
       {"\"roofline\":1", "\"roofline\":{}", "\"roofline\":{},\"read_gb_per_s\":1,\"product_tflop_per_s\":1",
        "\"roofline\":{},\"rows\":1", "\"roofline\":{},\"read_gb_per_s\":1,\"product_tflop_per_s\":1,\"rows\":[1]"})
    cases.push_back({more, bench.substr(0, bench.size() - 1) + "," + more + "}"});
  expect_contained(cases, read);
}

TEST(HostileRuns, Status) {
  const TempDir dir;
  const auto read = [&](const std::string& bytes) {
    { RunFolder::claim(dir / "out.partial").keep(true); }
    put(dir / "out.partial", "status.json", bytes);
    read_status(dir / "out");
  };
  expect_contained(hostile_json(R"({"phase":"load","block":1,"blocks":2,"fraction":0.5})"), read);
}

}  // namespace
}  // namespace fewbit::test
