#include "common/dataset/quality.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <cmath>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::dataset {
namespace {

absl::Status CheckPoints(const char* name, Points points, int64_t dimension, int64_t minimum) {
  const bool whole = points.dimension > 0 && points.values.size() % points.dimension == 0;
  if (whole && points.dimension == dimension && points.size() >= minimum) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "POINTS_DO_NOT_FIT",
                   fmt::format("{}: expected at least {} rows of {} numbers, found {} numbers in rows of {}", name,
                               minimum, dimension, points.values.size(), points.dimension));
}

double SquaredDistance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return sum;
}

double CubicKernel(std::span<const float> a, std::span<const float> b) {
  double product = 0;
  for (size_t i = 0; i < a.size(); ++i) product += static_cast<double>(a[i]) * b[i];
  const double base = product / static_cast<double>(a.size()) + 1;
  return base * base * base;
}

// Label of the majority; of tied ones that of the nearest. `nearest` is sorted by distance.
int32_t MajorityLabel(const std::vector<std::pair<double, int32_t>>& nearest) {
  std::map<int32_t, int> votes;
  int most = 0;
  for (const auto& [distance, label] : nearest) most = std::max(most, ++votes[label]);
  for (const auto& [distance, label] : nearest) {
    if (votes[label] == most) return label;
  }
  return -1;
}

// Mean kernel over pairs of different rows of one set.
double MeanWithin(Points points) {
  double sum = 0;
  const int64_t n = points.size();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i + 1; j < n; ++j) sum += CubicKernel(points.row(i), points.row(j));
  }
  return 2 * sum / (static_cast<double>(n) * static_cast<double>(n - 1));
}

// Returns the distance to the nearest of `others`, except row `left_out`.
double NearestDistance(std::span<const float> point, Points others, int64_t left_out = -1) {
  double nearest = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < others.size(); ++i) {
    if (i != left_out) nearest = std::min(nearest, SquaredDistance(point, others.row(i)));
  }
  return std::sqrt(nearest);
}

// By row: the squared distance to the k-th nearest other row of the set.
std::vector<double> Radii(Points points, int k) {
  std::vector<double> radii;
  std::vector<double> distances(points.size());
  for (int64_t i = 0; i < points.size(); ++i) {
    for (int64_t j = 0; j < points.size(); ++j) distances[j] = SquaredDistance(points.row(i), points.row(j));
    distances[i] = std::numeric_limits<double>::infinity();
    std::nth_element(distances.begin(), distances.begin() + (k - 1), distances.end());
    radii.push_back(distances[k - 1]);
  }
  return radii;
}

double Ratio(double to_training, double to_held_out) {
  if (to_held_out > 0) return to_training / to_held_out;
  // The sample equals a held-out image. If a training image is equally near, the ratio is even.
  return to_training > 0 ? std::numeric_limits<double>::infinity() : 1.0;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

absl::StatusOr<double> NearestNeighbourAccuracy(Points samples, std::span<const int32_t> labels, Points reference,
                                                std::span<const int32_t> reference_labels, int k) {
  ATOLL_RETURN_IF_ERROR(CheckPoints("samples", samples, samples.dimension, 1));
  ATOLL_RETURN_IF_ERROR(CheckPoints("reference", reference, samples.dimension, std::max(k, 1)));
  if (k < 1 || static_cast<int64_t>(labels.size()) != samples.size() ||
      static_cast<int64_t>(reference_labels.size()) != reference.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "POINTS_DO_NOT_FIT",
                     fmt::format("expected k of at least 1, {} labels and {} reference labels, found {}, {} and {}",
                                 samples.size(), reference.size(), k, labels.size(), reference_labels.size()));
  }
  int64_t right = 0;
  std::vector<std::pair<double, int32_t>> distances(reference.size());
  for (int64_t i = 0; i < samples.size(); ++i) {
    for (int64_t j = 0; j < reference.size(); ++j) {
      distances[j] = {SquaredDistance(samples.row(i), reference.row(j)), reference_labels[j]};
    }
    std::partial_sort(distances.begin(), distances.begin() + k, distances.end());
    right += MajorityLabel({distances.begin(), distances.begin() + k}) == labels[i] ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(samples.size());
}

absl::StatusOr<double> UnbiasedMmd2(Points x, Points y) {
  ATOLL_RETURN_IF_ERROR(CheckPoints("x", x, x.dimension, 2));
  ATOLL_RETURN_IF_ERROR(CheckPoints("y", y, x.dimension, 2));
  double between = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    for (int64_t j = 0; j < y.size(); ++j) between += CubicKernel(x.row(i), y.row(j));
  }
  between /= static_cast<double>(x.size()) * static_cast<double>(y.size());
  return MeanWithin(x) + MeanWithin(y) - 2 * between;
}

absl::StatusOr<Diversity> MeasureDiversity(Points samples, Points real, int k) {
  ATOLL_RETURN_IF_ERROR(CheckPoints("samples", samples, samples.dimension, k + 1));
  ATOLL_RETURN_IF_ERROR(CheckPoints("real", real, samples.dimension, k + 1));
  const std::vector<double> of_samples = Radii(samples, k);
  const std::vector<double> of_real = Radii(real, k);
  int64_t held = 0;
  int64_t covered = 0;
  int64_t recalled = 0;
  for (int64_t i = 0; i < real.size(); ++i) {
    const int64_t held_before = held;
    bool in_sample = false;
    for (int64_t j = 0; j < samples.size(); ++j) {
      const double distance = SquaredDistance(real.row(i), samples.row(j));
      held += distance < of_real[i] ? 1 : 0;
      in_sample = in_sample || distance < of_samples[j];
    }
    covered += held > held_before ? 1 : 0;
    recalled += in_sample ? 1 : 0;
  }
  const auto images = static_cast<double>(real.size());
  return Diversity{.density = static_cast<double>(held) / (k * static_cast<double>(samples.size())),
                   .coverage = static_cast<double>(covered) / images,
                   .recall = static_cast<double>(recalled) / images};
}

absl::StatusOr<Memorisation> MeasureMemorisation(Points samples, Points training, Points held_out) {
  ATOLL_RETURN_IF_ERROR(CheckPoints("samples", samples, samples.dimension, 1));
  ATOLL_RETURN_IF_ERROR(CheckPoints("training", training, samples.dimension, 1));
  ATOLL_RETURN_IF_ERROR(CheckPoints("held_out", held_out, samples.dimension, 2));
  std::vector<double> ratios;
  for (int64_t i = 0; i < samples.size(); ++i) {
    ratios.push_back(Ratio(NearestDistance(samples.row(i), training), NearestDistance(samples.row(i), held_out)));
  }
  std::vector<double> fresh;
  for (int64_t i = 0; i < held_out.size(); ++i) {
    fresh.push_back(Ratio(NearestDistance(held_out.row(i), training), NearestDistance(held_out.row(i), held_out, i)));
  }
  return Memorisation{.median_ratio = Median(std::move(ratios)), .baseline_ratio = Median(std::move(fresh))};
}

}  // namespace atl::dataset
