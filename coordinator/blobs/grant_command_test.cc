#include "coordinator/blobs/grant_command.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/numbers.h"
#include "common/base/errors.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "the-secret-of-this-test";

TEST(GrantCommandTest, TheRequestNamesTheTaskAndItsPrefixes) {
  spec::TaskGrant grant;
  grant.token = {.task_id = "j1/train_expert-2", .store_epoch = 4, .attempt = 3, .attempt_secret = kSecret};
  grant.job_id = "j1";
  grant.kind = spec::TaskKind::kTrainExpert;
  grant.storage = {.reads = {"s3://b/datasets/d/"}, .writes = {"s3://b/jobs/j1/train_expert-2/4-3/"}};
  const std::string request = GrantRequestJson(grant, "s3://b", absl::Minutes(30));
  EXPECT_EQ(nlohmann::json::parse(request), nlohmann::json::parse(R"({
    "task_id": "j1/train_expert-2", "job": "j1", "kind": "train_expert", "attempt": 3, "blob_store": "s3://b",
    "read_prefixes": ["s3://b/datasets/d/"], "write_prefixes": ["s3://b/jobs/j1/train_expert-2/4-3/"],
    "lifetime_seconds": 1800})"));
  EXPECT_THAT(request, Not(HasSubstr(kSecret)));
}

TEST(GrantCommandTest, KeysAreTakenAsTheAwsToolsPrintThem) {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);  // 2023-11-14T22:13:20Z
  const auto keys = ParseGrantedKeys(R"({"Version": 1, "AccessKeyId": "AKIA", "SecretAccessKey": "s/+=",
      "SessionToken": "t==", "Expiration": "2023-11-14T23:13:20Z", "Unknown": [1]})",
                                     now);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys,
            (spec::StorageGrant{
                .access_key = "AKIA", .secret_key = "s/+=", .session_token = "t==", .expires = now + absl::Hours(1)}));
  const auto plain = ParseGrantedKeys(R"({"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "s",
      "Expiration": "2023-11-15T00:13:21+02:00"})",
                                      now);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->session_token, "");
  EXPECT_EQ(plain->expires, now + absl::Seconds(1));
}

TEST(GrantCommandTest, WhatIsWrongWithTheAnswerIsNamedAndNothingOfItRepeated) {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  const std::string head = R"({"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "the-secret-of-this-test")";
  const std::string later = R"(, "Expiration": "2023-11-15T00:00:00Z")";
  struct Row {
    std::string output;
    std::string complaint;
  };
  for (const Row& row : std::vector<Row>{
           {"", "printed 0 bytes that are no JSON object"},
           {kSecret, "no JSON object"},
           {R"(["the-secret-of-this-test"])", "no JSON object"},
           {head + later, "no JSON object"},
           {head + later + "} more", "no JSON object"},
           {R"({"AccessKeyId": "A", "SecretAccessKey": "the-secret-of-this-test"})", "no \"Version\": 1"},
           {R"({"Version": 2, "AccessKeyId": "A"})", "no \"Version\": 1"},
           {R"({"Version": "1"})", "no \"Version\": 1"},
           {R"({"Version": 1, "SecretAccessKey": "the-secret-of-this-test"})", "no AccessKeyId"},
           {R"({"Version": 1, "AccessKeyId": "A"})", "no SecretAccessKey"},
           {R"({"Version": 1, "AccessKeyId": "", "SecretAccessKey": "s"})", "a AccessKeyId that is no text"},
           {R"({"Version": 1, "AccessKeyId": 7, "SecretAccessKey": "s"})", "a AccessKeyId that is no text"},
           {R"({"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "the-secret-of-this-test\r\nX: y"})",
            "a SecretAccessKey that is no text"},
           {R"({"Version": 1, "AccessKeyId": "A", "SecretAccessKey": ")" + std::string(8193, 's') + "\"}",
            "a SecretAccessKey that is no text of 1 to 8192"},
           {head + R"(, "SessionToken": null)" + later + "}", "a SessionToken that is no text"},
           {head + "}", "no Expiration"},
           {head + R"(, "Expiration": 1800000000})", "no Expiration"},
           {head + R"(, "Expiration": "tomorrow"})", "no Expiration"},
           {head + R"(, "Expiration": "2023-11-14T22:13:20Z"})", "expired at 2023-11-14T22:13:20+00:00"},
       }) {
    const absl::Status status = ParseGrantedKeys(row.output, now).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << row.output;
    EXPECT_EQ(ErrorReason(status), "STORAGE_GRANT_FAILED") << row.output;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.complaint)) << row.output;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(kSecret))) << row.output;
  }
}

TEST(RunCommandTest, TheProgramReadsTheRequestAndItsOutputIsTheAnswer) {
  const auto echoed = RunCommand({.command = "cat", .input = "{\"task\": 1}"});
  ASSERT_TRUE(echoed.ok()) << echoed.status();
  EXPECT_EQ(*echoed, "{\"task\": 1}");
  // The input is larger than a pipe, and the program does not read it at first.
  const auto counted = RunCommand({.command = "echo first; wc -c", .input = std::string(300'000, 'x')});
  ASSERT_TRUE(counted.ok()) << counted.status();
  EXPECT_EQ(*counted, "first\n300000\n");
}

TEST(RunCommandTest, EveryOtherEndIsAnError) {
  struct Row {
    std::string command;
    absl::Duration limit = absl::Seconds(60);
    std::string complaint;
  };
  for (const Row& row : std::vector<Row>{
           {.command = "echo the-secret-of-this-test; echo the-secret-of-this-test >&2; exit 3",
     .complaint = "exited with code 3"},
           {.command = "/nowhere/to/be/found", .complaint = "exited with code 127"},
           {.command = "kill -TERM $$; sleep 600", .complaint = "was ended by signal 15"},
           {.command = "kill -PIPE $$; sleep 600", .complaint = "was ended by signal 13"},
           {.command = "head -c 65537 /dev/zero; sleep 600", .complaint = "printed more than 65536 bytes"},
           {.command = "sleep 600", .limit = absl::Milliseconds(50), .complaint = "has not ended after 50ms"},
           {.command = "exec >&-; exec 2>&-; sleep 600",
           .limit = absl::Milliseconds(200),
           .complaint = "has not ended after 200ms"},
       }) {
    // As the coordinator does.
    sigset_t blocked;
    sigset_t before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    const auto old = signal(SIGPIPE, SIG_IGN);
    const absl::Status status = RunCommand({.command = row.command, .limit = row.limit}).status();
    signal(SIGPIPE, old);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << row.command;
    EXPECT_EQ(ErrorReason(status), "STORAGE_GRANT_FAILED") << row.command;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.complaint));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(kSecret)));
  }
  const auto whole = RunCommand({.command = "head -c 65536 /dev/zero"});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->size(), 65536u);
}

TEST(RunCommandTest, WhatTheProgramLeavesBehindEndsWithIt) {
  // It also keeps the output open.
  const auto output = RunCommand({.command = "sleep 600 & echo $!"});
  ASSERT_TRUE(output.ok()) << output.status();
  int64_t left = 0;
  ASSERT_TRUE(absl::SimpleAtoi(*output, &left)) << *output;
  // The child is gone, or dead and not yet reaped by its new parent.
  bool ended = false;
  for (int tries = 0; tries < 2000 && !ended; ++tries) {
    std::ifstream file("/proc/" + std::to_string(left) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    ended = text.empty() || text.find(") Z") != std::string::npos;
    if (!ended) absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(ended);
}

TEST(RunCommandTest, ItEndsAtOnceWhenItIsCancelled) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  const absl::Status status =
      RunCommand({.command = "sleep 600", .limit = absl::Hours(1), .cancel_fd = ends[0]}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("was stopped"));
  close(ends[0]);
  close(ends[1]);
}

// The program inherits only its three streams of this process's open descriptors.
TEST(RunCommandTest, NothingElseIsOpenInTheProgram) {
  // Listed by another process than the shell whose they are.
  const auto listed = RunCommand({.command = "ls /proc/$$/fd; true"});
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(*listed, "0\n1\n2\n");
}

}  // namespace
}  // namespace atl::coordinator
