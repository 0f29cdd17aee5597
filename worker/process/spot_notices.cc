#include "worker/process/spot_notices.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/json_reader.h"

namespace atl::worker {
namespace {

constexpr int kOk = 200;
constexpr int kUnauthorized = 401;
constexpr int kNotFound = 404;

// From GCP's notice to the end.
constexpr absl::Duration kGcpNotice = absl::Seconds(30);

constexpr char kAwsAction[] = "/latest/meta-data/spot/instance-action";
constexpr char kAwsRebalance[] = "/latest/meta-data/events/recommendations/rebalance";

const MetadataRequest kAwsToken{
    .method = "PUT", .path = "/latest/api/token", .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}};
const MetadataRequest kGcpId{.path = "/computeMetadata/v1/instance/id", .headers = {"Metadata-Flavor: Google"}};
const MetadataRequest kGcpPreempted{.path = "/computeMetadata/v1/instance/preempted",
                                    .headers = {"Metadata-Flavor: Google"}};
const MetadataRequest kAzureName{.path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text",
                                 .headers = {"Metadata: true"}};
const MetadataRequest kAzureEvents{.path = "/metadata/scheduledevents?api-version=2020-07-01",
                                   .headers = {"Metadata: true"}};

// The most bytes that an error shows of a malformed answer.
constexpr size_t kMostShown = 80;

absl::Status UnexpectedCode(std::string_view what, std::string_view expected, int code) {
  return MakeError(absl::StatusCode::kUnavailable, "METADATA_UNAVAILABLE",
                   fmt::format("{}: expected HTTP code {}, found {}", what, expected, code));
}

absl::Status Malformed(std::string_view what, std::string_view expected, std::string_view found) {
  return MakeError(absl::StatusCode::kDataLoss, "METADATA_MALFORMED",
                   fmt::format("{}: expected {}, found '{}'", what, expected, found.substr(0, kMostShown)));
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// Names of machines have no case.
bool SameName(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

absl::StatusOr<nlohmann::json> ParseObject(std::string_view what, const std::string& body) {
  absl::StatusOr<nlohmann::json> object = storage::ParseJsonObject(body, what);
  if (!object.ok()) return Malformed(what, "a JSON object", body);
  return object;
}

absl::StatusOr<std::string> Text(std::string_view what, const nlohmann::json& object, const char* name) {
  const auto field = object.find(name);
  if (field != object.end() && field->is_string()) return field->get<std::string>();
  return Malformed(what, fmt::format("a text '{}'", name), object.dump());
}

absl::StatusOr<absl::Time> ParseTime(std::string_view what, const char* format, const std::string& text) {
  absl::Time time;
  std::string error;
  if (absl::ParseTime(format, text, &time, &error)) return time;
  return Malformed(what, "a time", text);
}

// Whether an event of Azure takes the machine away: an eviction, or the end of a machine of a set.
bool TakesAway(std::string_view type) {
  return type == "Preempt" || type == "Terminate";
}

bool Names(const nlohmann::json& event, std::string_view machine) {
  const auto resources = event.find("Resources");
  return resources != event.end() && resources->is_array() &&
         std::any_of(resources->begin(), resources->end(), [&](const nlohmann::json& resource) {
           return resource.is_string() && SameName(resource.get_ref<const std::string&>(), machine);
         });
}

}  // namespace

std::string_view ToString(Cloud cloud) {
  switch (cloud) {
    case Cloud::kAws:
      return "aws";
    case Cloud::kGcp:
      return "gcp";
    case Cloud::kAzure:
      return "azure";
  }
  return "unknown";
}

absl::StatusOr<std::optional<SpotNotice>> ParseAwsInstanceAction(const MetadataAnswer& answer) {
  if (answer.code == kNotFound) return std::nullopt;
  if (answer.code != kOk) return UnexpectedCode(kAwsAction, "200 or 404", answer.code);
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseObject(kAwsAction, answer.body));
  ATOLL_ASSIGN_OR_RETURN(const std::string action, Text(kAwsAction, object, "action"));
  ATOLL_ASSIGN_OR_RETURN(const std::string text, Text(kAwsAction, object, "time"));
  ATOLL_ASSIGN_OR_RETURN(const absl::Time at, ParseTime(kAwsAction, absl::RFC3339_full, text));
  return SpotNotice{.at = at, .what = fmt::format("AWS takes the machine away ({}) at {}", action, text)};
}

absl::StatusOr<std::optional<absl::Time>> ParseAwsRebalance(const MetadataAnswer& answer) {
  if (answer.code == kNotFound) return std::nullopt;
  if (answer.code != kOk) return UnexpectedCode(kAwsRebalance, "200 or 404", answer.code);
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseObject(kAwsRebalance, answer.body));
  ATOLL_ASSIGN_OR_RETURN(const std::string text, Text(kAwsRebalance, object, "noticeTime"));
  return ParseTime(kAwsRebalance, absl::RFC3339_full, text);
}

absl::StatusOr<std::optional<SpotNotice>> ParseGcpPreempted(const MetadataAnswer& answer, absl::Time now) {
  if (answer.code != kOk) return UnexpectedCode(kGcpPreempted.path, "200", answer.code);
  const std::string_view body = Trimmed(answer.body);
  if (body == "FALSE") return std::nullopt;
  if (body != "TRUE") return Malformed(kGcpPreempted.path, "TRUE or FALSE", body);
  return SpotNotice{.at = now + kGcpNotice, .what = "GCP preempts the machine within 30 s"};
}

absl::StatusOr<std::optional<SpotNotice>> ParseAzureEvents(const MetadataAnswer& answer, std::string_view machine,
                                                           absl::Time now) {
  const std::string& what = kAzureEvents.path;
  if (answer.code != kOk) return UnexpectedCode(what, "200", answer.code);
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseObject(what, answer.body));
  const auto events = object.find("Events");
  if (events == object.end() || !events->is_array()) return Malformed(what, "a list 'Events'", answer.body);
  std::optional<SpotNotice> first;
  for (const nlohmann::json& event : *events) {
    if (!event.is_object()) return Malformed(what, "an object in 'Events'", event.dump());
    ATOLL_ASSIGN_OR_RETURN(const std::string type, Text(what, event, "EventType"));
    if (!TakesAway(type) || !Names(event, machine)) continue;
    ATOLL_ASSIGN_OR_RETURN(const std::string text, Text(what, event, "NotBefore"));
    // An event that has begun has no time any more.
    absl::Time at = now;
    if (!text.empty()) {
      ATOLL_ASSIGN_OR_RETURN(at, ParseTime(what, "%a, %d %b %Y %H:%M:%S GMT", text));
    }
    if (first && first->at <= at) continue;
    first = SpotNotice{
        .at = at,
        .what = fmt::format("Azure takes {} away ({}) {}", machine, type, text.empty() ? "now" : "at " + text)};
  }
  return first;
}

NoticeReader::NoticeReader(Cloud cloud, AskMetadata ask) : cloud_(cloud), ask_(std::move(ask)) {}

absl::StatusOr<NoticeReading> NoticeReader::Read(absl::Time now) {
  switch (cloud_) {
    case Cloud::kAws:
      return ReadAws();
    case Cloud::kGcp:
      return ReadGcp(now);
    case Cloud::kAzure:
      return ReadAzure(now);
  }
  return absl::InternalError("no such cloud");
}

absl::Status NoticeReader::Probe() {
  const MetadataRequest& request = cloud_ == Cloud::kAws ? kAwsToken : cloud_ == Cloud::kGcp ? kGcpId : kAzureName;
  ATOLL_ASSIGN_OR_RETURN(const MetadataAnswer answer, ask_(request));
  if (answer.code != kOk) return UnexpectedCode(request.path, "200", answer.code);
  const std::string_view body = Trimmed(answer.body);
  if (body.empty()) return Malformed(request.path, "a text", body);
  if (cloud_ != Cloud::kGcp) identity_ = body;
  return absl::OkStatus();
}

absl::StatusOr<NoticeReading> NoticeReader::ReadAws() {
  if (identity_.empty()) ATOLL_RETURN_IF_ERROR(Probe());
  const auto ask = [this](const char* path) {
    return ask_({.path = path, .headers = {"X-aws-ec2-metadata-token: " + identity_}});
  };
  ATOLL_ASSIGN_OR_RETURN(MetadataAnswer answer, ask(kAwsAction));
  if (answer.code == kUnauthorized) {
    // The token is too old.
    ATOLL_RETURN_IF_ERROR(Probe());
    ATOLL_ASSIGN_OR_RETURN(answer, ask(kAwsAction));
  }
  NoticeReading reading;
  ATOLL_ASSIGN_OR_RETURN(reading.notice, ParseAwsInstanceAction(answer));
  if (reading.notice) return reading;
  ATOLL_ASSIGN_OR_RETURN(answer, ask(kAwsRebalance));
  ATOLL_ASSIGN_OR_RETURN(const std::optional<absl::Time> since, ParseAwsRebalance(answer));
  if (since) {
    reading.remark = fmt::format("AWS says since {} that this machine is likelier to be taken away than others",
                                 absl::FormatTime(*since, absl::UTCTimeZone()));
  }
  return reading;
}

absl::StatusOr<NoticeReading> NoticeReader::ReadGcp(absl::Time now) {
  NoticeReading reading;
  ATOLL_ASSIGN_OR_RETURN(const MetadataAnswer answer, ask_(kGcpPreempted));
  ATOLL_ASSIGN_OR_RETURN(reading.notice, ParseGcpPreempted(answer, now));
  return reading;
}

absl::StatusOr<NoticeReading> NoticeReader::ReadAzure(absl::Time now) {
  // The machine's name is needed to select this machine's events.
  if (identity_.empty()) ATOLL_RETURN_IF_ERROR(Probe());
  NoticeReading reading;
  ATOLL_ASSIGN_OR_RETURN(const MetadataAnswer answer, ask_(kAzureEvents));
  ATOLL_ASSIGN_OR_RETURN(reading.notice, ParseAzureEvents(answer, identity_, now));
  return reading;
}

}  // namespace atl::worker
