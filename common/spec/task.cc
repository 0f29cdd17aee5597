#include "common/spec/task.h"

namespace atl::spec {

std::string ToString(TaskKind kind) {
  switch (kind) {
    case TaskKind::kFitFeatures:
      return "fit_features";
    case TaskKind::kFeaturize:
      return "featurize";
    case TaskKind::kCluster:
      return "cluster";
    case TaskKind::kPartition:
      return "partition";
    case TaskKind::kTrainExpert:
      return "train_expert";
    case TaskKind::kTrainRouter:
      return "train_router";
    case TaskKind::kPublish:
      return "publish";
  }
  return "unknown";
}

}  // namespace atl::spec
