// A cloud's notices that it takes a machine away: the requests to its metadata server and the meaning of the answers.
// Pure except for the function that sends requests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atl::worker {

enum class Cloud : uint8_t { kAws, kGcp, kAzure };

std::string_view ToString(Cloud cloud);  // "aws", "gcp", "azure"

struct MetadataRequest {
  std::string method = "GET";
  std::string path;                  // with its query
  std::vector<std::string> headers;  // "Name: value"
};

struct MetadataAnswer {
  int code = 0;  // HTTP
  std::string body;
};

// Blocks for a second or so; UNAVAILABLE (METADATA_UNAVAILABLE) without an answer.
using AskMetadata = std::function<absl::StatusOr<MetadataAnswer>(const MetadataRequest&)>;

struct SpotNotice {
  absl::Time at;     // when the machine ends, on the wall clock; may be in the past
  std::string what;  // for people
  bool operator==(const SpotNotice&) const = default;
};

// Each parses the answer to one request. Unset: no notice. UNAVAILABLE (METADATA_UNAVAILABLE) for an unexpected code,
// DATA_LOSS (METADATA_MALFORMED) for a body that differs from the cloud's documentation.
//
// .../spot/instance-action: 404, or an action and its time, about two minutes ahead.
absl::StatusOr<std::optional<SpotNotice>> ParseAwsInstanceAction(const MetadataAnswer& answer);
// .../events/recommendations/rebalance: 404, or the time since which the machine is at higher risk.
absl::StatusOr<std::optional<absl::Time>> ParseAwsRebalance(const MetadataAnswer& answer);
// .../instance/preempted: FALSE, or TRUE from half a minute before the end.
absl::StatusOr<std::optional<SpotNotice>> ParseGcpPreempted(const MetadataAnswer& answer, absl::Time now);
// .../scheduledevents: events of all machines of a set; `machine` is this one's name.
absl::StatusOr<std::optional<SpotNotice>> ParseAzureEvents(const MetadataAnswer& answer, std::string_view machine,
                                                           absl::Time now);

struct NoticeReading {
  std::optional<SpotNotice> notice;
  std::string remark;  // for the log only; empty: none
};

// Reads one cloud's notices. Not thread-safe.
class NoticeReader {
 public:
  NoticeReader(Cloud cloud, AskMetadata ask);

  // Sends one round of requests. Errors as of the functions above; the next Read starts anew.
  absl::StatusOr<NoticeReading> Read(absl::Time now);
  // Returns OK if the answering server is this cloud's metadata server.
  absl::Status Probe();

  Cloud cloud() const { return cloud_; }

 private:
  absl::StatusOr<NoticeReading> ReadAws();
  absl::StatusOr<NoticeReading> ReadGcp(absl::Time now);
  absl::StatusOr<NoticeReading> ReadAzure(absl::Time now);

  Cloud cloud_;
  AskMetadata ask_;
  std::string identity_;  // AWS: the session's token; Azure: this machine's name; empty: unknown
};

}  // namespace atl::worker
