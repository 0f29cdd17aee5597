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
  const absl::Status drained = DrainProcess(std::to_string(child.id()), absl::Seconds(30));
  EXPECT_TRUE(drained.ok()) << drained;
}

TEST(DrainCommandTest, OneThatDoesNotEndIsSaid) {
  const Child child(/*ignores_sigterm=*/true);
  EXPECT_EQ(ErrorReason(DrainProcess(std::to_string(child.id()), absl::Milliseconds(10))), "STILL_RUNNING");
}

TEST(DrainCommandTest, OneThatHasEndedIsDrained) {
  pid_t gone = 0;
  {
    Child child(/*ignores_sigterm=*/false);
    gone = child.id();
    kill(gone, SIGKILL);
    child.Reap();
  }
  EXPECT_TRUE(DrainProcess(std::to_string(gone), absl::Seconds(30)).ok());
}

TEST(DrainCommandTest, AnotherProgramIsNotSignalled) {
  EXPECT_EQ(ErrorReason(DrainProcess("1", absl::Milliseconds(10))), "NOT_A_WORKER");
}

TEST(DrainCommandTest, AProcessIsNamedByItsIdOrByAFileWithIt) {
  const Child child(/*ignores_sigterm=*/false);
  const std::string path = testing::TempDir() + "drain_command_test.pid";
  std::ofstream(path) << child.id() << "\n";
  EXPECT_TRUE(DrainProcess(path, absl::Seconds(30)).ok());
  std::ofstream(path) << "127.0.0.1:7000\n";
  for (const std::string& none : {path, path + ".none", std::string(), std::string("0"), std::string("-1"),
                                  std::string("99999999999999999999")}) {
    EXPECT_EQ(ErrorReason(DrainProcess(none, absl::ZeroDuration())), "INVALID_PROCESS_ID") << none;
  }
  unlink(path.c_str());
}

}  // namespace
}  // namespace atl::worker
