// Who may write OUT, and how a new OUT takes the old one's place.
#include "src/quant/journal/claim.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/quant/output/out_folder.h"
#include "tests/quant/journal_fixture.h"

namespace fewbit::test {
namespace {

class ClaimTest : public JournalTest {
 protected:
  void SetUp() override { checkpoint(dir / "model", "model"); }
  static void checkpoint(const fs::path& at, const std::string& recipe) {
    fs::create_directories(at);
    write(at / "config.json", "{}");
    write(at / "quant_report.json", nlohmann::json{{"recipe", recipe}}.dump());
  }
  QuantJob job() const { return {.recipe = "new", .out = dir / "out"}; }
  std::string refused(const QuantJob& j, ErrorKind kind = ErrorKind::usage) {
    return message_of([&] { claim_out(dir / "model", j); }, kind);
  }
};

TEST_F(ClaimTest, AnUnfinishedRunNeedsAWord) {
  run(2);
  const std::string message = refused(job());
  EXPECT_NE(message.find("--resume"), std::string::npos) << message;
  EXPECT_NE(message.find("--restart"), std::string::npos) << message;
  EXPECT_TRUE(fs::exists(partial() / "block-00001/model.safetensors"));
  QuantJob j = job();
  j.resume = true;
  { const RunFolder folder = claim_out(dir / "model", j); }
  EXPECT_TRUE(fs::exists(partial() / "block-00001/model.safetensors"));
  j = job();
  j.restart = true;
  const RunFolder folder = claim_out(dir / "model", j);
  EXPECT_FALSE(fs::exists(partial() / "block-00001"));
}

TEST_F(ClaimTest, WhatHasNoSealedBlockIsTakenOver) {
  run(0);
  fs::create_directory(partial() / "states");
  const RunFolder folder = claim_out(dir / "model", job());
  EXPECT_FALSE(fs::exists(partial() / "states"));
}

TEST_F(ClaimTest, OutMayNotTouchTheModel) {
  fs::create_directory_symlink(dir / "model", dir / "link");
  fs::create_directory(dir / "below");
  for (const char* out : {"model", "model/out", "link", "link/out", "link/../model", "model/", "below/../model/x"})
    for (const bool force : {false, true}) {
      QuantJob j = job();
      j.out = dir / out;
      j.force = force;
      EXPECT_NE(refused(j).find("OUT"), std::string::npos) << out;
    }
  QuantJob j = job();
  j.out = dir.path();
  j.force = true;
  write(dir / "config.json", "{}");
  EXPECT_NE(refused(j).find("holds MODEL"), std::string::npos);
  EXPECT_TRUE(fs::exists(dir / "model/config.json"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "model"), {}), 2);
  EXPECT_NE(message_of([&] { refuse_overlap(dir / "model/m.gguf", dir / "model/m.gguf"); }, ErrorKind::usage), "");
  refuse_overlap(dir / "model", dir / "model2");
}

TEST_F(ClaimTest, ForceReplacesCheckpointsOnly) {
  checkpoint(dir / "out", "old");
  EXPECT_NE(refused(job()).find("exists"), std::string::npos);
  QuantJob j = job();
  j.force = true;
  { const RunFolder folder = claim_out(dir / "model", j); }
  fs::create_directory(dir / "out/other");
  EXPECT_NE(refused(j).find("holds the folder other"), std::string::npos);
  fs::remove(dir / "out/other");
  fs::remove(dir / "out/config.json");
  EXPECT_NE(refused(j).find("not a checkpoint"), std::string::npos);
  EXPECT_FALSE(fs::exists(partial()));
}

TEST_F(ClaimTest, AFinishedRunHasNothingToResume) {
  checkpoint(dir / "out", "new");
  QuantJob j = job();
  j.resume = true;
  check_out(dir / "model", j);
  EXPECT_TRUE(finished_already(j));
  j.recipe = "another";
  EXPECT_NE(message_of([&] { check_out(dir / "model", j); }, ErrorKind::usage).find("\"new\""), std::string::npos);
}

// Killed when the new checkpoint was whole: before it was put in place, when the old one had been put aside, and
// after, when only the rest was left.
TEST_F(ClaimTest, ARunThatWasCompleteIsPutInPlaceAtTheNextStart) {
  for (const char* state : {"before", "aside", "after"}) {
    {
      RunFolder folder = RunFolder::claim(partial());
      Journal journal(folder, kIdentity, Journal::Start::fresh);
      journal.seal(0, tensors_of(0), records_of(0));
      checkpoint(partial() / kBuilt, "new");
      journal.finished(partial() / kBuilt);
    }
    if (state == std::string("aside")) checkpoint(partial() / "replaced", "old");
    if (state == std::string("after")) fs::rename(partial() / kBuilt, dir / "out");
    QuantJob j = job();
    j.resume = true;
    check_out(dir / "model", j);
    EXPECT_TRUE(finished_already(j)) << state;
    EXPECT_FALSE(fs::exists(partial())) << state;
    fs::remove_all(dir / "out");
  }
}

TEST_F(ClaimTest, AnOldOutThatWasToBeReplacedStays) {
  checkpoint(dir / "out", "old");
  {
    RunFolder folder = RunFolder::claim(partial());
    Journal journal(folder, kIdentity, Journal::Start::fresh);
    journal.seal(0, tensors_of(0), records_of(0));
    checkpoint(partial() / kBuilt, "new");
    journal.finished(partial() / kBuilt);
  }
  EXPECT_NE(refused(job()).find("exists"), std::string::npos);
  EXPECT_NE(bytes_of_file(dir / "out/quant_report.json").find("old"), std::string::npos);
  EXPECT_TRUE(fs::exists(partial() / kBuilt));
}

TEST_F(ClaimTest, BothWaysOfReplacingPutTheNewOneThere) {
  for (const auto put : {put_in_place_of, put_in_place_aside}) {
    checkpoint(dir / "built", "new");
    checkpoint(dir / "out", "old");
    put(dir / "built", dir / "out", dir / "aside");
    EXPECT_NE(bytes_of_file(dir / "out/quant_report.json").find("new"), std::string::npos);
    for (const char* name : {"built", "out", "aside"}) fs::remove_all(dir / name);
  }
  checkpoint(dir / "out", "old");
  EXPECT_NE(message_of([&] { put_in_place_aside(dir / "none", dir / "out", dir / "aside"); }, ErrorKind::io), "");
  EXPECT_NE(bytes_of_file(dir / "out/quant_report.json").find("old"), std::string::npos) << "put back";
  EXPECT_NE(message_of([&] { put_in_place(dir / "model", dir / "out"); }, ErrorKind::io), "");
}

}  // namespace
}  // namespace fewbit::test
