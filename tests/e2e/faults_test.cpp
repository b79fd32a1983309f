// Whatever the system does, nothing is lost and nothing half written: calls that fail, kills of conversions, results
// that cannot be written, stop requests, files that become shorter. scripts/soak does more of the same.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "src/core/files/bus_error.h"
#include "src/core/mapped_file.h"
#include "src/eval/verify_files.h"
#include "src/quant/journal/journal.h"
#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class Faults : public CommandTest {
 protected:
  static std::string preload(const std::string& variables) {
    return "env LD_PRELOAD='" + in_build("tests/libfaults.so") + "' " + variables + " ";
  }
  // How often the command calls what.
  std::map<std::string, long> calls_of(const std::string& command) {
    done(preload("COUNT_TO=calls") + command);
    std::istringstream lines(bytes_of_file(dir / "calls"));
    std::map<std::string, long> calls;
    std::string name;
    for (long n = 0; lines >> name >> n;) calls[name] = n;
    return calls;
  }
  // Goes on with a run, or starts a conversion again.
  ProcessResult go_on(const std::string& command, bool resumes) {
    if (!resumes || !fs::exists(dir / "out.partial"))
      return fs::exists(dir / "out") ? ProcessResult{0, "", ""} : run(command);
    const ProcessResult r = run(command + " --resume");
    return r.exit_code == 0 ? r : run(command + " --restart");
  }
  void expect_one_line(const ProcessResult& r, const std::string& what) {
    EXPECT_TRUE(r.exit_code == 1 || r.exit_code == 2) << what << ": exit " << r.exit_code << "\n" << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << what << ": " << r.err;
  }
  // Some of the calls of every kind fail, once or from then on.
  void every_kind_of_call_fails(const std::string& command, bool resumes) {
    std::map<std::string, long> calls = calls_of(command);
    const auto whole = files("out");
    int failed = 0;
    for (const auto& [call, count] : calls) {
      const long step = std::max(1l, count / 3);
      for (long at = std::min(count, 1 + step / 2), i = 0; at > 0 && at <= count; at += step, ++i) {
        fs::remove_all(dir / "out");
        fs::remove_all(dir / "out.partial");
        const std::string error = call == "fsync" || i % 2 ? std::to_string(EIO) : std::to_string(ENOSPC);
        const std::string what = command + ": " + call + " " + std::to_string(at) + " of " + std::to_string(count);
        const ProcessResult r =
            run(preload("FAIL_CALL=" + call + " FAIL_AT=" + std::to_string(at) + " FAIL_ERRNO=" + error +
                        " FAIL_LASTS=" + std::to_string(i % 3 == 2 && call != "new")) +
                command);
        if (r.exit_code != 0) expect_one_line(r, what);
        failed += r.exit_code != 0;
        if (fs::exists(dir / "out")) {
          EXPECT_TRUE(files("out") == whole) << what;
        }
        const ProcessResult again = go_on(command, resumes);
        EXPECT_EQ(again.exit_code, 0) << what << ", then: " << again.err;
        EXPECT_TRUE(files("out") == whole) << what;
      }
    }
    EXPECT_GT(failed, 5) << "hardly a call that failed ended the run";
  }
};

#if defined(__SANITIZE_ADDRESS__)
#define FEWBIT_NEEDS_PRELOAD() GTEST_SKIP() << "nothing can be loaded in front of an instrumented program"
#else
#define FEWBIT_NEEDS_PRELOAD() (void)0
#endif

TEST_F(Faults, AFailingCallEndsARunInALineAndItGoesOn) {
  FEWBIT_NEEDS_PRELOAD();
  every_kind_of_call_fails("quantize rtn " + kDemo + " out --device cpu --threads 1 --shard-size 3MB", true);
}

// While statics are made and arguments declared nobody catches, and parts of the libraries let nothing through: still a
// line, never an abort.
TEST_F(Faults, NoMemoryAtAllIsALine) {
  FEWBIT_NEEDS_PRELOAD();
  for (const int at : {1, 100, 335, 1000, 2339, 4343, 8000}) {
    const ProcessResult r =
        run(preload("FAIL_CALL=new FAIL_LASTS=1 FAIL_AT=" + std::to_string(at)) + "quantize rtn " + kDemo + " out");
    EXPECT_EQ(r.exit_code, 1) << at << r.err;
    EXPECT_EQ(r.err, "quantize: out of host memory\n") << at;
  }
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST_F(Faults, AFailingCallEndsAConversionInALine) {
  FEWBIT_NEEDS_PRELOAD();
  done("quantize rtn " + kDemo + " packed --device cpu");
  every_kind_of_call_fails("convert to gptq packed out --threads 1", false);
}

TEST_F(Faults, AConversionThatIsKilledIsDoneAgain) {
  FEWBIT_NEEDS_PRELOAD();
  done("quantize rtn " + kDemo + " packed --device cpu");
  const std::string command = "convert to gptq packed out --threads 1";
  const std::map<std::string, long> calls = calls_of(command);
  const auto whole = files("out");
  const long step = std::max(1l, calls.at("write") / 7);
  int killed = 0;
  for (long at = 1;; at += step) {
    fs::remove_all(dir / "out");
    const ProcessResult r = run(preload("KILL_AT=" + std::to_string(at)) + command);
    if (r.exit_code == 0) break;
    ++killed;
    if (!fs::exists(dir / "out")) done(command);
    EXPECT_TRUE(files("out") == whole) << at;
    VerifyResult sound;
    verify_files(dir / "out", sound, {});
    EXPECT_TRUE(sound.problems.empty() && sound.warnings.empty()) << at;
    if (fs::exists(dir / "out.partial")) {  // killed behind its last step; the next start takes it over
      done("convert to gptq packed out2 --threads 1");
      fs::remove_all(dir / "out2");
      fs::remove_all(dir / "out.partial");
    }
  }
  EXPECT_GT(killed, 5);
}

TEST_F(Faults, ResultsThatCannotBeWrittenAreErrors) {
  for (const char* command :
       {"quantize plan rtn", "convert inspect ", "evaluate perplexity --context 64 --max-windows 1 --device cpu"}) {
    const std::string line =
        std::string(command) + (std::string(command).find("inspect") != std::string::npos ? kDemo : "");
    const ProcessResult full = run("sh -c '" + line + " --json - >/dev/full'");
    EXPECT_EQ(full.exit_code, 1) << line << full.err;
    EXPECT_NE(full.err.find("standard output: cannot write: No space left"), std::string::npos) << full.err;
    const ProcessResult first = run(line + " --json /no/such/folder/j.json");
    EXPECT_EQ(first.exit_code, 2) << line;
    EXPECT_NE(first.err.find("/no/such/folder/j.json: cannot be written"), std::string::npos) << first.err;
  }
  const ProcessResult page = run("evaluate report x --html " + dir.path().string());
  EXPECT_EQ(page.exit_code, 2);
  EXPECT_NE(page.err.find("cannot be written: Is a directory"), std::string::npos) << page.err;
  // A reader that goes away is not told of it.
  const ProcessResult head = run("bash -c 'quantize list | true; exit ${PIPESTATUS[0]}'");
  EXPECT_TRUE(head.exit_code == 141 || head.exit_code == 0) << head.exit_code;
  EXPECT_EQ(head.err, "");
  // What is there stays until the new one is whole.
  std::ofstream(dir / "j.json") << "old";
  done("quantize plan rtn --json j.json");
  EXPECT_GT(fs::file_size(dir / "j.json"), 100u);
  EXPECT_EQ(run("quantize plan rtn --json j.json --set broken").exit_code, 2);
  EXPECT_GT(fs::file_size(dir / "j.json"), 100u);
}

TEST_F(Faults, WhatNoOneExpectedIsALine) {
  struct Case {
    std::string command, says;
    int exit_code;
  };
  for (const Case& c : {Case{"quantize rtn " + kDemo + " $(printf 'out\\377')", "not UTF-8", 2},
                        {"quantize rtn --threads 1000000", "--threads", 2},
                        {"quantize rtn --seed -1", "--seed", 2},
                        {"quantize rtn --group-size 9223372036854775807", "group size", 2},
                        {"runner generate --prompt a --temperature nan", "--temperature", 2}}) {
    const ProcessResult r = run(c.command + " --device cpu");
    EXPECT_EQ(r.exit_code, c.exit_code) << c.command << ": " << r.err;
    EXPECT_NE(r.err.find(c.says), std::string::npos) << c.command << ": " << r.err;
  }
  EXPECT_TRUE(fs::is_empty(dir.path())) << "nothing is left behind";
#if !defined(__SANITIZE_ADDRESS__)  // which maps terabytes
  // Threads that the system does not give.
  const ProcessResult few =
      run("bash -c 'ulimit -v 4000000; quantize rtn " + kDemo + " out --device cpu --threads 4096'");
  EXPECT_TRUE(few.exit_code == 0 || few.exit_code == 1 || few.exit_code == 2) << few.exit_code << few.err;
#endif
}

// The kernels that the BLAS takes are part of what decides the bits.
TEST_F(Faults, AnotherBlasIsNamedWithTheWayToSetItAlike) {
  FEWBIT_NEEDS_PRELOAD();
  const std::string command = "quantize gptq --effort quick " + kDemo + " out" + kFastest + " --threads 1";
  const std::map<std::string, long> calls = calls_of(command);
  fs::remove_all(dir / "out");
  const std::string old = "OPENBLAS_CORETYPE=Sandybridge ";
  run(preload(old + "KILL_AT=" + std::to_string(calls.at("write"))) + command);
  ASSERT_GT(recorded_blocks(dir / "out.partial"), 0);
  const ProcessResult r = run("env OPENBLAS_CORETYPE=Nehalem " + command + " --resume");
  EXPECT_EQ(r.exit_code, 2) << r.err;
  EXPECT_NE(r.err.find("BLAS kernels (then OpenBLAS Sandybridge, now OpenBLAS Nehalem)"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("OPENBLAS_CORETYPE=Sandybridge in front of the command"), std::string::npos) << r.err;
  const ProcessResult again = run("env " + old + command + " --resume");
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

// At the next linear, in order: exit 75, and the command that goes on.
TEST_F(Faults, AStopRequestEndsACommandInOrder) {
  done("quantize rtn " + kDemo + " packed --device cpu");
  struct Case {
    std::string command, says;
  };
  for (const Case& c :
       {Case{"quantize gptq --effort best --bits 3 " + kDemo + " out --device cpu --threads 1", "quantize gptq"},
        Case{"evaluate perplexity " + kDemo + " --device cpu --threads 1 --dtype float32",
             "start it again by: evaluate"}})
    for (const char* signal : {"TERM", "INT"}) {
      const ProcessResult r =
          run("timeout --foreground --preserve-status -k 60 -s " + std::string(signal) + " 0.7 " + c.command);
      EXPECT_EQ(r.exit_code, 75) << c.command << r.err;
      EXPECT_NE(r.err.find("stopped"), std::string::npos) << r.err;
      EXPECT_NE(r.err.find(c.says), std::string::npos) << r.err;
      EXPECT_FALSE(fs::exists(dir / "out"));
      fs::remove_all(dir / "out.partial");
    }
}

// A source that becomes shorter while a run reads it: named, where it is seen in time and where the system says it.
TEST_F(Faults, AFileThatBecomesShorterIsNamed) {
  const fs::path file = dir / "f";
  std::ofstream(file, std::ios::binary) << std::string(1 << 20, 'x');
  const MappedFile mapped(file);
  EXPECT_EQ(*mapped.at(0, 1), 'x');
  fs::resize_file(file, 4096);
  EXPECT_NE(message_of([&] { mapped.at(8192, 1); }, ErrorKind::io).find("became shorter"), std::string::npos);
  EXPECT_EXIT(
      {
        install_bus_handler("test");
        volatile const uint8_t* bytes = mapped.bytes().data();
        (void)bytes[(1 << 20) - 1];
      },
      ::testing::ExitedWithCode(1), "f: cannot be read any more");
}

}  // namespace
}  // namespace fewbit::test
