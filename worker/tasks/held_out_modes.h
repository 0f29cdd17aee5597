// How good each routing mode of a trained ensemble is on held-out samples, and a few of these points with every
// network's answer, which whoever serves the version can check its own answers against.
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

// Loads expert 0, 1, … or the router network (-1); one is in memory at a time.
using NetworkLoader = std::function<absl::StatusOr<model::LoadedModel>(int32_t expert)>;
// Samples as the experts learn them, [n, channels, height, width], from images of the data set.
using SampleEncoder = std::function<absl::StatusOr<at::Tensor>(const at::Tensor& images)>;

// `manifest` has held-out samples; at most 256 of them are used, each once, at a time and with noise drawn by the job's
// seed, with its own class. Experts of a self-conditioned model read the full ensemble's estimate. Blocks;
// deterministic on one machine.
absl::StatusOr<HeldOutModes> MeasureModes(const TaskContext& context, const dataset::DatasetManifest& manifest,
                                          bool self_conditioning, const NetworkLoader& load,
                                          const SampleEncoder& encode);

}  // namespace atl::tasks
