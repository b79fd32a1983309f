// What another process reads of a run: one that is at work, one that was stopped, one that is done, and nothing.
#include "src/quant/journal/run_status.h"

#include <unistd.h>

#include <set>

#include "tests/quant/journal_fixture.h"

namespace fewbit::test {
namespace {

class Status : public JournalTest {
 protected:
  fs::path out() const { return dir / "out"; }
  RunStatus read() const { return read_status(out()); }
};

TEST_F(Status, OfARunAtWork) {
  RunFolder folder = RunFolder::claim(partial());
  Journal j(folder, kIdentity, Journal::Start::fresh);
  j.seal(0, tensors_of(0), records_of(0));
  StatusFile file(partial(), {.blocks = 4, .planned_seconds = 100, .planned_host_bytes = 1 << 20});
  file.entered("quantize");  // within the first second: the file keeps what it says
  const RunStatus s = read();
  EXPECT_EQ(s.state, RunStatus::State::running);
  EXPECT_TRUE(s.told);
  EXPECT_EQ(s.phase, "load");
  EXPECT_EQ(s.blocks, 4);
  EXPECT_EQ(s.sealed_blocks, 1);
  EXPECT_EQ(s.holder.pid, ::getpid());
  EXPECT_EQ(s.planned_host_bytes, 1 << 20);
  EXPECT_GT(s.disk_bytes, 0);
  ASSERT_TRUE(s.remaining_seconds);
  EXPECT_NEAR(*s.remaining_seconds, 100, 30) << "the plan's, for nothing is done yet";
  EXPECT_NE(s.resume.find("--resume"), std::string::npos);
}

TEST_F(Status, ReadingChangesNothing) {
  RunFolder folder = RunFolder::claim(partial());
  Journal j(folder, kIdentity, Journal::Start::fresh);
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& e : fs::recursive_directory_iterator(dir.path())) all.insert(e.path().string());
    return all;
  };
  const std::set<std::string> before = names();
  const std::string owner = bytes_of_file(partial() / "owner"), journal = bytes_of_file(log());
  read();
  EXPECT_EQ(names(), before);
  EXPECT_EQ(bytes_of_file(partial() / "owner"), owner);
  EXPECT_EQ(bytes_of_file(log()), journal);
  EXPECT_THROW(RunFolder::claim(partial()), Error) << "the lock is still the run's";
}

TEST_F(Status, OfARunThatWasStopped) {
  run(2);
  const std::string mark = bytes_of_file(partial() / "owner");
  // The process of the mark is gone: no process has this number.
  write(partial() / "owner", mark.substr(0, mark.find('\n') + 1) + R"({"host":")" + holder_of_run(partial())->host +
                                 R"(","pid":4194305,"started":"2026-01-01T00:00:00Z"})" + "\n");
  write(partial() / "status.json", R"({"phase":"forward","block":2,"blocks":5,"resume":"quantize a b --resume"})");
  const RunStatus s = read();
  EXPECT_EQ(s.state, RunStatus::State::stopped);
  EXPECT_EQ(s.sealed_blocks, 2);
  EXPECT_EQ(s.phase, "forward");
  EXPECT_EQ(s.resume, "quantize a b --resume");
  EXPECT_FALSE(s.remaining_seconds);
}

TEST_F(Status, TornOrForeignWordsAreLeftOut) {
  run(1);
  for (const char* text : {"{\"phase\": 7, \"blocks\": \"many\"}", "{\"phase\"", "[]", ""}) {
    write(partial() / "status.json", text);
    EXPECT_EQ(read().blocks, 0) << text;
  }
}

TEST_F(Status, OfAFinishedOutAndOfNothing) {
  EXPECT_NE(message_of([&] { read(); }, ErrorKind::io).find("neither a finished checkpoint"), std::string::npos);
  fs::create_directory(partial());  // no run's: it has no mark
  EXPECT_THROW(read(), Error);
  fs::create_directory(out());
  write(out() / "quant_report.json", "{}");
  EXPECT_EQ(read().state, RunStatus::State::finished);
}

TEST(Remaining, IsThePlansUntilTheRunTellsItself) {
  EXPECT_FALSE(remaining(5, 0, 0, 0));
  EXPECT_DOUBLE_EQ(*remaining(5, 0, 0.01, 100), 95);
  EXPECT_DOUBLE_EQ(*remaining(50, 0, 0.5, 400), 50) << "the run's own pace, when half of it is done";
  EXPECT_DOUBLE_EQ(*remaining(10, 0.5, 0.75, 0), 10) << "of what was left when it was resumed";
  EXPECT_DOUBLE_EQ(*remaining(10, 0, 1, 5), 0);
}

}  // namespace
}  // namespace fewbit::test
