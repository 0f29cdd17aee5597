#include "router/server/routing_reports.h"

#include <algorithm>

#include "absl/random/random.h"
#include "common/rpc/channel.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

namespace pb = atlpb::serving::v1;

constexpr absl::Duration kTimeout = absl::Seconds(3);
// The coordinator's wish is taken within these bounds.
constexpr absl::Duration kShortestInterval = absl::Milliseconds(100);
constexpr absl::Duration kLongestInterval = absl::Minutes(1);

std::string RandomId() {
  absl::BitGen random;
  return fmt::format("router-{:016x}", absl::Uniform<uint64_t>(random));
}

pb::VersionUse::State StateOf(VersionState state) {
  switch (state) {
    case VersionState::kLoading:
    case VersionState::kReady:
    case VersionState::kFailed:
      return pb::VersionUse::STATE_LOADING;
    case VersionState::kServing:
    case VersionState::kOffered:
      return pb::VersionUse::STATE_SERVING;
    case VersionState::kDraining:
      return pb::VersionUse::STATE_DRAINING;
  }
  return pb::VersionUse::STATE_UNSPECIFIED;
}

}  // namespace

RoutingReports::RoutingReports(bool needs_router_networks, std::shared_ptr<grpc::Channel> channel, Versions versions,
                               Engine* engine, Clock* clock, absl::Duration interval)
    : needs_router_networks_(needs_router_networks),
      router_id_(RandomId()),
      stub_(pb::ServingService::NewStub(channel)),
      versions_(std::move(versions)),
      engine_(engine),
      clock_(clock),
      interval_(interval) {
  thread_ = std::thread([this] { Run(); });
}

RoutingReports::~RoutingReports() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  thread_.join();
}

void RoutingReports::Run() {
  absl::BitGen random;
  absl::Duration wait = absl::ZeroDuration();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Monotonic() + wait)) return;
    }
    wait = Report() * absl::Uniform(random, 0.8, 1.0);
  }
}

absl::Duration RoutingReports::Report() {
  const auto counts = engine_->TakeChosen();
  pb::ReportRoutingRequest request;
  request.set_router_id(router_id_);
  request.set_needs_router_networks(needs_router_networks_);
  for (const FollowedVersion& version : versions_()) {
    pb::VersionUse* const use = request.add_uses();
    use->set_model(version.model);
    use->set_version(version.version);
    use->set_requests(version.requests);
    use->set_state(StateOf(version.state));
    use->set_pinned(version.pinned);
    const auto chosen = counts.find({version.model, version.version});
    if (chosen != counts.end()) use->mutable_chosen()->Add(chosen->second.begin(), chosen->second.end());
  }
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kTimeout);
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return interval_;
    call_ = &context;
  }
  pb::ReportRoutingResponse response;
  const grpc::Status status = stub_->ReportRouting(&context, request, &response);
  {
    absl::MutexLock lock(&mutex_);
    call_ = nullptr;
  }
  if (!status.ok()) {
    spdlog::debug("reporting the routing: {}", status.error_message());
    return interval_;
  }
  const absl::Duration asked = wire::FromProto(response.report_interval());
  return asked > absl::ZeroDuration() ? std::clamp(asked, kShortestInterval, kLongestInterval) : interval_;
}

}  // namespace atl::router
