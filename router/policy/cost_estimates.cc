#include "router/policy/cost_estimates.h"

#include <algorithm>
#include <limits>

namespace atl::router {
namespace {

// The factor by which a batch's weight falls when the next one is measured.
constexpr double kFading = 0.95;
// The least cost of a further row, as a share of the mean cost per row. Noise among batches of one size could give any
// slope.
constexpr double kLeastSlope = 0.02;
// The relative variance of batch sizes above which a fitted line is better than the mean.
constexpr double kLeastSpread = 0.01;

}  // namespace

int64_t BatchCost::RowsWithin(absl::Duration time, int64_t limit) const {
  const double rows = absl::FDivDuration(time - fixed, per_row);
  if (!(rows > 1)) return 1;
  return rows < static_cast<double>(limit) ? static_cast<int64_t>(rows) : std::max<int64_t>(1, limit);
}

void CostEstimates::Record(int64_t model, int32_t network, int64_t rows, absl::Duration duration) {
  if (rows < 1) return;
  Fit& fit = fits_[{model, network}];
  for (double* sum : {&fit.count, &fit.rows, &fit.seconds, &fit.rows_squared, &fit.rows_seconds}) *sum *= kFading;
  const auto x = static_cast<double>(rows);
  const double y = absl::ToDoubleSeconds(duration);
  fit.count += 1;
  fit.rows += x;
  fit.seconds += y;
  fit.rows_squared += x * x;
  fit.rows_seconds += x * y;
}

BatchCost CostEstimates::Fit::Line() const {
  const double mean_rows = rows / count;
  const double mean_seconds = seconds / count;
  const double through_zero = mean_seconds / mean_rows;
  const double variance = rows_squared / count - mean_rows * mean_rows;
  double slope = through_zero;
  if (variance > kLeastSpread * mean_rows * mean_rows) {
    slope = (rows_seconds / count - mean_rows * mean_seconds) / variance;
    slope = std::clamp(slope, kLeastSlope * through_zero, through_zero);
  }
  return {.fixed = absl::Seconds(std::max(0.0, mean_seconds - slope * mean_rows)), .per_row = absl::Seconds(slope)};
}

BatchCost CostEstimates::Measured(int64_t model, int32_t network) const {
  const auto found = fits_.find({model, network});
  return found == fits_.end() ? BatchCost() : found->second.Line();
}

BatchCost CostEstimates::Cost(int64_t model, int32_t network) const {
  if (const auto found = fits_.find({model, network}); found != fits_.end()) return found->second.Line();
  BatchCost sum;
  int64_t count = 0;
  const auto begin = fits_.lower_bound({model, std::numeric_limits<int32_t>::min()});
  for (auto it = begin; it != fits_.end() && it->first.first == model; ++it, ++count) {
    const BatchCost line = it->second.Line();
    sum.fixed += line.fixed;
    sum.per_row += line.per_row;
  }
  return count == 0 ? sum : BatchCost{.fixed = sum.fixed / count, .per_row = sum.per_row / count};
}

void CostEstimates::Forget(int64_t model) {
  std::erase_if(fits_, [&](const auto& entry) { return entry.first.first == model; });
}

}  // namespace atl::router
