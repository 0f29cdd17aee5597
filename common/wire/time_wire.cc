#include "common/wire/time_wire.h"

#include <algorithm>

namespace atl::wire {
namespace {

// The range of google.protobuf.Duration.
constexpr int64_t kMaxSeconds = 315'576'000'000;

}  // namespace

google::protobuf::Duration ToProto(absl::Duration duration) {
  const absl::Duration most = absl::Seconds(kMaxSeconds);
  const absl::Duration clamped = std::clamp(duration, -most, most);
  absl::Duration rest;
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(clamped, absl::Seconds(1), &rest));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  return proto;
}

absl::Duration FromProto(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

google::protobuf::Timestamp ToProto(absl::Time time) {
  // 0001-01-01 and 9999-12-31, the range of google.protobuf.Timestamp.
  const absl::Time clamped =
      std::clamp(time, absl::FromUnixSeconds(-62'135'596'800), absl::FromUnixSeconds(253'402'300'799));
  google::protobuf::Timestamp proto;
  proto.set_seconds(absl::ToUnixSeconds(clamped));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(clamped - absl::FromUnixSeconds(proto.seconds()))));
  return proto;
}

absl::Time FromProto(const google::protobuf::Timestamp& proto) {
  return absl::FromUnixSeconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

}  // namespace atl::wire
