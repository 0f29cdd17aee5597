// Measures each routing mode of a trained ensemble on held-out samples. Also stores a few of these points with every
// network's answer, so that a server of the version can check its own answers.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/formats/model_index.h"
#include "common/model/weights.h"
#include "worker/tasks/task.h"

namespace atl::tasks {

struct HeldOutModes {
  storage::VersionSampling sampling;
  std::string probe;  // the bytes of a safetensors file, as in docs/formats.md
};

// Loads expert 0, 1, … or the router network (-1); only one is in memory at a time.
using NetworkLoader = std::function<absl::StatusOr<model::LoadedModel>(int32_t expert)>;
// Converts images of the data set, [n, channels, height, width], into samples as the experts learn them.
using SampleEncoder = std::function<absl::StatusOr<at::Tensor>(const at::Tensor& images)>;

// `manifest` has held-out samples; at most 256 of them are used. Each is used once, with its own class, at a time and
// with noise drawn by the job's seed. Experts of a self-conditioned model read the full ensemble's estimate. Blocks;
// deterministic on one machine.
absl::StatusOr<HeldOutModes> MeasureModes(const TaskContext& context, const dataset::DatasetManifest& manifest,
                                          bool self_conditioning, const NetworkLoader& load,
                                          const SampleEncoder& encode);

}  // namespace atl::tasks
