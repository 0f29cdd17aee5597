#include "common/wire/task_wire.h"

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/wire/spec_wire.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"

namespace atl::wire {
namespace {

// Keys of StorageGrant.credentials.
constexpr char kAccessKey[] = "access_key_id";
constexpr char kSecretKey[] = "secret_access_key";
constexpr char kSessionToken[] = "session_token";

}  // namespace

// The numbers are the wire's; both lists grow together.
static_assert(static_cast<int>(spec::TaskKind::kFitFeatures) == atlpb::job::v1::TASK_KIND_FIT_FEATURES);
static_assert(static_cast<int>(spec::TaskKind::kFeaturize) == atlpb::job::v1::TASK_KIND_FEATURIZE);
static_assert(static_cast<int>(spec::TaskKind::kCluster) == atlpb::job::v1::TASK_KIND_CLUSTER);
static_assert(static_cast<int>(spec::TaskKind::kPartition) == atlpb::job::v1::TASK_KIND_PARTITION);
static_assert(static_cast<int>(spec::TaskKind::kTrainExpert) == atlpb::job::v1::TASK_KIND_TRAIN_EXPERT);
static_assert(static_cast<int>(spec::TaskKind::kTrainRouter) == atlpb::job::v1::TASK_KIND_TRAIN_ROUTER);
static_assert(static_cast<int>(spec::TaskKind::kPublish) == atlpb::job::v1::TASK_KIND_PUBLISH);

atlpb::job::v1::TaskKind ToProto(spec::TaskKind kind) {
  return static_cast<atlpb::job::v1::TaskKind>(kind);
}

absl::StatusOr<spec::TaskKind> FromProto(atlpb::job::v1::TaskKind kind) {
  if (kind >= atlpb::job::v1::TASK_KIND_FIT_FEATURES && kind <= atlpb::job::v1::TASK_KIND_PUBLISH) {
    return static_cast<spec::TaskKind>(kind);
  }
  return FieldError("kind", "UNKNOWN_TASK_KIND",
                    fmt::format("expected a task kind between {} and {}, found {}",
                                static_cast<int>(atlpb::job::v1::TASK_KIND_FIT_FEATURES),
                                static_cast<int>(atlpb::job::v1::TASK_KIND_PUBLISH), static_cast<int>(kind)));
}

atlpb::job::v1::Artifact ToProto(const spec::Artifact& artifact) {
  atlpb::job::v1::Artifact proto;
  proto.set_name(artifact.name);
  proto.set_uri(artifact.uri);
  proto.set_bytes(artifact.bytes);
  proto.set_sha256(artifact.sha256);
  proto.set_rows(artifact.rows);
  return proto;
}

spec::Artifact FromProto(const atlpb::job::v1::Artifact& proto) {
  return {
      .name = proto.name(), .uri = proto.uri(), .bytes = proto.bytes(), .sha256 = proto.sha256(), .rows = proto.rows()};
}

atlpb::job::v1::Progress ToProto(const spec::Progress& progress) {
  atlpb::job::v1::Progress proto;
  proto.set_step(progress.step);
  proto.set_total_steps(progress.total_steps);
  proto.set_loss(progress.loss);
  proto.set_samples_per_second(progress.samples_per_second);
  *proto.mutable_time_left() = ToProto(progress.time_left);
  proto.mutable_metrics()->insert(progress.metrics.begin(), progress.metrics.end());
  return proto;
}

spec::Progress FromProto(const atlpb::job::v1::Progress& proto) {
  return {.step = proto.step(),
          .total_steps = proto.total_steps(),
          .loss = proto.loss(),
          .samples_per_second = proto.samples_per_second(),
          .time_left = FromProto(proto.time_left()),
          .metrics = {proto.metrics().begin(), proto.metrics().end()}};
}

atlpb::island::v1::CommittedCheckpoint ToProto(const spec::CommittedCheckpoint& checkpoint) {
  atlpb::island::v1::CommittedCheckpoint proto;
  proto.set_step(checkpoint.step);
  proto.set_manifest_uri(checkpoint.manifest_uri);
  proto.set_manifest_sha256(checkpoint.manifest_sha256);
  proto.set_milestone(checkpoint.milestone);
  return proto;
}

spec::CommittedCheckpoint FromProto(const atlpb::island::v1::CommittedCheckpoint& proto) {
  return {.step = proto.step(),
          .manifest_uri = proto.manifest_uri(),
          .manifest_sha256 = proto.manifest_sha256(),
          .milestone = proto.milestone()};
}

atlpb::island::v1::SkippedWindow ToProto(const spec::SkippedWindow& window) {
  atlpb::island::v1::SkippedWindow proto;
  proto.set_first_step(window.first_step);
  proto.set_steps(window.steps);
  return proto;
}

spec::SkippedWindow FromProto(const atlpb::island::v1::SkippedWindow& proto) {
  return {.first_step = proto.first_step(), .steps = proto.steps()};
}

atlpb::island::v1::LeaseToken ToProto(const spec::LeaseToken& token) {
  atlpb::island::v1::LeaseToken proto;
  proto.set_task_id(token.task_id);
  proto.set_store_epoch(token.store_epoch);
  proto.set_attempt(token.attempt);
  proto.set_attempt_secret(token.attempt_secret);
  return proto;
}

spec::LeaseToken FromProto(const atlpb::island::v1::LeaseToken& proto) {
  return {.task_id = proto.task_id(),
          .store_epoch = proto.store_epoch(),
          .attempt = proto.attempt(),
          .attempt_secret = proto.attempt_secret()};
}

atlpb::island::v1::TaskInput ToProto(const spec::TaskInput& input) {
  atlpb::island::v1::TaskInput proto;
  proto.set_task_id(input.task_id);
  proto.set_kind(ToProto(input.kind));
  proto.set_index(input.index);
  for (const spec::Artifact& artifact : input.artifacts) *proto.add_artifacts() = ToProto(artifact);
  return proto;
}

absl::StatusOr<spec::TaskInput> FromProto(const atlpb::island::v1::TaskInput& proto) {
  spec::TaskInput input{.task_id = proto.task_id(), .index = proto.index()};
  ATOLL_ASSIGN_OR_RETURN(input.kind, FromProto(proto.kind()));
  for (const auto& artifact : proto.artifacts()) input.artifacts.push_back(FromProto(artifact));
  return input;
}

atlpb::island::v1::StorageGrant ToProto(const spec::StorageGrant& grant) {
  atlpb::island::v1::StorageGrant proto;
  proto.mutable_read_prefixes()->Add(grant.reads.begin(), grant.reads.end());
  proto.mutable_write_prefixes()->Add(grant.writes.begin(), grant.writes.end());
  if (grant.access_key.empty()) return proto;
  (*proto.mutable_credentials())[kAccessKey] = grant.access_key;
  (*proto.mutable_credentials())[kSecretKey] = grant.secret_key;
  if (!grant.session_token.empty()) (*proto.mutable_credentials())[kSessionToken] = grant.session_token;
  *proto.mutable_expire_time() = ToProto(grant.expires);
  return proto;
}

spec::StorageGrant FromProto(const atlpb::island::v1::StorageGrant& proto) {
  spec::StorageGrant grant;
  grant.reads = {proto.read_prefixes().begin(), proto.read_prefixes().end()};
  grant.writes = {proto.write_prefixes().begin(), proto.write_prefixes().end()};
  const auto find = [&proto](const char* name) {
    const auto it = proto.credentials().find(name);
    return it == proto.credentials().end() ? std::string() : it->second;
  };
  grant.access_key = find(kAccessKey);
  grant.secret_key = find(kSecretKey);
  grant.session_token = find(kSessionToken);
  if (proto.has_expire_time()) grant.expires = FromProto(proto.expire_time());
  return grant;
}

atlpb::island::v1::TaskGrant ToProto(const spec::TaskGrant& grant) {
  atlpb::island::v1::TaskGrant proto;
  *proto.mutable_token() = ToProto(grant.token);
  proto.set_job_id(grant.job_id);
  proto.set_kind(ToProto(grant.kind));
  proto.set_index(grant.index);
  ToProto(grant.spec, proto.mutable_spec());
  proto.set_dataset_manifest_uri(grant.dataset_manifest_uri);
  for (const spec::TaskInput& input : grant.inputs) *proto.add_inputs() = ToProto(input);
  if (grant.resume_from) *proto.mutable_resume_from() = ToProto(*grant.resume_from);
  for (const spec::SkippedWindow& window : grant.skipped) *proto.add_skipped() = ToProto(window);
  *proto.mutable_storage() = ToProto(grant.storage);
  proto.mutable_storage()->set_write_prefix(grant.write_prefix);
  *proto.mutable_lease_duration() = ToProto(grant.lease_duration);
  return proto;
}

absl::StatusOr<spec::TaskGrant> FromProto(const atlpb::island::v1::TaskGrant& proto) {
  spec::TaskGrant grant;
  grant.token = FromProto(proto.token());
  grant.job_id = proto.job_id();
  ATOLL_ASSIGN_OR_RETURN(grant.kind, FromProto(proto.kind()));
  grant.index = proto.index();
  grant.spec = FromProto(proto.spec());
  grant.dataset_manifest_uri = proto.dataset_manifest_uri();
  for (const auto& input : proto.inputs()) {
    ATOLL_ASSIGN_OR_RETURN(spec::TaskInput converted, FromProto(input));
    grant.inputs.push_back(std::move(converted));
  }
  if (proto.has_resume_from()) grant.resume_from = FromProto(proto.resume_from());
  for (const auto& window : proto.skipped()) grant.skipped.push_back(FromProto(window));
  grant.write_prefix = proto.storage().write_prefix();
  grant.storage = FromProto(proto.storage());
  if (proto.has_lease_duration()) grant.lease_duration = FromProto(proto.lease_duration());
  return grant;
}

}  // namespace atl::wire
