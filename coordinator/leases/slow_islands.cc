#include "coordinator/leases/slow_islands.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace atl::leases {
namespace {

// A slow island takes more than kRatio times the median of the others, and has for kPatience.
constexpr double kRatio = 2;
constexpr absl::Duration kPatience = absl::Minutes(1);

// Returns the median of sorted `times` without the one at `left_out`; there is at least one other.
absl::Duration MedianOfOthers(const std::vector<absl::Duration>& times, size_t left_out) {
  const auto at = [&](size_t i) { return times[i < left_out ? i : i + 1]; };
  const size_t others = times.size() - 1;
  return (at((others - 1) / 2) + at(others / 2)) / 2;
}

}  // namespace

std::vector<StepJudgement> JudgeStepTimes(const std::vector<StepReport>& reports, absl::Duration now) {
  std::map<std::string_view, std::vector<size_t>> groups;
  for (size_t i = 0; i < reports.size(); ++i) {
    if (reports[i].step_time > absl::ZeroDuration()) groups[reports[i].group].push_back(i);
  }
  std::vector<StepJudgement> judgements(reports.size());
  for (auto& [group, members] : groups) {
    if (members.size() < 2) continue;
    std::sort(members.begin(), members.end(),
              [&](size_t a, size_t b) { return reports[a].step_time < reports[b].step_time; });
    std::vector<absl::Duration> times;
    for (const size_t member : members) times.push_back(reports[member].step_time);
    for (size_t place = 0; place < members.size(); ++place) {
      const StepReport& report = reports[members[place]];
      StepJudgement& judgement = judgements[members[place]];
      judgement.slowdown = absl::FDivDuration(report.step_time, MedianOfOthers(times, place));
      if (judgement.slowdown <= kRatio) continue;
      judgement.slower_since = std::min(report.slower_since, now);
      judgement.slow = now - judgement.slower_since >= kPatience;
    }
  }
  return judgements;
}

}  // namespace atl::leases
