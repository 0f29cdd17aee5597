#include "worker/service/drain_command.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::worker {
namespace {

// A child that runs this program, ends at SIGTERM (or ignores it), and is reaped by the destructor.
class Child {
 public:
  explicit Child(bool ignores_sigterm) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    process_ = fork();
    if (process_ == 0) {
      signal(SIGTERM, ignores_sigterm ? SIG_IGN : SIG_DFL);
      const char byte = 0;
      if (write(ready[1], &byte, 1) != 1) _exit(1);
      for (;;) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~Child() {
    // After Reap there is none, and -1 would mean every process of the machine.
    if (process_ > 0) kill(process_, SIGKILL);
    Reap();
  }
  void Reap() {
    if (process_ > 0) waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  pid_t id() const { return process_; }

 private:
  pid_t process_ = -1;
};

TEST(DrainCommandTest, TheProcessIsAskedToEndAndWaitedFor) {
  const Child child(/*ignores_sigterm=*/false);
  const absl::Status drained = DrainProcess(child.id(), absl::Seconds(30));
  EXPECT_TRUE(drained.ok()) << drained;
}

TEST(DrainCommandTest, OneThatDoesNotEndIsSaid) {
  const Child child(/*ignores_sigterm=*/true);
  EXPECT_EQ(ErrorReason(DrainProcess(child.id(), absl::Milliseconds(10))), "STILL_RUNNING");
}

TEST(DrainCommandTest, OneThatHasEndedIsDrained) {
  pid_t gone = 0;
  {
    Child child(/*ignores_sigterm=*/false);
    gone = child.id();
    kill(gone, SIGKILL);
    child.Reap();
  }
  EXPECT_TRUE(DrainProcess(gone, absl::Seconds(30)).ok());
}

TEST(DrainCommandTest, AnotherProgramIsNotSignalled) {
  EXPECT_EQ(ErrorReason(DrainProcess(1, absl::Milliseconds(10))), "NOT_A_WORKER");
}

TEST(DrainCommandTest, AProcessIsNamedByItsIdOrByAFileWithIt) {
  EXPECT_EQ(ReadProcessId("4711").value(), 4711);
  const std::string path = testing::TempDir() + "drain_command_test.pid";
  std::ofstream(path) << getpid() << "\n";
  EXPECT_EQ(ReadProcessId(path).value(), getpid());
  std::ofstream(path) << "127.0.0.1:7000\n";
  EXPECT_EQ(ErrorReason(ReadProcessId(path).status()), "INVALID_PROCESS_ID");
  EXPECT_EQ(ErrorReason(ReadProcessId(path + ".none").status()), "FILE_NOT_FOUND");
  EXPECT_EQ(ErrorReason(ReadProcessId("").status()), "FILE_NOT_FOUND");
  EXPECT_EQ(ErrorReason(ReadProcessId("0").status()), "INVALID_PROCESS_ID");
  EXPECT_EQ(ErrorReason(ReadProcessId("99999999999999999999").status()), "INVALID_PROCESS_ID");
  unlink(path.c_str());
}

}  // namespace
}  // namespace atl::worker
