#include "tests/bench/load_figures.h"

#include <algorithm>
#include <cmath>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::bench {
namespace {

Latency LatencyOf(const std::vector<absl::Duration>& values) {
  return {.p50 = Percentile(values, 0.5),
          .p90 = Percentile(values, 0.9),
          .p99 = Percentile(values, 0.99),
          .most = Percentile(values, 1.0)};
}

// One entry per reason: messages differ in numbers and would be as many as requests.
std::string FailureName(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  return reason.empty() ? std::string(absl::StatusCodeToString(status.code())) : reason;
}

}  // namespace

absl::Duration Percentile(std::vector<absl::Duration> values, double q) {
  if (values.empty()) return absl::ZeroDuration();
  const double rank = std::ceil(q * static_cast<double>(values.size()));
  const size_t index = static_cast<size_t>(std::clamp(rank, 1.0, static_cast<double>(values.size()))) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

LoadFigures Summarise(std::span<const RequestOutcome> outcomes) {
  LoadFigures figures{.requests = static_cast<int64_t>(outcomes.size())};
  std::vector<absl::Duration> latencies;
  std::vector<absl::Duration> first_images;
  absl::Duration start = absl::InfiniteDuration();
  absl::Duration end = -absl::InfiniteDuration();
  for (const RequestOutcome& outcome : outcomes) {
    start = std::min(start, outcome.scheduled);
    figures.latest_sent = std::max(figures.latest_sent, outcome.sent - outcome.scheduled);
    if (outcome.status.ok()) {
      ++figures.done;
      figures.images += outcome.images;
      ++figures.versions[outcome.version];
      end = std::max(end, outcome.ended);
      latencies.push_back(outcome.ended - outcome.scheduled);
      if (outcome.first_image) first_images.push_back(*outcome.first_image - outcome.scheduled);
    } else if (absl::IsResourceExhausted(outcome.status)) {
      ++figures.refused;
      if (outcome.retry_delay <= absl::ZeroDuration()) continue;
      const bool first = figures.refused_with_delay++ == 0;
      figures.least_retry_delay =
          first ? outcome.retry_delay : std::min(figures.least_retry_delay, outcome.retry_delay);
      figures.most_retry_delay = std::max(figures.most_retry_delay, outcome.retry_delay);
    } else {
      ++figures.failed;
      ++figures.failures[FailureName(outcome.status)];
    }
  }
  if (figures.done > 0 && end > start) {
    figures.images_per_second = static_cast<double>(figures.images) / absl::ToDoubleSeconds(end - start);
  }
  figures.latency = LatencyOf(latencies);
  figures.first_image = LatencyOf(first_images);
  return figures;
}

}  // namespace atl::bench
