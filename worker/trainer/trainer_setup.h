// The setup of all code that computes stages: checks the options, configures the model, tunes the process.
#pragma once

#include "absl/status/status.h"
#include "common/model/dit.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

model::DitConfig ConfigOf(const TrainerOptions& options, const spec::PrecisionSpec& precision);

absl::Status ValidatePrecision(const spec::PrecisionSpec& precision);
// Returns INVALID_ARGUMENT that names the field; FAILED_PRECONDITION for a missing device or data without samples.
absl::Status ValidateOptions(const TrainerOptions& options, const TrainingData& data);

// Sets LibTorch's threads and the allocator for the process, and `device` for the calling thread.
void TuneProcess(int32_t threads, const std::string& device);

}  // namespace atl::trainer
