#include "common/base/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl {
namespace {

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() { std::filesystem::create_directories(folder_); }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = ::testing::TempDir() + "files_test." + std::to_string(getpid());
  const std::string path_ = folder_ + "/file";
};

TEST_F(FilesTest, AFileIsReadAsItWasWritten) {
  const std::string bytes("a\0b\n", 4);
  ASSERT_TRUE(WriteFile(folder_ + "/new/folder/file", bytes).ok());
  EXPECT_EQ(ReadFile(folder_ + "/new/folder/file").value(), bytes);
  EXPECT_EQ(ErrorReason(ReadFile(folder_ + "/new/folder/file", 3).status()), "FILE_TOO_LARGE");
  EXPECT_EQ(ErrorReason(ReadFile(path_).status()), "FILE_NOT_FOUND");
  EXPECT_EQ(ErrorReason(ReadFile(folder_).status()), "FILE_ERROR");
  EXPECT_EQ(ErrorReason(WriteFile("/dev/null/file", bytes)), "FILE_ERROR");
}

// A reader that looks at any time finds all of the old text or all of the new one.
TEST_F(FilesTest, AFileIsReplacedAsAWhole) {
  const std::string texts[] = {std::string(1 << 20, 'a'), std::string(1 << 16, 'b')};
  ASSERT_TRUE(WriteFile(path_, texts[0]).ok());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(WriteFile(path_, texts[i % 2]).ok());
    done = true;
  });
  while (!done) {
    const std::string read = ReadFile(path_).value_or("");
    EXPECT_TRUE(read == texts[0] || read == texts[1]) << read.size();
  }
  writer.join();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "parts are left";
}

// As /dev/stdout, which the shell has turned to a file.
TEST_F(FilesTest, ALinkStaysALink) {
  ASSERT_TRUE(WriteFile(path_, "a longer text").ok());
  const std::string link = folder_ + "/link";
  std::filesystem::create_symlink(path_, link);
  ASSERT_TRUE(WriteFile(link, "text").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadFile(path_).value(), "text");
}

TEST_F(FilesTest, AFileOfAnotherUserIsToldWithItsOwnerAndTheReader) {
  ASSERT_TRUE(WriteFile(path_, "secret").ok());
  ASSERT_EQ(chmod(path_.c_str(), 0200), 0);
  // Root can read every file, so the process takes another user first.
  const auto read_as_nobody = [this] {
    if (geteuid() == 0 && seteuid(65534) != 0) std::abort();
    const absl::Status status = ReadFile(path_).status();
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    std::exit(absl::IsPermissionDenied(status) ? 0 : 1);
  };
  EXPECT_EXIT(read_as_nobody(), ::testing::ExitedWithCode(0),
              "cannot read .*/file: Permission denied: owned by [a-z0-9_-]+ \\(uid [0-9]+\\), mode 0200; this process "
              "runs as [a-z0-9_-]+ \\(uid [0-9]+\\)");
}

}  // namespace
}  // namespace atl
