#include "router/service/routing_reports.h"

#include <algorithm>

#include "absl/random/random.h"
#include "common/rpc/channel.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

namespace pb = atlpb::serving::v1;

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

RoutingReports::RoutingReports(ReportOptions options, std::shared_ptr<grpc::Channel> channel, Versions versions,
                               Engine* engine, Clock* clock)
    : options_(options),
      router_id_(RandomId()),
      stub_(pb::ServingService::NewStub(channel)),
      versions_(std::move(versions)),
      engine_(engine),
      clock_(clock) {
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
  for (auto& [version, chosen] : engine_->TakeChosen()) {
    std::vector<int64_t>& sum = untold_[version];
    sum.resize(std::max(sum.size(), chosen.size()));
    for (size_t expert = 0; expert < chosen.size(); ++expert) sum[expert] += chosen[expert];
  }
  pb::ReportRoutingRequest request;
  request.set_router_id(router_id_);
  request.set_needs_router_networks(options_.needs_router_networks);
  for (const FollowedVersion& version : versions_()) {
    pb::VersionUse* const use = request.add_uses();
    use->set_model(version.model);
    use->set_version(version.version);
    use->set_requests(version.requests);
    use->set_state(StateOf(version.state));
    use->set_pinned(version.pinned);
    const auto chosen = untold_.find({version.model, version.version});
    if (chosen != untold_.end()) use->mutable_chosen()->Add(chosen->second.begin(), chosen->second.end());
  }
  grpc::ClientContext context;
  rpc::SetTimeout(&context, options_.timeout);
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return options_.interval;
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
    return options_.interval;
  }
  // With it what was counted for versions that are gone.
  untold_.clear();
  const absl::Duration asked = wire::FromProto(response.report_interval());
  return asked > absl::ZeroDuration() ? std::clamp(asked, kShortestInterval, kLongestInterval) : options_.interval;
}

}  // namespace atl::router
