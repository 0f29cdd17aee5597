#include "tests/multiproc/fake_island.h"

#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/storage/blob_store.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"

namespace atl::multiproc {
namespace {

namespace pb = atlpb::island::v1;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kBackoff = absl::Milliseconds(10);

// Name and URI of a task's made-up result.
std::pair<std::string, std::string> ResultOf(const pb::TaskGrant& grant, const std::string& blob_root) {
  using atlpb::job::v1::TaskKind;
  const std::string prefix = grant.storage().write_prefix() + "/";
  switch (grant.kind()) {
    case TaskKind::TASK_KIND_FIT_FEATURES:
      return {"pca", prefix + "pca"};
    case TaskKind::TASK_KIND_FEATURIZE:
      return {"features", prefix + "features"};
    case TaskKind::TASK_KIND_CLUSTER:
      return {"centroids", prefix + "centroids"};
    case TaskKind::TASK_KIND_PUBLISH:
      return {"model_index",
              fmt::format("{}/models/{}/{}/model_index.json", blob_root, grant.spec().model_name(), grant.job_id())};
    default:
      return {"partition/0", prefix + "partition-0"};
  }
}

bool IsTraining(const pb::TaskGrant& grant) {
  return grant.kind() == atlpb::job::v1::TASK_KIND_TRAIN_EXPERT ||
         grant.kind() == atlpb::job::v1::TASK_KIND_TRAIN_ROUTER;
}

}  // namespace

absl::Status CallWithRetry(const std::function<std::string()>& address, absl::Duration patience,
                           const std::function<absl::Status(const std::shared_ptr<grpc::Channel>&)>& call) {
  const absl::Time deadline = absl::Now() + patience;
  absl::Status status = absl::UnavailableError("no coordinator has served yet");
  while (absl::Now() < deadline) {
    if (const std::string target = address(); !target.empty()) {
      status = call(rpc::MakeChannel(target));
      // A call that was cut off at its deadline may have met a process that was just killed.
      if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    }
    absl::SleepFor(kBackoff);
  }
  return status;
}

FakeIsland::FakeIsland(std::string island_id, std::string blob_root, std::function<std::string()> address)
    : island_id_(std::move(island_id)), blob_root_(std::move(blob_root)), address_(std::move(address)) {
  thread_ = std::thread([this] { Run(); });
}

FakeIsland::~FakeIsland() {
  Stop();
}

void FakeIsland::Stop() {
  stopping_ = true;
  hold_training_ = false;
  if (thread_.joinable()) thread_.join();
}

FakeIsland::Acknowledged FakeIsland::acknowledged() const {
  absl::MutexLock lock(&mutex_);
  return acknowledged_;
}

std::string FakeIsland::complaint() const {
  absl::MutexLock lock(&mutex_);
  return complaint_;
}

absl::Status FakeIsland::Call(const std::function<grpc::Status(pb::IslandService::Stub&, grpc::ClientContext*)>& call,
                              absl::Duration timeout) {
  return CallWithRetry(address_, stopping_ ? absl::ZeroDuration() : kPatience,
                       [&](const std::shared_ptr<grpc::Channel>& channel) {
                         const auto stub = pb::IslandService::NewStub(channel);
                         grpc::ClientContext context;
                         rpc::SetTimeout(&context, timeout);
                         return rpc::FromGrpc(call(*stub, &context));
                       });
}

void FakeIsland::Run() {
  absl::Status status = Register();
  while (status.ok() && !stopping_) {
    status = ClaimAndWork();
    if (absl::IsAborted(status) && claims_again_) status = absl::OkStatus();
  }
  if (status.ok() || stopping_) return;
  absl::MutexLock lock(&mutex_);
  complaint_ = status.ToString();
}

absl::Status FakeIsland::Register() {
  pb::RegisterIslandRequest request;
  request.set_island_id(island_id_);
  request.set_request_id("start-of-" + island_id_);
  pb::Capabilities* capabilities = request.mutable_capabilities();
  capabilities->set_build("test");
  capabilities->mutable_protocol()->set_min(1);
  capabilities->mutable_protocol()->set_max(1);
  capabilities->mutable_format()->set_min(1);
  capabilities->mutable_format()->set_max(1);
  capabilities->set_ranks(2);
  capabilities->set_device_kind("cpu");
  pb::RegisterIslandResponse response;
  ATOLL_RETURN_IF_ERROR(
      Call([&](auto& stub, auto* context) { return stub.RegisterIsland(context, request, &response); }));
  incarnation_ = response.incarnation();
  return absl::OkStatus();
}

absl::Status FakeIsland::ClaimAndWork() {
  pb::ClaimTaskRequest request;
  request.set_island_id(island_id_);
  request.set_incarnation(incarnation_);
  *request.mutable_wait() = wire::ToProto(absl::Milliseconds(200));
  pb::ClaimTaskResponse response;
  ATOLL_RETURN_IF_ERROR(Call([&](auto& stub, auto* context) { return stub.ClaimTask(context, request, &response); }));
  if (!response.has_grant()) return absl::OkStatus();
  const pb::TaskGrant& grant = response.grant();
  {
    absl::MutexLock lock(&mutex_);
    acknowledged_.attempts[grant.token().task_id()] = grant.token().attempt();
    acknowledged_.secrets.insert(grant.token().attempt_secret());
  }
  if (!IsTraining(grant)) {
    const auto [name, uri] = ResultOf(grant, blob_root_);
    return Complete(grant, name, uri);
  }
  std::string manifest;
  ATOLL_RETURN_IF_ERROR(Train(grant, &manifest));
  return Complete(grant, "checkpoint", manifest);
}

absl::Status FakeIsland::Train(const pb::TaskGrant& grant, std::string* manifest) {
  training_ = true;
  while (hold_training_) {
    ATOLL_RETURN_IF_ERROR(Heartbeat(grant));
    absl::SleepFor(kBackoff);  // what the steps of a real island would take
  }
  for (const int64_t step : {50, 100}) {
    *manifest = fmt::format("{}/{}-x/manifest.json", grant.storage().write_prefix(), step);
    pb::CommitCheckpointRequest request;
    *request.mutable_token() = grant.token();
    request.mutable_checkpoint()->set_step(step);
    request.mutable_checkpoint()->set_manifest_uri(*manifest);
    request.mutable_checkpoint()->set_manifest_sha256(storage::Sha256(*manifest));
    pb::CommitCheckpointResponse response;
    ATOLL_RETURN_IF_ERROR(
        Call([&](auto& stub, auto* context) { return stub.CommitCheckpoint(context, request, &response); }));
    absl::MutexLock lock(&mutex_);
    acknowledged_.committed_steps[grant.token().task_id()].insert(step);
  }
  return absl::OkStatus();
}

absl::Status FakeIsland::Heartbeat(const pb::TaskGrant& grant) {
  pb::HeartbeatRequest request;
  request.set_island_id(island_id_);
  request.set_incarnation(incarnation_);
  request.set_sequence(++sequence_);
  *request.add_leases() = grant.token();
  pb::HeartbeatResponse response;
  ATOLL_RETURN_IF_ERROR(Call([&](auto& stub, auto* context) { return stub.Heartbeat(context, request, &response); }));
  if (response.revoked().empty()) return absl::OkStatus();
  return absl::AbortedError(
      fmt::format("{} was revoked: {}", response.revoked(0).task_id(), response.revoked(0).reason()));
}

absl::Status FakeIsland::Complete(const pb::TaskGrant& grant, const std::string& name, const std::string& uri) {
  pb::CompleteTaskRequest request;
  *request.mutable_token() = grant.token();
  auto* output = request.add_outputs();
  output->set_name(name);
  output->set_uri(uri);
  output->set_bytes(1);
  output->set_rows(1);
  output->set_sha256(storage::Sha256(uri));
  pb::CompleteTaskResponse response;
  ATOLL_RETURN_IF_ERROR(
      Call([&](auto& stub, auto* context) { return stub.CompleteTask(context, request, &response); }));
  absl::MutexLock lock(&mutex_);
  acknowledged_.completed[grant.token().task_id()] = output->sha256();
  return absl::OkStatus();
}

}  // namespace atl::multiproc
