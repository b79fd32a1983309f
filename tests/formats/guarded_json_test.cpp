// Numbers that are not finite, as Python's json writes them.
#include "formats/guarded_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/support.h"

namespace fewbit::test {
namespace {

using nlohmann::ordered_json;

std::string problem(const std::string& text, const JsonBudget& budget = kConfigJson) {
  return message_of([&] { parse_json(text, "f", budget); }, ErrorKind::checkpoint);
}

TEST(GuardedJson, ReadsWhatPythonWrites) {
  const ordered_json j = parse_ordered_json(
      R"({"NaN": "Infinity", "a": [0.0, Infinity, -Infinity], "b": {"c": NaN, "d": "\"NaN"}, "e": -1})", "f",
      kConfigJson);
  EXPECT_EQ(j["NaN"], "Infinity") << "texts stay texts";
  EXPECT_EQ(j["a"][1].get<double>(), HUGE_VAL);
  EXPECT_EQ(j["a"][2].get<double>(), -HUGE_VAL);
  EXPECT_TRUE(std::isnan(j["b"]["c"].get<double>()));
  EXPECT_EQ(j["b"]["d"], "\"NaN");
  EXPECT_EQ(j["e"], -1);
  EXPECT_EQ(parse_json("Infinity", "f", kConfigJson).get<double>(), HUGE_VAL);
}

TEST(GuardedJson, OnlyWhereItIsAskedAndOnlyAsNumbers) {
  EXPECT_NE(problem(R"({"a": Infinity})", kTableJson).find("not JSON: syntax error at byte 7"), std::string::npos);
  for (const char* text : {R"({"a": 1Infinity})", R"({"a": --Infinity})", R"({"a": Infinit})", R"({"a": +Infinity})",
                           R"({"a": NaNa})", R"({"a": -NaN})", R"({"a": NaN "b": 1})"})
    EXPECT_NE(problem(text).find("not JSON"), std::string::npos) << text;
  EXPECT_NE(problem("{NaN: 1}").find("the key of an object is no text but NaN"), std::string::npos);
  EXPECT_NE(problem(R"({"a": NaN, "b": })").find("byte 17"), std::string::npos) << "places are those of the file";
  EXPECT_NE(problem(R"({"a": 1e999})").find("beyond the range"), std::string::npos);
  EXPECT_NE(problem("[" + std::string(100, ' ') + "NaN]", {64, 1000, true}).find("such a file may have"),
            std::string::npos);
  EXPECT_NE(problem("[NaN, NaN, NaN]", {64, 128, true}).find("which is the limit"), std::string::npos);
}

TEST(GuardedJson, WritesWhatPythonReads) {
  const std::string text = R"({"a":[0.1,Infinity,-Infinity,[],{}],"b":{"c":NaN,"d":"\"é"},"e":null})";
  const ordered_json j = parse_ordered_json(text, "f", kConfigJson);
  EXPECT_EQ(python_json(j), text);
  EXPECT_EQ(with_words_for_non_finite(j).dump(),
            R"({"a":[0.1,"Infinity","-Infinity",[],{}],"b":{"c":"NaN","d":"\"é"},"e":null})");
  const ordered_json finite = ordered_json::parse(R"({"a":[1,2.5,[],{},[[1]]],"b":{"c":true,"d":"\"é"},"e":{}})");
  for (const int indent : {-1, 0, 2}) EXPECT_EQ(python_json(finite, indent), finite.dump(indent)) << indent;
}

}  // namespace
}  // namespace fewbit::test
