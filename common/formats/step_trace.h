// Traces: the actions of one rank in one training step, with times. Training writes these small files now and then, so
// that `atoll jobs trace` can draw the real schedule later.
//
// On a device the times are those of the host that submitted the work, not of the device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/schedule/action.h"

namespace atl::storage {

inline constexpr int kStepTraceFormat = 1;

// Times since the start of the step's iteration. From the previous action's `passed_on` to `ready` the rank waited for
// its inputs; from `ready` to `start` and from `end` to `passed_on` the engine posted receives and sends.
struct TracedAction {
  schedule::Action action;
  absl::Duration ready;
  absl::Duration start;
  absl::Duration end;
  absl::Duration passed_on;
  bool operator==(const TracedAction&) const = default;
};

struct StepTrace {
  int format = kStepTraceFormat;
  std::string task_id;
  int64_t attempt = 0;
  int64_t step = 0;
  int32_t rank = 0;  // of the plan
  int32_t ranks = 1;
  int32_t pipeline_ranks = 1;  // of one replica: rank r belongs to replica r / pipeline_ranks
  std::string generator;       // of the plan's schedule
  // Names the machine's boot: ranks with the same id read the same monotonic clock. Empty: unknown.
  std::string boot_id;
  // Start of the iteration, by both clocks.
  absl::Duration start_monotonic;
  absl::Time start_time;
  // Until the end of the whole step: gradient norm, clipping, optimizer and EMA come after the last action.
  absl::Duration step_duration;
  std::vector<TracedAction> actions;
  bool operator==(const StepTrace&) const = default;
};

// Writes times in whole microseconds.
std::string ToJson(const StepTrace& trace);
// DATA_LOSS names `file_name` if the text is no trace, is truncated, or has times that run backwards;
// FAILED_PRECONDITION for a format that this build does not read.
absl::StatusOr<StepTrace> ParseStepTrace(std::string_view json, std::string_view file_name);

// Returns "<write prefix>/trace/<step>-rank-<rank>.json".
std::string StepTraceUri(std::string_view write_prefix, int64_t step, int32_t rank);

// The trace that a file name stands for, below the folder of a task's attempts ("<epoch>-<attempt>/trace/…"); nullopt
// for any other file.
struct StepTraceName {
  int64_t store_epoch = 0;
  int64_t attempt = 0;
  int64_t step = 0;
  int32_t rank = 0;
  auto operator<=>(const StepTraceName&) const = default;
};
std::optional<StepTraceName> ParseStepTraceName(std::string_view name);

// Returns the start of each rank's iteration, relative to the earliest. Ranks of one boot are aligned exactly, by its
// monotonic clock; boots are aligned by their wall clocks, as exactly as these agree (NTP: some milliseconds).
std::vector<absl::Duration> AlignedStarts(const std::vector<StepTrace>& traces);

}  // namespace atl::storage
