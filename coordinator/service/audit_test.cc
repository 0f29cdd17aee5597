#include "coordinator/service/audit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::coordinator {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

AuditEntry Entry(const std::string& resource) {
  return {.time = absl::FromUnixSeconds(1'700'000'000),
          .subject = "alice",
          .peer = "ipv4:10.0.0.1:4711",
          .method = "CancelJob",
          .resource = resource};
}

class AuditLogTest : public ::testing::Test {
 protected:
  AuditLogTest()
      : folder_(std::filesystem::path(::testing::TempDir()) / ("audit_test." + std::to_string(getpid()))),
        path_(folder_ / "audit.log") {
    std::filesystem::create_directories(folder_);
  }
  ~AuditLogTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<AuditLog> Open() {
    auto log = AuditLog::Open(path_, registry_.get());
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }

  const std::filesystem::path folder_;
  const std::filesystem::path path_;
  const std::unique_ptr<metrics::Registry> registry_ = metrics::Registry::Create("test");
};

TEST(AuditLineTest, SaysWhoDidWhatAndHowItEnded) {
  EXPECT_EQ(AuditLine(Entry("job-1")),
            R"({"time":"2023-11-14T22:13:20.000000Z","subject":"alice","peer":"ipv4:10.0.0.1:4711",)"
            R"("method":"CancelJob","resource":"job-1","code":"OK","reason":""})"
            "\n");
  AuditEntry refused = Entry("job-1");
  refused.status = MakeError(absl::StatusCode::kPermissionDenied, "NOT_YOURS", "a text that may hold anything");
  const json line = json::parse(AuditLine(refused));
  EXPECT_EQ(line["code"], "PERMISSION_DENIED");
  EXPECT_EQ(line["reason"], "NOT_YOURS");
  EXPECT_EQ(AuditLine(refused).find("anything"), std::string::npos);
}

TEST(AuditLineTest, AnyBytesMakeOneLine) {
  const std::string line = AuditLine(Entry(std::string("a\nb\"c\\d\xff\0e", 10)));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_TRUE(json::accept(line)) << line;
  EXPECT_NE(AuditLine(Entry("\x1b\x7f\xc2\x9b")).find(R"("\u001b\u007f\u009b")"), std::string::npos);
}

TEST_F(AuditLogTest, LinesAreThereAtOnceAndSurviveANewStart) {
  auto log = Open();
  log->Write(Entry("a"));
  EXPECT_EQ(Lines(path_).size(), 1u);
  log.reset();
  log = Open();
  log->Write(Entry("b"));
  const std::vector<std::string> lines = Lines(path_);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(json::parse(lines[0])["resource"], "a");
  EXPECT_EQ(json::parse(lines[1])["resource"], "b");
  EXPECT_EQ(std::filesystem::status(path_).permissions() & std::filesystem::perms::others_all,
            std::filesystem::perms::none);
}

TEST_F(AuditLogTest, AMovedFileIsLeftAloneAfterReopening) {
  auto log = Open();
  log->Write(Entry("a"));
  std::filesystem::rename(path_, folder_ / "audit.log.1");
  log->Write(Entry("b"));
  ASSERT_TRUE(log->Reopen().ok());
  log->Write(Entry("c"));
  EXPECT_EQ(Lines(folder_ / "audit.log.1").size(), 2u);
  ASSERT_EQ(Lines(path_).size(), 1u);
  EXPECT_EQ(json::parse(Lines(path_)[0])["resource"], "c");
}

TEST_F(AuditLogTest, AFolderThatIsNotThereIsAnError) {
  const auto log = AuditLog::Open(folder_ / "none" / "audit.log", registry_.get());
  EXPECT_EQ(ErrorReason(log.status()), "AUDIT_LOG_UNWRITABLE");
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("audit.log"));
}

TEST_F(AuditLogTest, APipeThatNobodyReadsIsAnErrorAndIsNotWaitedFor) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const auto log = AuditLog::Open(path_, registry_.get());
  EXPECT_EQ(ErrorReason(log.status()), "AUDIT_LOG_UNWRITABLE");
}

TEST_F(AuditLogTest, APipeThatIsFullHoldsNoCallUp) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  const absl::Cleanup close_reader = [reader] { close(reader); };
  auto log = Open();
  ASSERT_NE(log, nullptr);
  log->Write(Entry("a"));
  EXPECT_THAT(registry_->Text(), HasSubstr("atoll_coordinator_audit_failures_total 0"));
  // Each entry has more than a hundred bytes, so together they exceed the pipe's 64 KiB by far.
  for (int i = 0; i < 10'000; ++i) log->Write(Entry("b"));
  EXPECT_THAT(registry_->Text(), Not(HasSubstr("atoll_coordinator_audit_failures_total 0")));
}

AuditEntry Refusal(const std::string& method) {
  AuditEntry entry = Entry("");
  entry.method = method;
  entry.status = MakeError(absl::StatusCode::kUnauthenticated, "TOKEN_UNKNOWN", "the token is not one of ours");
  return entry;
}

TEST_F(AuditLogTest, AFloodOfRefusedCallsLeavesABoundedNumberOfLinesAndItsCount) {
  auto log = Open();
  // A thousand in every tenth of a second, for ten seconds.
  const auto burst = static_cast<size_t>(kRefusedLines.burst);
  const size_t bound = burst + static_cast<size_t>(kRefusedLines.per_second * 10) + 1;
  for (int tenth = 0; tenth < 100; ++tenth) {
    for (int i = 0; i < 1000; ++i) log->WriteRefused(Refusal("GetJob"), absl::Milliseconds(100 * tenth));
  }
  log->Write(Entry("job-1"));
  log->Write(Entry("job-2"));
  const std::vector<std::string> lines = Lines(path_);
  EXPECT_GT(lines.size(), burst);
  EXPECT_LE(lines.size(), bound + 2);
  int64_t told = 0;
  for (const std::string& line : lines) told += 1 + json::parse(line).value("left_out", int64_t{0});
  EXPECT_EQ(told, 100'002) << "every call is in the log, or counted in it";
  EXPECT_FALSE(json::parse(lines[burst - 1]).contains("left_out"));
  EXPECT_EQ(json::parse(lines[burst])["left_out"], 1000 - static_cast<int64_t>(burst));
  EXPECT_EQ(json::parse(lines.back())["resource"], "job-2");
  EXPECT_FALSE(json::parse(lines.back()).contains("left_out"));
  EXPECT_THAT(registry_->Text(),
              HasSubstr("atoll_coordinator_audit_left_out_total " + std::to_string(100'002 - lines.size())));
}

AuditEntry RefusalOf(const std::string& subject) {
  AuditEntry entry = Entry("job-1");
  entry.subject = subject;
  entry.status = MakeError(absl::StatusCode::kPermissionDenied, "JOB_NOT_YOURS", "it is somebody else's");
  return entry;
}

TEST_F(AuditLogTest, CallersWhoAreNotLetInTakeNoLinesOfOthers) {
  auto log = Open();
  const auto burst = static_cast<size_t>(kRefusedLines.burst);
  // All names share one bucket.
  for (size_t i = 0; i < burst + 50; ++i) {
    AuditEntry entry = Refusal("GetJob");
    entry.subject = "name-" + std::to_string(i);
    log->WriteRefused(entry, absl::ZeroDuration());
  }
  log->WriteRefused(RefusalOf("bob"), absl::ZeroDuration());
  const std::vector<std::string> lines = Lines(path_);
  ASSERT_EQ(lines.size(), burst + 1);
  EXPECT_EQ(json::parse(lines.back())["subject"], "bob");
  EXPECT_EQ(json::parse(lines.back())["left_out"], 50);
}

TEST_F(AuditLogTest, LongTextsAreCut) {
  auto log = Open();
  log->WriteRefused(Refusal("/" + std::string(8000, 'x')), absl::ZeroDuration());
  log->Write(Entry(std::string(4 << 20, '\x01')));
  log->Write(Entry(std::string(kMostText, 'y')));
  const std::vector<std::string> lines = Lines(path_);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(json::parse(lines[0])["method"], "/" + std::string(kMostText - 1, 'x'));
  EXPECT_EQ(json::parse(lines[1])["resource"], std::string(kMostText, '\x01'));
  EXPECT_EQ(json::parse(lines[2])["resource"], std::string(kMostText, 'y'));
}

// A limit on the size of files is a disk that is full for this process alone.
TEST_F(AuditLogTest, AFullDiskIsCountedAndLeavesNoTornLineInTheMiddle) {
  auto log = Open();
  log->Write(Entry("a"));
  const auto size = std::filesystem::file_size(path_);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  const absl::Cleanup restore = [&] { setrlimit(RLIMIT_FSIZE, &before); };
  const rlimit full{.rlim_cur = size + 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  log->Write(Entry("torn"));
  log->Write(Entry("lost"));
  EXPECT_THAT(registry_->Text(), HasSubstr("atoll_coordinator_audit_failures_total 2"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(log->Reopen().ok()) << "of the file that is still there";
  log->Write(Entry("z"));
  const std::vector<std::string> lines = Lines(path_);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1].size(), 10u) << "what the disk took of the torn line";
  EXPECT_EQ(json::parse(lines[2])["resource"], "z");
}

}  // namespace
}  // namespace atl::coordinator
