// What one rank did in one training step, action by action: small files that training leaves now and then, so that a
// picture of what really ran can be drawn later (`atoll jobs trace`).
//
// On a device the times are those of the host that gave the device its work, not of the device.
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

// Since the start of the step's iteration. From `passed_on` of the action before to `ready` the rank waited for its
// inputs; from `ready` to `start` and from `end` to `passed_on` the engine posted receives and sends.
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
  // Names the boot of the machine: ranks with the same one read the same monotonic clock. Empty: unknown.
  std::string boot_id;
  // When the iteration began, by both clocks.
  absl::Duration start_monotonic;
  absl::Time start_time;
  // To the end of the whole step: gradient norm, clipping, optimizer and EMA come after the last action.
  absl::Duration step_duration;
  std::vector<TracedAction> actions;
  bool operator==(const StepTrace&) const = default;
};

// Times in whole microseconds.
std::string ToJson(const StepTrace& trace);
// DATA_LOSS naming `file_name` for text that is no trace, also a torn one or one whose times run backwards;
// FAILED_PRECONDITION for a format that this build does not read.
absl::StatusOr<StepTrace> ParseStepTrace(std::string_view json, std::string_view file_name);

// "<write prefix>/trace/<step>-rank-<rank>.json".
std::string StepTraceUri(std::string_view write_prefix, int64_t step, int32_t rank);

// Which trace a file is, by its name below the folder of a task's attempts ("<epoch>-<attempt>/trace/…"); nullopt for
// any other file.
struct StepTraceName {
  int64_t store_epoch = 0;
  int64_t attempt = 0;
  int64_t step = 0;
  int32_t rank = 0;
  auto operator<=>(const StepTraceName&) const = default;
};
std::optional<StepTraceName> ParseStepTraceName(std::string_view name);

// When each rank's iteration began, since the earliest. Ranks of one boot are laid by its monotonic clock, exactly;
// boots are laid to each other by their wall clocks, as exactly as these agree (NTP: some milliseconds).
std::vector<absl::Duration> AlignedStarts(const std::vector<StepTrace>& traces);

}  // namespace atl::storage
