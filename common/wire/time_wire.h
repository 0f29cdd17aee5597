// Times and durations between Abseil and proto. Infinite ones become the largest that proto holds.
#pragma once

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace atl::wire {

google::protobuf::Duration ToProto(absl::Duration duration);
absl::Duration FromProto(const google::protobuf::Duration& proto);
google::protobuf::Timestamp ToProto(absl::Time time);
absl::Time FromProto(const google::protobuf::Timestamp& proto);

}  // namespace atl::wire
