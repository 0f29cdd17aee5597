#include "worker/process/spot_notices.h"

#include <map>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Time At(const char* text) {
  absl::Time time;
  std::string error;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, text, &time, &error)) << error;
  return time;
}

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

// "none", the seconds since the epoch, or the error's reason.
std::string Shown(const absl::StatusOr<std::optional<SpotNotice>>& found) {
  if (!found.ok()) return ErrorReason(found.status());
  if (!found->has_value()) return "none";
  return std::to_string(absl::ToUnixSeconds((*found)->at));
}

struct Case {
  const char* name;
  MetadataAnswer answer;
  std::string expected;
};

TEST(SpotNoticesTest, AwsInstanceActions) {
  const std::string at = std::to_string(absl::ToUnixSeconds(At("2026-11-22T08:22:00Z")));
  const Case cases[] = {
      {"nothing", {404, "<html>not found</html>"}, "none"},
      {"terminate", {200, R"({"action": "terminate", "time": "2026-11-22T08:22:00Z"})"}, at},
      {"stop", {200, R"({"action":"stop","time":"2026-11-22T08:22:00Z","more":1})"}, at},
      {"hibernate", {200, R"({"action":"hibernate","time":"2026-11-22T08:22:00Z"})"}, at},
      {"no JSON", {200, "terminate"}, "METADATA_MALFORMED"},
      {"a list", {200, "[]"}, "METADATA_MALFORMED"},
      {"nothing in it", {200, ""}, "METADATA_MALFORMED"},
      {"no time", {200, R"({"action":"stop"})"}, "METADATA_MALFORMED"},
      {"no text", {200, R"({"action":"stop","time":1})"}, "METADATA_MALFORMED"},
      {"no time in it", {200, R"({"action":"stop","time":"soon"})"}, "METADATA_MALFORMED"},
      {"not this token", {401, ""}, "METADATA_UNAVAILABLE"},
      {"out of order", {500, ""}, "METADATA_UNAVAILABLE"},
  };
  for (const Case& test : cases) {
    EXPECT_EQ(Shown(ParseAwsInstanceAction(test.answer)), test.expected) << test.name;
  }
  EXPECT_THAT((*ParseAwsInstanceAction(cases[1].answer))->what, HasSubstr("terminate"));
}

TEST(SpotNoticesTest, GcpPreemptions) {
  const std::string soon = std::to_string(absl::ToUnixSeconds(kNow) + 30);
  const Case cases[] = {
      {"no", {200, "FALSE"}, "none"},
      {"yes", {200, "TRUE"}, soon},
      {"a line", {200, "TRUE\n"}, soon},
      {"anything", {200, "maybe"}, "METADATA_MALFORMED"},
      {"nothing", {200, ""}, "METADATA_MALFORMED"},
      {"another cloud", {404, ""}, "METADATA_UNAVAILABLE"},
      {"refused", {403, ""}, "METADATA_UNAVAILABLE"},
  };
  for (const Case& test : cases) EXPECT_EQ(Shown(ParseGcpPreempted(test.answer, kNow)), test.expected) << test.name;
}

std::string AzureEvent(const std::string& type, const std::string& resource, const std::string& not_before) {
  return R"({"EventId":"1","EventStatus":"Scheduled","ResourceType":"VirtualMachine","EventType":")" + type +
         R"(","Resources":[")" + resource + R"("],"NotBefore":")" + not_before + R"("})";
}

TEST(SpotNoticesTest, AzureEvents) {
  const auto events = [](const std::string& list) {
    return MetadataAnswer{200, R"({"DocumentIncarnation":3,"Events":[)" + list + "]}"};
  };
  const std::string late = "Sun, 22 Nov 2026 08:23:00 GMT";
  const std::string soon = "Sun, 22 Nov 2026 08:22:00 GMT";
  const auto seconds = [](const char* text) { return std::to_string(absl::ToUnixSeconds(At(text))); };
  const Case cases[] = {
      {"none", events(""), "none"},
      {"an eviction", events(AzureEvent("Preempt", "vm7", soon)), seconds("2026-11-22T08:22:00Z")},
      {"names have no case", events(AzureEvent("Preempt", "VM7", soon)), seconds("2026-11-22T08:22:00Z")},
      {"the end of a set", events(AzureEvent("Terminate", "vm7", soon)), seconds("2026-11-22T08:22:00Z")},
      {"another machine's", events(AzureEvent("Preempt", "vm8", soon)), "none"},
      {"the machine goes on", events(AzureEvent("Freeze", "vm7", soon)), "none"},
      {"it has begun", events(AzureEvent("Preempt", "vm7", "")), std::to_string(absl::ToUnixSeconds(kNow))},
      {"the first one counts", events(AzureEvent("Preempt", "vm7", late) + "," + AzureEvent("Terminate", "vm7", soon)),
       seconds("2026-11-22T08:22:00Z")},
      {"no time", events(AzureEvent("Preempt", "vm7", "soon")), "METADATA_MALFORMED"},
      {"no type", events(R"({"Resources":["vm7"]})"), "METADATA_MALFORMED"},
      {"no object", events("1"), "METADATA_MALFORMED"},
      {"no list", {200, R"({"Events":1})"}, "METADATA_MALFORMED"},
      {"no JSON", {200, "Events"}, "METADATA_MALFORMED"},
      {"another cloud", {404, ""}, "METADATA_UNAVAILABLE"},
  };
  for (const Case& test : cases) {
    EXPECT_EQ(Shown(ParseAzureEvents(test.answer, "vm7", kNow)), test.expected) << test.name;
  }
}

// A metadata server without a network: answers by "METHOD path", and what it was asked.
struct Script {
  std::map<std::string, std::vector<MetadataAnswer>> answers;  // in turn; the last one for good
  std::vector<std::string> asked;
  std::vector<std::string> headers;

  AskMetadata Ask() {
    return [this](const MetadataRequest& request) -> absl::StatusOr<MetadataAnswer> {
      const std::string key = request.method + " " + request.path.substr(0, request.path.find('?'));
      asked.push_back(key);
      for (const std::string& header : request.headers) headers.push_back(header);
      const auto it = answers.find(key);
      if (it == answers.end()) return MetadataAnswer{404, ""};
      MetadataAnswer answer = it->second.front();
      if (it->second.size() > 1) it->second.erase(it->second.begin());
      return answer;
    };
  }
};

constexpr char kToken[] = "PUT /latest/api/token";
constexpr char kAction[] = "GET /latest/meta-data/spot/instance-action";
constexpr char kRebalance[] = "GET /latest/meta-data/events/recommendations/rebalance";

TEST(NoticeReaderTest, AwsIsAskedWithATokenThatIsRenewedWhenItIsTooOld) {
  Script script;
  script.answers[kToken] = {{200, "first"}, {200, "second"}};
  script.answers[kAction] = {{404, ""}, {401, ""}, {200, R"({"action":"stop","time":"2026-11-22T08:22:00Z"})"}};
  NoticeReader reader(Cloud::kAws, script.Ask());
  const auto quiet = reader.Read(kNow);
  ASSERT_TRUE(quiet.ok()) << quiet.status();
  EXPECT_FALSE(quiet->notice);
  EXPECT_THAT(script.asked, ElementsAre(kToken, kAction, kRebalance));
  const auto noticed = reader.Read(kNow);
  ASSERT_TRUE(noticed.ok()) << noticed.status();
  EXPECT_TRUE(noticed->notice);
  EXPECT_THAT(script.asked, ElementsAre(kToken, kAction, kRebalance, kAction, kToken, kAction));
  EXPECT_EQ(script.headers.back(), "X-aws-ec2-metadata-token: second");
}

TEST(NoticeReaderTest, ARebalanceIsOnlyARemark) {
  Script script;
  script.answers[kToken] = {{200, "t"}};
  script.answers[kRebalance] = {{200, R"({"noticeTime": "2026-11-22T08:00:00Z"})"}};
  NoticeReader reader(Cloud::kAws, script.Ask());
  const auto reading = reader.Read(kNow);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_FALSE(reading->notice);
  EXPECT_THAT(reading->remark, HasSubstr("since 2026-11-22T08:00:00"));
}

TEST(NoticeReaderTest, AzureIsNotJudgedBeforeTheMachinesNameIsKnown) {
  Script script;
  script.answers["GET /metadata/scheduledevents"] = {{200, R"({"Events":[)" + AzureEvent("Preempt", "vm7", "") + "]}"}};
  NoticeReader reader(Cloud::kAzure, script.Ask());
  EXPECT_EQ(ErrorReason(reader.Read(kNow).status()), "METADATA_UNAVAILABLE");
  script.answers["GET /metadata/instance/compute/name"] = {{200, "vm7\n"}};
  const auto reading = reader.Read(kNow);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_TRUE(reading->notice);
}

TEST(NoticeReaderTest, EveryCloudIsKnownByItsOwnAnswersOnly) {
  const std::map<Cloud, std::string> answered = {{Cloud::kAws, kToken},
                                                 {Cloud::kGcp, "GET /computeMetadata/v1/instance/id"},
                                                 {Cloud::kAzure, "GET /metadata/instance/compute/name"}};
  for (const auto& there : answered) {
    Script script;
    script.answers[there.second] = {{200, "x"}};
    for (const auto& asked : answered) {
      EXPECT_EQ(NoticeReader(asked.first, script.Ask()).Probe().ok(), asked.first == there.first)
          << ToString(asked.first) << " on " << ToString(there.first);
    }
  }
}

}  // namespace
}  // namespace atl::worker
