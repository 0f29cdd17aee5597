#include "common/base/subprocess.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl {
namespace {

class SubprocessTest : public testing::Test {
 protected:
  SubprocessTest() {
    std::string folder = (std::filesystem::temp_directory_path() / "subprocess-XXXXXX").string();
    folder_ = mkdtemp(folder.data());
  }
  ~SubprocessTest() override { std::filesystem::remove_all(folder_); }

  std::string log_file() const { return folder_ + "/log"; }
  std::string Log() const {
    std::ifstream file(log_file());
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  SubprocessOptions Shell(const std::string& script) const {
    return {.command = {"/bin/sh", "-c", script}, .log_file = log_file()};
  }
  // Runs to the end and returns how it ended.
  static std::string Run(const SubprocessOptions& options) {
    const absl::StatusOr<pid_t> pid = StartSubprocess(options);
    if (!pid.ok()) return ErrorReason(pid.status());
    int status = 0;
    waitpid(*pid, &status, 0);
    return DescribeExit(status);
  }

  std::string folder_;
};

TEST_F(SubprocessTest, SaysHowItEnded) {
  EXPECT_EQ(Run(Shell("exit 3")), "exited with code 3");
  EXPECT_EQ(Run(Shell("kill -9 $$")), "was ended by signal 9");
  EXPECT_EQ(Run({.command = {"/no/such/program"}}), "PROGRAM_NOT_FOUND");
  SubprocessOptions no_log = Shell("true");
  no_log.log_file = folder_ + "/missing/log";
  EXPECT_EQ(Run(no_log), "FILE_ERROR");
}

TEST_F(SubprocessTest, AppendsBothOutputsToTheLog) {
  EXPECT_EQ(Run(Shell("echo one; echo two >&2")), "exited with code 0");
  EXPECT_EQ(Run(Shell("echo three")), "exited with code 0");
  EXPECT_EQ(Log(), "one\ntwo\nthree\n");
}

TEST_F(SubprocessTest, VariablesTakeThePlaceOfThisProcesssOwn) {
  setenv("SUBPROCESS_TEST_A", "old", 1);
  setenv("SUBPROCESS_TEST_B", "kept", 1);
  SubprocessOptions options = Shell("echo $SUBPROCESS_TEST_A $SUBPROCESS_TEST_B");
  options.environment = {"SUBPROCESS_TEST_A=new"};
  Run(options);
  EXPECT_EQ(Log(), "new kept\n");
}

TEST_F(SubprocessTest, SignalsAreNeitherBlockedNorIgnored) {
  signal(SIGUSR1, SIG_IGN);
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  EXPECT_EQ(Run(Shell("kill -USR1 $$; exit 0")), "was ended by signal 10");
  EXPECT_EQ(Run(Shell("kill -USR2 $$; exit 0")), "was ended by signal 12");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  signal(SIGUSR1, SIG_DFL);
}

TEST_F(SubprocessTest, NoOtherDescriptorIsOpen) {
  const int leaked = open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  Run({.command = {"/bin/ls", "/proc/self/fd"}, .log_file = log_file()});
  close(leaked);
  EXPECT_EQ(Log(), "0\n1\n2\n3\n") << "3 is the folder that ls reads";
}

TEST_F(SubprocessTest, ReadsAndWritesTheDescriptorsThatAreGiven) {
  int in[2];
  int out[2];
  ASSERT_EQ(pipe2(in, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  ASSERT_EQ(write(in[1], "hello\n", 6), 6);
  close(in[1]);
  EXPECT_EQ(Run({.command = {"/bin/cat"}, .input = in[0], .output = out[1]}), "exited with code 0");
  char text[16] = {};
  EXPECT_EQ(read(out[0], text, sizeof(text)), 6);
  EXPECT_STREQ(text, "hello\n");
  for (const int fd : {in[0], out[0], out[1]}) close(fd);
}

TEST_F(SubprocessTest, ItsGroupIsThereWhenItIsStarted) {
  for (int i = 0; i < 100; ++i) {
    const pid_t pid = *StartSubprocess(Shell("sleep 60"));
    EXPECT_EQ(kill(-pid, SIGKILL), 0);
    kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
  }
}

TEST_F(SubprocessTest, DiesWithTheThreadThatStartedIt) {
  pid_t pid = -1;
  std::thread([&] {
    pid = *StartSubprocess(Shell("echo runs; exec sleep 60"));
    // A thread that ends before the child has asked the kernel does not end it.
    for (int i = 0; i < 1000 && Log().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }).join();
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(DescribeExit(status), "was ended by signal 9");
}

}  // namespace
}  // namespace atl
