// Measures samples against real images, on pixels in [-1, 1]. Pure; quadratic in the number of images.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace atl::dataset {

// Rows of `dimension` numbers; see AppendScaled. Borrowed.
struct Points {
  std::span<const float> values;
  int64_t dimension = 0;

  int64_t size() const { return dimension > 0 ? static_cast<int64_t>(values.size()) / dimension : 0; }
  std::span<const float> row(int64_t i) const { return values.subspan(i * dimension, dimension); }
};

// All functions: INVALID_ARGUMENT when dimensions or counts do not fit together, or a set is too small.

// Returns the share of samples whose label equals the majority label of their `k` nearest reference images (Euclidean;
// among tied labels, the one with the nearest image wins).
absl::StatusOr<double> NearestNeighbourAccuracy(Points samples, std::span<const int32_t> labels, Points reference,
                                                std::span<const int32_t> reference_labels, int k = 5);

// Returns the unbiased squared maximum mean discrepancy with kernel (x.y / dimension + 1)^3. For equal distributions it
// is around 0, below as often as above.
absl::StatusOr<double> UnbiasedMmd2(Points x, Points y);

// Measures with balls around images; each ball's radius is the distance to the k-th neighbour in its own set. A sampler
// without diversity has no recall. Blurred samples have a density far above 1, noise far below.
struct Diversity {
  double density = 0;   // real balls that hold a sample, over k: 1 for equal distributions (Naeem et al. 2020)
  double coverage = 0;  // share of real balls that hold a sample (the same authors, arXiv 2002.09797)
  double recall = 0;    // share of real images in the ball of any sample (Kynkäänniemi et al. 2019, arXiv 1904.06991)
};
// Coverage and recall grow with the number of samples, so compare them with those of as many real images.
absl::StatusOr<Diversity> MeasureDiversity(Points samples, Points real, int k = 5);

// Detects samples that repeat training images: the distance to the nearest training image over the distance to the
// nearest held-out one. A larger training set alone makes the ratio smaller. Compare it therefore with the same ratio
// of the held-out images, each left out of its own search.
struct Memorisation {
  double median_ratio = 0;    // of the samples
  double baseline_ratio = 0;  // of the held-out images; far smaller sample ratios mean repeated training images
};
absl::StatusOr<Memorisation> MeasureMemorisation(Points samples, Points training, Points held_out);

}  // namespace atl::dataset
