// What everything that computes stages does first: options checked, model configured, process tuned.
#pragma once

#include "absl/status/status.h"
#include "common/model/dit.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

model::DitConfig ConfigOf(const TrainerOptions& options, const spec::PrecisionSpec& precision);

absl::Status ValidatePrecision(const spec::PrecisionSpec& precision);
// INVALID_ARGUMENT naming the field; FAILED_PRECONDITION for a device that is not there or data without samples.
absl::Status ValidateOptions(const TrainerOptions& options, const TrainingData& data);

// LibTorch's threads and the allocator, of the process; `device`, of the calling thread.
void TuneProcess(int32_t threads, const std::string& device);

}  // namespace atl::trainer
