#include "common/formats/step_trace.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/file_list.h"
#include "common/storage/json_reader.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::storage {
namespace {

constexpr std::string_view kFolder = "trace/";
constexpr std::string_view kRank = "-rank-";
constexpr std::string_view kSuffix = ".json";

void Read(JsonReader& reader, const char* name, absl::Duration* out) {
  int64_t microseconds = 0;
  reader.Read(name, &microseconds);
  *out = absl::Microseconds(microseconds);
}

absl::Status Malformed(std::string_view file_name, const std::string& message) {
  return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED", fmt::format("{}: {}", file_name, message));
}

// A number up to the next character that is none, which `text` then begins with.
template <typename Number>
bool TakeNumber(std::string_view* text, Number* out) {
  const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), *out);
  if (error != std::errc() || *out < 0) return false;
  text->remove_prefix(static_cast<size_t>(stop - text->data()));
  return true;
}

bool Take(std::string_view* text, std::string_view expected) {
  if (!text->starts_with(expected)) return false;
  text->remove_prefix(expected.size());
  return true;
}

}  // namespace

std::string ToJson(const StepTrace& trace) {
  nlohmann::ordered_json actions = nlohmann::ordered_json::array();
  for (const TracedAction& traced : trace.actions) {
    actions.push_back({{"kind", std::string(1, schedule::KindLetter(traced.action.kind))},
                       {"stage", traced.action.stage},
                       {"micro_batch", traced.action.micro_batch},
                       {"ready_us", absl::ToInt64Microseconds(traced.ready)},
                       {"start_us", absl::ToInt64Microseconds(traced.start)},
                       {"end_us", absl::ToInt64Microseconds(traced.end)},
                       {"passed_on_us", absl::ToInt64Microseconds(traced.passed_on)}});
  }
  const nlohmann::ordered_json json = {{"format", trace.format},
                                       {"task_id", trace.task_id},
                                       {"attempt", trace.attempt},
                                       {"step", trace.step},
                                       {"rank", trace.rank},
                                       {"ranks", trace.ranks},
                                       {"pipeline_ranks", trace.pipeline_ranks},
                                       {"generator", trace.generator},
                                       {"boot_id", trace.boot_id},
                                       {"start_monotonic_us", absl::ToInt64Microseconds(trace.start_monotonic)},
                                       {"start_unix_us", absl::ToUnixMicros(trace.start_time)},
                                       {"step_us", absl::ToInt64Microseconds(trace.step_duration)},
                                       {"actions", actions}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<StepTrace> ParseStepTrace(std::string_view text, std::string_view file_name) {
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(text, file_name));
  JsonReader reader(object, file_name);
  StepTrace trace;
  reader.Read("format", &trace.format);
  ATOLL_RETURN_IF_ERROR(reader.status());
  ATOLL_RETURN_IF_ERROR(CheckFormat(trace.format, kStepTraceFormat, file_name));
  reader.Read("task_id", &trace.task_id);
  reader.Read("attempt", &trace.attempt);
  reader.Read("step", &trace.step);
  reader.Read("rank", &trace.rank);
  reader.Read("ranks", &trace.ranks, 1);
  reader.Read("pipeline_ranks", &trace.pipeline_ranks, 1);
  reader.Read("generator", &trace.generator);
  reader.Read("boot_id", &trace.boot_id);
  int64_t unix_us = 0;
  reader.Read("start_unix_us", &unix_us);
  trace.start_time = absl::FromUnixMicros(unix_us);
  Read(reader, "start_monotonic_us", &trace.start_monotonic);
  Read(reader, "step_us", &trace.step_duration);
  reader.ReadObjects("actions", &trace.actions, [](JsonReader& action, TracedAction* traced) {
    std::string kind;
    action.Read("kind", &kind);
    const auto known = kind.size() == 1 ? schedule::KindOf(kind[0]) : std::nullopt;
    if (!known.has_value()) return action.Fail("kind", "one of F, C, I, W, B, E and R", kind);
    traced->action.kind = *known;
    action.Read("stage", &traced->action.stage);
    action.Read("micro_batch", &traced->action.micro_batch);
    Read(action, "ready_us", &traced->ready);
    Read(action, "start_us", &traced->start);
    Read(action, "end_us", &traced->end);
    Read(action, "passed_on_us", &traced->passed_on);
  });
  ATOLL_RETURN_IF_ERROR(reader.status());
  if (trace.rank >= trace.ranks) {
    return Malformed(file_name, fmt::format("rank: expected one below {}, found {}", trace.ranks, trace.rank));
  }
  absl::Duration before;
  for (size_t i = 0; i < trace.actions.size(); ++i) {
    const TracedAction& traced = trace.actions[i];
    if (before <= traced.ready && traced.ready <= traced.start && traced.start <= traced.end &&
        traced.end <= traced.passed_on) {
      before = traced.passed_on;
      continue;
    }
    return Malformed(file_name,
                     fmt::format("actions[{}]: expected times that do not run backwards from {} us, found "
                                 "{}, {}, {} and {}",
                                 i, absl::ToInt64Microseconds(before), absl::ToInt64Microseconds(traced.ready),
                                 absl::ToInt64Microseconds(traced.start), absl::ToInt64Microseconds(traced.end),
                                 absl::ToInt64Microseconds(traced.passed_on)));
  }
  return trace;
}

std::string StepTraceUri(std::string_view write_prefix, int64_t step, int32_t rank) {
  return fmt::format("{}{}{}{:08}{}{}{}", write_prefix, write_prefix.ends_with('/') ? "" : "/", kFolder, step, kRank,
                     rank, kSuffix);
}

std::optional<StepTraceName> ParseStepTraceName(std::string_view name) {
  StepTraceName parsed;
  if (TakeNumber(&name, &parsed.store_epoch) && Take(&name, "-") && TakeNumber(&name, &parsed.attempt) &&
      Take(&name, "/") && Take(&name, kFolder) && TakeNumber(&name, &parsed.step) && Take(&name, kRank) &&
      TakeNumber(&name, &parsed.rank) && name == kSuffix) {
    return parsed;
  }
  return std::nullopt;
}

std::vector<absl::Duration> AlignedStarts(const std::vector<StepTrace>& traces) {
  std::vector<absl::Duration> starts;
  // The first rank of a boot maps its monotonic clock to wall time; the other ranks of the boot use the same mapping.
  std::map<std::string, const StepTrace*> first_of_boot;
  for (const StepTrace& trace : traces) {
    const StepTrace* anchor = &trace;
    if (!trace.boot_id.empty()) anchor = first_of_boot.emplace(trace.boot_id, &trace).first->second;
    starts.push_back((anchor->start_time - traces.front().start_time) +
                     (trace.start_monotonic - anchor->start_monotonic));
  }
  const auto earliest = std::min_element(starts.begin(), starts.end());
  const absl::Duration base = earliest == starts.end() ? absl::ZeroDuration() : *earliest;
  for (absl::Duration& start : starts) start -= base;
  return starts;
}

}  // namespace atl::storage
