// Notices of all three clouds, from a metadata server of the test over real HTTP.
#include "worker/process/preemption.h"

#include <stdlib.h>

#include <optional>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/process/fake_metadata.h"

namespace atl::worker {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

class PreemptionTest : public testing::TestWithParam<Cloud> {
 protected:
  void Watch(std::optional<Cloud> cloud, absl::Duration timeout = kPatience) {
    watch_.emplace(
        PreemptionOptions{
            .cloud = cloud, .metadata_url = fake_.url(), .interval = absl::Milliseconds(5), .timeout = timeout},
        Clock::Real(), [this](const SpotNotice& notice) {
          found_ = notice;
          noticed_.Notify();
        });
  }
  // Some rounds later nothing has been noticed.
  void ExpectQuiet() {
    EXPECT_TRUE(fake_.AwaitAsked(fake_.asked() + 10));
    EXPECT_FALSE(noticed_.HasBeenNotified());
  }
  void ExpectNoticed(absl::Time at) {
    ASSERT_TRUE(noticed_.WaitForNotificationWithTimeout(kPatience));
    EXPECT_EQ(noticed_.HasBeenNotified(), true);
    if (GetParam() == Cloud::kGcp) {
      EXPECT_GT(found_.at, absl::Now());
      EXPECT_LE(found_.at, absl::Now() + absl::Seconds(30));
    } else {
      EXPECT_EQ(found_.at, absl::FromUnixSeconds(absl::ToUnixSeconds(at)));
    }
  }

  const absl::Time at_ = absl::Now() + absl::Minutes(2);
  FakeMetadata fake_{GetParam()};
  absl::Notification noticed_;
  SpotNotice found_;  // once noticed
  std::optional<PreemptionWatch> watch_;
};

TEST_P(PreemptionTest, ANoticeIsSeenOnceItIsThere) {
  Watch(GetParam());
  ExpectQuiet();
  fake_.Notice(at_);
  ExpectNoticed(at_);
}

TEST_P(PreemptionTest, TheCloudIsFoundByItself) {
  fake_.Notice(at_);
  Watch(std::nullopt);
  ExpectNoticed(at_);
}

TEST_P(PreemptionTest, GarbageAndErrorsAreNoNotice) {
  fake_.AnswerNotices({200, "{\"action\": tomorrow"});
  Watch(GetParam());
  ExpectQuiet();
  fake_.AnswerNotices({500, "TRUE"});
  ExpectQuiet();
  fake_.AnswerNotices({200, std::string(1 << 20, 'x')});
  ExpectQuiet();
  fake_.Notice(at_);
  ExpectNoticed(at_);
}

TEST_P(PreemptionTest, AServerThatDoesNotAnswerIsAskedAgain) {
  fake_.Hold();
  Watch(GetParam(), absl::Milliseconds(20));
  // Each of them was given up.
  ASSERT_TRUE(fake_.AwaitAsked(3));
  EXPECT_FALSE(noticed_.HasBeenNotified());
  watch_.reset();
  fake_.Release();
  fake_.Notice(at_);
  Watch(GetParam());
  ExpectNoticed(at_);
}

TEST_P(PreemptionTest, ProxiesOfTheEnvironmentAreNotAsked) {
  setenv("http_proxy", "http://127.0.0.1:1", 1);
  fake_.Notice(at_);
  Watch(GetParam());
  ExpectNoticed(at_);
  unsetenv("http_proxy");
}

INSTANTIATE_TEST_SUITE_P(Clouds, PreemptionTest, testing::Values(Cloud::kAws, Cloud::kGcp, Cloud::kAzure),
                         [](const auto& info) { return std::string(ToString(info.param)); });

TEST(AskOverHttpTest, WhereNobodyListensIsSaidWhereItWasAsked) {
  std::string url;
  {
    FakeMetadata fake(Cloud::kAws);
    url = fake.url();
  }
  const auto answer = AskOverHttp(url, kPatience)({.path = "/latest"});
  EXPECT_EQ(ErrorReason(answer.status()), "METADATA_UNAVAILABLE");
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr(url + "/latest"));
}

TEST(AskOverHttpTest, OnlyHttpIsSpoken) {
  EXPECT_FALSE(AskOverHttp("file://", kPatience)({.path = "/etc/hostname"}).ok());
}

}  // namespace
}  // namespace atl::worker
