#include "expert_server/serving_heartbeat.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/random/random.h"
#include "common/base/backoff.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/wire/network_wire.h"
#include "common/wire/status.h"
#include "common/wire/time_wire.h"
#include "expert_server/expert_wire.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::worker {
namespace {

namespace serving_pb = atlpb::serving::v1;

// Shorter than the silence after which a coordinator forgets a server, so that one lost call costs nothing.
constexpr absl::Duration kCallTimeout = absl::Seconds(3);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);
// After a heartbeat that failed.
constexpr BackoffLimits kBackoff{.first = absl::Milliseconds(200), .longest = absl::Seconds(5)};
constexpr absl::Duration kShortestPause = absl::Milliseconds(100);
constexpr absl::Duration kShortestInterval = absl::Milliseconds(10);
constexpr absl::Duration kLongestInterval = absl::Minutes(1);

std::string NewIncarnation() {
  absl::BitGen random;
  return fmt::format("{:016x}{:016x}", absl::Uniform<uint64_t>(random), absl::Uniform<uint64_t>(random));
}

bool IsWildcard(const std::string& host) {
  return host.empty() || host == "0.0.0.0" || host == "[::]" || host == "::";
}

// "host", "host:port", "[v6]" or "[v6]:port"; port 0 where there is none, -1 where it is no port.
std::pair<std::string, int> SplitAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  const size_t bracket = text.rfind(']');
  if (colon == std::string::npos || (bracket != std::string::npos && colon < bracket)) return {text, 0};
  int port = -1;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  const bool valid = parsed.ec == std::errc() && parsed.ptr == end && port >= 0 && port <= 65535;
  return {text.substr(0, colon), valid ? port : -1};
}

std::vector<AssignedNetwork> AssignedOf(const serving_pb::HeartbeatResponse& response) {
  std::vector<AssignedNetwork> assigned;
  assigned.reserve(response.assigned_size());
  for (const serving_pb::AssignedNetwork& network : response.assigned()) {
    assigned.push_back({.id = wire::FromProto(network.network()), .uri = network.uri()});
  }
  return assigned;
}

}  // namespace

absl::Duration NextHeartbeat(const HeartbeatTimes& times, absl::Duration interval) {
  if (times.failures > 0) {
    return times.last_end + std::min(BackoffDelay(kBackoff, times.failures, times.jitter), interval);
  }
  return times.last_start + (times.changed ? std::min(kShortestPause, interval) : interval);
}

absl::StatusOr<std::string> AdvertisedAddress(const std::string& listen, const std::string& advertise, int bound_port) {
  const auto [host, port] = SplitAddress(advertise.empty() ? listen : advertise);
  if (advertise.empty() && IsWildcard(host)) {
    return FieldError(
        "--advertise", "ADVERTISED_ADDRESS_REQUIRED",
        fmt::format("expected the HOST or HOST:PORT at which routers reach this server, because it listens "
                    "at every address ('{}'); found none",
                    listen));
  }
  if (IsWildcard(host) || port < 0) {
    return FieldError(advertise.empty() ? "--listen" : "--advertise", "INVALID_ADDRESS",
                      fmt::format("expected HOST or HOST:PORT that routers can dial, found '{}'",
                                  advertise.empty() ? listen : advertise));
  }
  return fmt::format("{}:{}", host, advertise.empty() || port == 0 ? bound_port : port);
}

ServingHeartbeat::ServingHeartbeat(ServingHeartbeatOptions options, Calls calls, Clock* clock)
    : options_(std::move(options)),
      calls_(std::move(calls)),
      clock_(clock),
      stub_(serving_pb::ServingService::NewStub(rpc::MakeChannel(options_.coordinator, options_.credentials))),
      incarnation_(NewIncarnation()),
      interval_(options_.interval) {}

ServingHeartbeat::~ServingHeartbeat() {
  Stop();
  if (thread_.joinable()) thread_.join();
}

void ServingHeartbeat::Start() {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = false;
  }
  thread_ = std::thread([this] { Run(); });
}

void ServingHeartbeat::HostingChanged() {
  absl::MutexLock lock(&mutex_);
  times_.changed = true;
}

void ServingHeartbeat::Leave() {
  End(/*leave=*/true);
}

void ServingHeartbeat::Stop() {
  End(/*leave=*/false);
}

void ServingHeartbeat::End(bool leave) {
  absl::MutexLock lock(&mutex_);
  if (!stopping_) {
    stopping_ = true;
    leave_ = leave;
    if (running_ != nullptr) running_->TryCancel();
  }
  mutex_.Await(absl::Condition(&ended_));
}

ServingHeartbeat::Next ServingHeartbeat::AwaitNext() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    if (stopping_) return std::exchange(leave_, false) ? Next::kLeave : Next::kEnd;
    const absl::Duration due = NextHeartbeat(times_, interval_);
    if (due <= clock_->Monotonic()) return Next::kBeat;
    const bool changed = times_.changed;
    const auto news = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || times_.changed != changed; };
    clock_->AwaitUntil(&mutex_, absl::Condition(&news), due);
  }
}

void ServingHeartbeat::Run() {
  for (Next next = AwaitNext(); next != Next::kEnd; next = AwaitNext()) {
    if (!Beat(next == Next::kLeave)) break;
  }
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

bool ServingHeartbeat::Beat(bool leaving) {
  const absl::StatusOr<serving_pb::HeartbeatResponse> response = Call(leaving);
  if (calls_.answered) calls_.answered(response.status());
  if (response.ok()) {
    if (!leaving && !response->undecided()) calls_.assign(AssignedOf(*response));
    return true;
  }
  if (!absl::IsAborted(response.status()) || leaving) return true;
  calls_.superseded(response.status());
  return false;
}

absl::StatusOr<serving_pb::HeartbeatResponse> ServingHeartbeat::Call(bool leaving) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, leaving ? kLeaveTimeout : kCallTimeout);
  {
    absl::MutexLock lock(&mutex_);
    times_.last_start = clock_->Monotonic();
    times_.changed = false;
    running_ = &context;
    if (stopping_ && !leaving) context.TryCancel();
  }
  serving_pb::HeartbeatRequest request;
  request.mutable_server()->set_server_id(options_.server_id);
  request.mutable_server()->set_incarnation(incarnation_);
  request.mutable_server()->set_address(options_.address);
  *request.mutable_server()->mutable_hosting() = calls_.hosting();
  request.set_sequence(++sequence_);
  request.set_leaving(leaving);
  serving_pb::HeartbeatResponse response;
  const absl::Status status = rpc::FromGrpc(stub_->Heartbeat(&context, request, &response));
  absl::BitGen random;
  absl::MutexLock lock(&mutex_);
  running_ = nullptr;
  times_.last_end = clock_->Monotonic();
  times_.jitter = absl::Uniform(random, 0.0, 1.0);
  if (!status.ok()) {
    const bool cut_short = stopping_ && !leaving;
    if (!cut_short && ++times_.failures == 1 && !absl::IsAborted(status)) {
      spdlog::warn("heartbeat: {}; this server goes on with what it hosts", status.ToString());
    }
    return status;
  }
  if (times_.failures > 0) spdlog::info("the coordinator answers again after {} failed heartbeats", times_.failures);
  times_.failures = 0;
  if (response.has_heartbeat_interval()) {
    interval_ = std::clamp(wire::FromProto(response.heartbeat_interval()), kShortestInterval, kLongestInterval);
  }
  return response;
}

}  // namespace atl::worker
