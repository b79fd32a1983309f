// The folder of a run and its journal: whose it is, what survives a crash, what is found damaged.
#include "src/quant/journal/journal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "src/core/digest.h"
#include "tests/quant/journal_fixture.h"

namespace fewbit::test {
namespace {

TEST_F(JournalTest, SealedBlocksAreFoundAgain) {
  run(3);
  const Found found = resume();
  EXPECT_EQ(found.blocks, 3);
  EXPECT_EQ(found.note, "");
}

TEST_F(JournalTest, ATornLastRecordIsCutAtEveryByte) {
  run(1);
  const auto one = fs::file_size(log());
  run(2, Journal::Start::resume);
  const std::string whole = bytes_of_file(log());
  ASSERT_GT(whole.size(), one);
  for (size_t bytes = one; bytes < whole.size(); ++bytes) {
    write(log(), whole.substr(0, bytes));
    const Found found = resume();
    ASSERT_EQ(found.blocks, 1) << bytes << " bytes";
    ASSERT_EQ(found.note, "") << "no damage: " << bytes;
    ASSERT_EQ(bytes_of_file(log()), whole) << "the record is written anew where the torn one was";
  }
}

TEST_F(JournalTest, ATornIdentityBeginsFromTheFront) {
  run(0);
  const std::string whole = bytes_of_file(log());
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{40}, whole.size() - 1}) {
    write(log(), whole.substr(0, bytes));
    EXPECT_EQ(resume().blocks, 0) << bytes;
  }
}

TEST_F(JournalTest, LinesThatAreNoRecordsAreNeverTaken) {
  const std::string digest32(32, '0');
  for (const std::string& line : {std::string("5"), std::string("{}"), std::string("\0\xff\x80\n\n\1", 6),
                                  digest32 + " {}", std::string(), digest_of("5") + " 5", digest_of("{}") + " {}",
                                  digest_of("[1") + " [1", digest_of(R"({"layer":2})") + R"( {"layer":2})",
                                  digest_of(R"({"layer":2,"bytes":"x","digest":5,"linears":{}})") +
                                      R"( {"layer":2,"bytes":"x","digest":5,"linears":{}})"}) {
    run(2);
    write(log(), bytes_of_file(log()) + line + "\n");
    const Found found = resume();
    EXPECT_EQ(found.blocks, 2) << line;
    EXPECT_NE(found.note, "") << line;
  }
}

TEST_F(JournalTest, ADamagedBlockAndAllBehindItAreDoneAgain) {
  run(3);
  const fs::path block = partial() / "block-00001/model.safetensors";
  const size_t bytes = fs::file_size(block);
  for (const size_t at : {size_t{0}, size_t{9}, bytes / 2, bytes - 1}) {
    run(3);
    flip(block, at);
    const Found found = resume();
    EXPECT_EQ(found.blocks, 1) << at;
    EXPECT_EQ(found.note, "block 1 was damaged and is done again, with all after it");
  }
  run(3);
  fs::resize_file(block, bytes - 1);
  EXPECT_EQ(resume().blocks, 1) << "shortened";
  run(3);
  fs::remove(block);
  EXPECT_EQ(resume().blocks, 1) << "gone";
}

TEST_F(JournalTest, ADamagedRecordIsSeenInEveryByte) {
  run(2);
  const std::string whole = bytes_of_file(log());
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t at = last; at < whole.size(); at += 7) {
    write(log(), whole);
    flip(log(), at);
    EXPECT_EQ(resume().blocks, 1) << at;
  }
}

TEST_F(JournalTest, ADamagedIdentityConfirmsNothing) {
  run(2);
  flip(log(), 50);
  const std::string before = bytes_of_file(log());
  RunFolder folder = RunFolder::claim(partial());
  const std::string message =
      message_of([&] { Journal(folder, kIdentity, Journal::Start::resume); }, ErrorKind::checkpoint);
  EXPECT_NE(message.find("--restart"), std::string::npos) << message;
  EXPECT_EQ(bytes_of_file(log()), before);
}

TEST_F(JournalTest, WhatDiffersIsNamedKeyByKey) {
  run(2);
  const std::string before = bytes_of_file(log());
  RunFolder folder = RunFolder::claim(partial());
  const std::string message =
      message_of([&] { Journal(folder, R"({"version":"2","seed":0,"allow-rtn":true})", Journal::Start::resume); },
                 ErrorKind::usage);
  EXPECT_NE(message.find("version (then 1, now 2), allow-rtn (then false, now true);"), std::string::npos) << message;
  EXPECT_EQ(message.find("seed"), std::string::npos) << message;
  EXPECT_EQ(bytes_of_file(log()), before);
}

TEST_F(JournalTest, AFolderWithoutSealedBlocksGoes) {
  {
    RunFolder folder = RunFolder::claim(partial());
    Journal j(folder, kIdentity, Journal::Start::fresh);
    EXPECT_TRUE(fs::exists(partial()));
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
  {
    RunFolder folder = RunFolder::claim(partial());
    Journal j(folder, kIdentity, Journal::Start::fresh);
    j.seal(0, tensors_of(0), records_of(0));
  }
  EXPECT_TRUE(fs::exists(partial()));
}

TEST_F(JournalTest, TheSecondOwnerIsRefusedAndNamesTheFirst) {
  const RunFolder first = RunFolder::claim(partial());
  const std::string owner = bytes_of_file(partial() / "owner");
  const std::string message = message_of([&] { RunFolder::claim(partial()); }, ErrorKind::usage);
  EXPECT_NE(message.find("process " + std::to_string(::getpid())), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_EQ(bytes_of_file(partial() / "owner"), owner);
}

TEST_F(JournalTest, OfManyStartsAtOnceOneHasTheFolder) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> have = 0, most = 0, refused = 0, owned = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        try {
          RunFolder folder = RunFolder::claim(partial());
          const int now = ++have;
          if (now > most) most = now;
          ++owned;
          std::this_thread::sleep_for(std::chrono::milliseconds(round % 2));
          --have;
        } catch (const Error& e) {
          EXPECT_EQ(e.kind(), ErrorKind::usage) << e.what();
          ++refused;
        }
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(most, 1);
    EXPECT_GE(owned, 1);
    EXPECT_EQ(owned + refused, 4);
    ASSERT_TRUE(fs::is_empty(dir.path()));
  }
}

TEST_F(JournalTest, FoldersThatAreNoRunsAreLeftAlone) {
  const auto refused = [&](const std::string& word) {
    const std::string message = message_of([&] { RunFolder::claim(partial()); }, ErrorKind::usage);
    EXPECT_NE(message.find(word), std::string::npos) << message;
  };
  fs::create_directory(partial());
  refused("no owner's mark");
  EXPECT_TRUE(fs::is_empty(partial())) << "not even an empty one";
  write(partial() / "thesis.txt", "years of work");
  refused("no owner's mark");
  for (const std::string& mark : {std::string("5\n"), std::string("{}\n"), std::string("\xff\0", 2), std::string()}) {
    write(partial() / "owner", mark);
    refused("no owner's mark");
    EXPECT_EQ(bytes_of_file(partial() / "owner"), mark);
  }
  write(partial() / "owner", "{\"fewbit run\":3}\n");
  refused("another version");
  EXPECT_EQ(bytes_of_file(partial() / "thesis.txt"), "years of work");
  fs::remove_all(partial());
  write(partial(), "a file");
  refused("no owner's mark");
  EXPECT_EQ(bytes_of_file(partial()), "a file");
}

TEST_F(JournalTest, WhatKilledRunsLeftBesideGoesAtTheNextStart) {
  fs::create_directory(dir / ".out.partial-1-0");
  write(dir / ".out.partial-1-0/owner", "{\"fewbit run\":2}\n");
  write(dir / ".out.partial-1-0/journal", "x");
  fs::create_directory(dir / ".out.partial-mine");
  write(dir / ".out.partial-mine/thesis.txt", "years of work");
  { const RunFolder folder = RunFolder::claim(partial()); }
  EXPECT_FALSE(fs::exists(dir / ".out.partial-1-0"));
  EXPECT_TRUE(fs::exists(dir / ".out.partial-mine/thesis.txt"));
}

// Killed between the folder, the owner's file and the mark in it.
TEST_F(JournalTest, WhatWasKilledBeforeItsMarkIsCleared) {
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ::waitpid(gone, nullptr, 0);
  const auto hidden = [&](int64_t pid, int n) {
    return dir / (".out.partial-" + std::to_string(pid) + "-" + std::to_string(n));
  };
  for (const int n : {0, 1, 2, 3}) fs::create_directory(hidden(gone, n));
  write(hidden(gone, 1) / "owner", "");
  write(hidden(gone, 2) / "owner", "");
  write(hidden(gone, 2) / "thesis.txt", "years of work");
  write(hidden(gone, 3) / "thesis.txt", "years of work");
  fs::create_directory(hidden(1, 0));  // of a process that lives, and may be about to write its mark
  { const RunFolder folder = RunFolder::claim(partial()); }
  EXPECT_FALSE(fs::exists(hidden(gone, 0)));
  EXPECT_FALSE(fs::exists(hidden(gone, 1)));
  EXPECT_TRUE(fs::exists(hidden(gone, 2) / "thesis.txt"));
  EXPECT_TRUE(fs::exists(hidden(gone, 3) / "thesis.txt"));
  EXPECT_TRUE(fs::exists(hidden(1, 0)));
}

}  // namespace
}  // namespace fewbit::test
