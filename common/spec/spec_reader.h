// From a document's tree to a JobSpec. Private to common/spec.
#pragma once

#include "absl/status/statusor.h"
#include "common/spec/spec.h"
#include "common/spec/yaml_tree.h"

namespace atl::spec {

// INVALID_ARGUMENT as ParseJobSpec, with the place that the nodes name. `root` is a mapping or nothing.
absl::StatusOr<JobSpec> ReadJobSpec(const YamlNode& root);

}  // namespace atl::spec
