#include "coordinator/service/messages.h"

#include <algorithm>
#include <memory>

#include "common/base/errors.h"
#include "common/storage/blob_store.h"
#include "common/wire/spec_wire.h"
#include "common/wire/task_wire.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace atl::coordinator {
namespace {

constexpr int32_t kDefaultPage = 50;
constexpr int32_t kLargestPage = 1000;

// One entry by one, so that equal messages have equal bytes.
std::string DeterministicBytes(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

atlpb::job::v1::TaskError ErrorToProto(const store::AttemptRow& row) {
  atlpb::job::v1::TaskError proto;
  proto.set_attempt(row.attempt);
  proto.set_island_id(row.island_id);
  proto.set_code(row.code.empty() ? std::string(jobs::ToString(row.outcome)) : row.code);
  proto.set_message(row.message);
  *proto.mutable_time() = wire::ToProto(row.end_time);
  return proto;
}

}  // namespace

atlpb::job::v1::Task TaskToProto(const jobs::Task& task) {
  atlpb::job::v1::Task proto;
  proto.set_task_id(task.task_id);
  proto.set_kind(wire::ToProto(task.kind));
  proto.set_index(task.index);
  proto.set_state(static_cast<atlpb::job::v1::Task::State>(task.state));
  proto.set_attempt(task.attempt);
  proto.set_island_id(task.island_id);
  proto.set_committed_step(task.committed_step);
  proto.set_message(task.message);
  for (const std::string& id : task.depends_on) proto.add_depends_on(id);
  for (const spec::Artifact& artifact : task.outputs) *proto.add_outputs() = wire::ToProto(artifact);
  for (const jobs::Rollback& rollback : task.rollbacks) *proto.add_rollbacks() = RollbackToProto(rollback);
  return proto;
}

atlpb::admin::v1::Island IslandToProto(const IslandView& view) {
  atlpb::admin::v1::Island proto;
  proto.set_island_id(view.island.island_id);
  proto.set_incarnation(view.island.incarnation);
  proto.set_state(static_cast<atlpb::admin::v1::Island::State>(view.activity));
  const leases::Capabilities& capabilities = view.island.capabilities;
  proto.set_ranks(capabilities.ranks);
  proto.set_device_kind(capabilities.device_kind);
  proto.set_device_name(capabilities.device_name);
  proto.set_build(capabilities.build);
  if (view.last_heard != absl::InfinitePast()) *proto.mutable_last_heard_time() = wire::ToProto(view.last_heard);
  proto.set_drain_reason(view.island.drain_reason);
  if (view.task.task_id.empty()) return proto;
  proto.set_task_id(view.task.task_id);
  proto.set_job_id(view.job_id);
  proto.set_task_kind(wire::ToProto(view.task.kind));
  proto.set_task_index(view.task.index);
  proto.set_attempt(view.task.attempt);
  proto.set_step(view.step);
  proto.set_step_seconds(absl::ToDoubleSeconds(view.step_time));
  proto.set_slowdown(view.judgement.slowdown);
  proto.set_slow(view.judgement.slow);
  return proto;
}

atlpb::job::v1::Job JobToProto(const jobs::Job& job) {
  atlpb::job::v1::Job proto;
  proto.set_job_id(job.job_id);
  wire::ToProto(job.spec, proto.mutable_spec());
  proto.set_state(static_cast<atlpb::job::v1::Job::State>(job.state));
  *proto.mutable_create_time() = wire::ToProto(job.create_time);
  if (job.end_time != absl::InfinitePast()) *proto.mutable_end_time() = wire::ToProto(job.end_time);
  proto.set_message(job.message);
  proto.set_model_version(job.model_version);
  proto.set_revision(job.revision);
  proto.set_owner(job.owner);
  return proto;
}

atlpb::job::v1::Job JobToProto(const JobView& view) {
  atlpb::job::v1::Job proto = JobToProto(view.record.job);
  for (const jobs::Task& task : view.record.tasks) {
    atlpb::job::v1::Task* added = proto.add_tasks();
    *added = TaskToProto(task);
    const auto progress = view.progress.find(task.task_id);
    if (progress != view.progress.end()) *added->mutable_progress() = wire::ToProto(progress->second);
    const auto errors = view.last_errors.find(task.task_id);
    if (errors == view.last_errors.end()) continue;
    for (const store::AttemptRow& row : errors->second) *added->add_last_errors() = ErrorToProto(row);
  }
  return proto;
}

atlpb::job::v1::Rollback RollbackToProto(const jobs::Rollback& rollback) {
  atlpb::job::v1::Rollback proto;
  proto.set_attempt(rollback.attempt);
  proto.set_from_step(rollback.from_step);
  proto.set_to_step(rollback.to_step);
  proto.set_skipped_first_step(rollback.skipped.first_step);
  proto.set_skipped_steps(rollback.skipped.steps);
  proto.set_reason(rollback.reason);
  proto.set_message(rollback.message);
  proto.set_evidence_uri(rollback.evidence_uri);
  *proto.mutable_time() = wire::ToProto(rollback.time);
  return proto;
}

atlpb::model::v1::Model ModelToProto(const store::Model& model) {
  atlpb::model::v1::Model proto;
  proto.set_name(model.name);
  proto.set_serving_version(model.serving.version);
  proto.set_serving_generation(model.serving.generation);
  for (const store::ModelVersionRow& row : model.versions) {
    atlpb::model::v1::ModelVersion* version = proto.add_versions();
    version->set_version(row.version);
    version->set_job_id(row.job_id);
    version->set_uri(row.uri);
    version->set_digest(row.digest);
    *version->mutable_publish_time() = wire::ToProto(row.publish_time);
    version->set_experts(row.experts);
  }
  return proto;
}

leases::Capabilities CapabilitiesFromProto(const atlpb::island::v1::Capabilities& proto) {
  leases::Capabilities capabilities;
  capabilities.build = proto.build();
  capabilities.protocol = {proto.protocol().min(), proto.protocol().max()};
  capabilities.format = {proto.format().min(), proto.format().max()};
  capabilities.ranks = proto.ranks();
  capabilities.device_kind = proto.device_kind();
  capabilities.device_name = proto.device_name();
  capabilities.memory_bytes_per_rank = proto.memory_bytes_per_rank();
  capabilities.labels = {proto.labels().begin(), proto.labels().end()};
  return capabilities;
}

absl::StatusOr<int32_t> PageSize(int32_t requested) {
  if (requested < 0) {
    return FieldError("page_size", "INVALID_PAGE_SIZE", fmt::format("expected at least 0, found {}", requested));
  }
  return requested == 0 ? kDefaultPage : std::min(requested, kLargestPage);
}

std::string PayloadHash(const google::protobuf::Message& request) {
  std::unique_ptr<google::protobuf::Message> copy(request.New());
  copy->CopyFrom(request);
  if (const auto* field = copy->GetDescriptor()->FindFieldByName("request_id")) {
    copy->GetReflection()->ClearField(copy.get(), field);
  }
  return storage::Sha256(DeterministicBytes(*copy));
}

}  // namespace atl::coordinator
