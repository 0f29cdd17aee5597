// Converts tasks and their messages between domain and proto. A value that cannot be converted is INVALID_ARGUMENT with
// the field's path.
#pragma once

#include "absl/status/statusor.h"
#include "atoll/island/v1/island.pb.h"
#include "atoll/job/v1/job.pb.h"
#include "common/spec/task.h"

namespace atl::wire {

atlpb::job::v1::TaskKind ToProto(spec::TaskKind kind);
// Reason UNKNOWN_TASK_KIND for a kind that this build does not know.
absl::StatusOr<spec::TaskKind> FromProto(atlpb::job::v1::TaskKind kind);

atlpb::job::v1::Artifact ToProto(const spec::Artifact& artifact);
spec::Artifact FromProto(const atlpb::job::v1::Artifact& proto);

atlpb::job::v1::Progress ToProto(const spec::Progress& progress);
spec::Progress FromProto(const atlpb::job::v1::Progress& proto);

atlpb::island::v1::CommittedCheckpoint ToProto(const spec::CommittedCheckpoint& checkpoint);
spec::CommittedCheckpoint FromProto(const atlpb::island::v1::CommittedCheckpoint& proto);

atlpb::island::v1::SkippedWindow ToProto(const spec::SkippedWindow& window);
spec::SkippedWindow FromProto(const atlpb::island::v1::SkippedWindow& proto);

atlpb::island::v1::LeaseToken ToProto(const spec::LeaseToken& token);
spec::LeaseToken FromProto(const atlpb::island::v1::LeaseToken& proto);

atlpb::island::v1::TaskInput ToProto(const spec::TaskInput& input);
absl::StatusOr<spec::TaskInput> FromProto(const atlpb::island::v1::TaskInput& proto);

// Leaves out write_prefix, which belongs to the task.
atlpb::island::v1::StorageGrant ToProto(const spec::StorageGrant& grant);
spec::StorageGrant FromProto(const atlpb::island::v1::StorageGrant& proto);
atlpb::island::v1::TaskGrant ToProto(const spec::TaskGrant& grant);
absl::StatusOr<spec::TaskGrant> FromProto(const atlpb::island::v1::TaskGrant& proto);

}  // namespace atl::wire
