// Converts training state to and from checkpoints, by canonical names, independent of the stage that held a tensor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/formats/checkpoint.h"
#include "worker/trainer/optimizer.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

// The optimizer's parameters of one stage: [first, end).
struct StageState {
  std::string file;  // "stage-<i>-of-<n>.safetensors"
  size_t first = 0;
  size_t end = 0;
};

// Returns roles and dtype names, as in a manifest.
std::map<std::string, std::string> PrecisionMap(const spec::PrecisionSpec& precision);

// Copies the current state. `manifest` becomes the result of Snapshot::Manifest.
std::unique_ptr<Trainer::Snapshot> CopyState(const Optimizer& optimizer, const std::vector<StageState>& stages,
                                             storage::CheckpointManifest manifest);

// Overwrites every tensor of the optimizer. FAILED_PRECONDITION if the checkpoint's model, precision or seed differ
// from `expected`'s; DATA_LOSS for a tensor that is missing or does not fit.
absl::Status LoadState(const storage::CheckpointReader& checkpoint, const storage::CheckpointManifest& expected,
                       Optimizer* optimizer);

}  // namespace atl::trainer
