#include "worker/tasks/task.h"

#include <exception>
#include <new>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/dataset.h"
#include "worker/tasks/cluster_tasks.h"
#include "worker/tasks/features_task.h"
#include "worker/tasks/publish_task.h"

namespace atl::tasks {
namespace {

absl::StatusOr<std::vector<spec::Artifact>> Dispatch(const TaskContext& context) {
  if (context.grant.kind == spec::TaskKind::kCluster) return Cluster(context);
  ATOLL_ASSIGN_OR_RETURN(const dataset::DatasetManifest manifest,
                         dataset::ReadDatasetManifest(context.store, context.grant.dataset_manifest_uri));
  switch (context.grant.kind) {
    case spec::TaskKind::kFitFeatures:
      return FitFeatures(context, manifest);
    case spec::TaskKind::kFeaturize:
      return Featurize(context, manifest);
    case spec::TaskKind::kPartition:
      return Partition(context, manifest);
    case spec::TaskKind::kPublish:
      return Publish(context, manifest);
    default:
      return MakeError(absl::StatusCode::kInvalidArgument, "TASK_KIND",
                       fmt::format("task {}: expected a task that one process runs alone, found {}",
                                   context.grant.token.task_id, spec::ToString(context.grant.kind)));
  }
}

}  // namespace

// LibTorch and the standard library throw; nothing above this function does.
absl::StatusOr<std::vector<spec::Artifact>> RunTask(const TaskContext& context) {
  try {
    at::set_num_threads(context.threads);
    const at::NoGradGuard no_grad;
    return Dispatch(context);
  } catch (const std::bad_alloc&) {
    return MakeError(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
                     fmt::format("task {}: not enough memory", context.grant.token.task_id));
  } catch (const std::exception& error) {
    return MakeError(absl::StatusCode::kInternal, "TASK_EXCEPTION",
                     fmt::format("task {}: {}", context.grant.token.task_id, error.what()));
  }
}

}  // namespace atl::tasks
