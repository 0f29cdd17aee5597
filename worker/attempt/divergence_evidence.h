// Builds the file that is kept for people after training diverged: docs/formats.md, "Evidence of divergence". Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/planner/plan.h"
#include "common/spec/task.h"
#include "worker/attempt/divergence.h"
#include "worker/attempt/training_inputs.h"

namespace atl::worker {

// The most samples of untrusted steps that are listed.
inline constexpr int64_t kMaxEvidenceSamples = 4096;

// "<write prefix>/evidence/<step>.json".
std::string EvidenceUri(std::string_view write_prefix, int64_t step);

std::string EvidenceJson(const spec::TaskGrant& grant, const TrainingInputs& inputs, const planner::Plan& plan,
                         std::string_view build, const Divergence& divergence);

}  // namespace atl::worker
