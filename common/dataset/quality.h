// How good samples are, measured against real images on pixels in [-1, 1]. Pure; quadratic in the number of images.
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

// Share of samples whose label equals the majority label of their `k` nearest reference images (Euclidean; of tied
// labels the one with the nearest image wins).
absl::StatusOr<double> NearestNeighbourAccuracy(Points samples, std::span<const int32_t> labels, Points reference,
                                                std::span<const int32_t> reference_labels, int k = 5);

// Unbiased squared maximum mean discrepancy with kernel (x.y / dimension + 1)^3; around 0 for equal distributions, and
// then as often below 0 as above.
absl::StatusOr<double> UnbiasedMmd2(Points x, Points y);

// Balls around images, each as wide as the distance to its k-th neighbour in its own set. A sampler without diversity
// has no recall; one of blurs has a density far above 1, one of noise far below.
struct Diversity {
  double density = 0;   // real balls that hold a sample, over k: 1 for equal distributions (Naeem et al. 2020)
  double coverage = 0;  // share of real balls that hold a sample (the same authors, arXiv 2002.09797)
  double recall = 0;    // share of real images in the ball of any sample (Kynkäänniemi et al. 2019, arXiv 1904.06991)
};
// Coverage and recall grow with the number of samples: compare them with those of as many real images.
absl::StatusOr<Diversity> MeasureDiversity(Points samples, Points real, int k = 5);

// Whether samples repeat training images: distance to the nearest training image over distance to the nearest held-out
// one. A larger training set makes the ratio smaller by itself, so that it is compared with the same ratio of fresh
// real images: the held-out ones, each left out of its own search.
struct Memorisation {
  double median_ratio = 0;    // of the samples
  double baseline_ratio = 0;  // of the held-out images; samples far below it repeat training images
};
absl::StatusOr<Memorisation> MeasureMemorisation(Points samples, Points training, Points held_out);

}  // namespace atl::dataset
