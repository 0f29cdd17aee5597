// Balanced hierarchical k-means over features that need not fit in memory. Mini-batches give fine centroids; these,
// weighted by their rows, are grouped into few coarse clusters of about equal size. Source: MoDE (Ma et al. 2024, arXiv
// 2404.16030), as DDM clusters its data (arXiv 2501.05450).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/spec.h"

namespace atl::tasks {

// Reads features by row from any storage.
class FeatureRows {
 public:
  virtual ~FeatureRows() = default;
  virtual int64_t rows() const = 0;
  virtual int32_t dims() const = 0;
  // Fills `out` (dims() floats).
  virtual absl::Status Read(int64_t row, std::span<float> out) = 0;
};

// The most that a coarse cluster holds relative to its even share, before the last fine centroid that fills it: the
// heaviest cluster has less than kBalanceSlack * rows / clusters + (rows of the heaviest fine centroid).
inline constexpr double kBalanceSlack = 1.05;

struct KMeansOptions {
  int32_t clusters = 0;
  spec::ClusterSpec spec;  // as validated: at least as many fine centroids as clusters, at most as many as rows
  uint64_t seed = 0;
  std::string device = "cpu";  // computes the distances
  // Called between batches, and between rounds over the centroids, with the share that is done, 0 to 1; an error ends
  // the work and is returned.
  std::function<absl::Status(double done)> poll;
};

// Replaces `rows` with rows [first, first + CentroidDistances::kBlock), or as many of them as exist.
absl::Status ReadBlock(FeatureRows* features, int64_t first, std::vector<float>* rows);

struct Clustering {
  int32_t dims = 0;
  std::vector<float> fine;            // [fine centroids][dims]
  std::vector<int64_t> rows_of_fine;  // rows nearest to each
  std::vector<int32_t> coarse_of_fine;
  std::vector<int64_t> rows_of_coarse;
};

// Deterministic by seed for one type of processor, number of threads and device. Memory: one batch, one sample for the
// start (at least 8 rows per fine centroid) and the centroids. INVALID_ARGUMENT if there are fewer distinct rows than
// clusters.
absl::StatusOr<Clustering> ClusterFeatures(FeatureRows* features, const KMeansOptions& options);

// Runs balanced k-means of weighted points, the second level; returns a cluster per point. The cheapest of several
// starts wins. Quadratic in the points. Ignores the options for fine centroids.
absl::StatusOr<std::vector<int32_t>> ClusterWeightedPoints(std::span<const float> points, int32_t dims,
                                                           std::span<const double> weights,
                                                           const KMeansOptions& options);

}  // namespace atl::tasks
