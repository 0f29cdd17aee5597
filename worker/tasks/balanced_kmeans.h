// Balanced hierarchical k-means over features that need not fit in memory: fine centroids from mini-batches, then the
// fine centroids, weighted by their rows, into few coarse clusters of about equal size. Source: MoDE (Ma et al. 2024,
// arXiv 2404.16030), as DDM clusters its data (arXiv 2501.05450). Pure: floats and decisions, no LibTorch, no files.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::tasks {

// Features by row, wherever they lie.
class FeatureRows {
 public:
  virtual ~FeatureRows() = default;
  virtual int64_t rows() const = 0;
  virtual int32_t dims() const = 0;
  // Fills `out` (dims() floats).
  virtual absl::Status Read(int64_t row, std::span<float> out) = 0;
};

// Coarse clusters hold at most this much above their even share, before the last fine centroid that fills them: the
// heaviest cluster has less than kBalanceSlack * rows / clusters + (rows of the heaviest fine centroid).
inline constexpr double kBalanceSlack = 1.05;

struct KMeansOptions {
  int32_t clusters = 0;
  int32_t fine_centroids = 0;  // lowered to the number of rows
  int32_t fine_iterations = 50;
  int32_t coarse_iterations = 100;
  int32_t batch_size = 1024;
  uint64_t seed = 0;
  // Asked between batches, and between rounds over the centroids, with the share that is done, 0 to 1; an error ends
  // the work with it.
  std::function<absl::Status(double done)> poll;
};

struct Clustering {
  int32_t dims = 0;
  std::vector<float> fine;            // [fine centroids][dims]
  std::vector<int64_t> rows_of_fine;  // rows nearest to each
  std::vector<int32_t> coarse_of_fine;
  std::vector<int64_t> rows_of_coarse;
};

// Deterministic by seed. Memory: one batch, one sample for the start (at least 8 rows per fine centroid) and the
// centroids. INVALID_ARGUMENT when rows, fine centroids or distinct rows are fewer than the clusters.
absl::StatusOr<Clustering> ClusterFeatures(FeatureRows* features, const KMeansOptions& options);

// The nearest centroid by squared distance; the lower index of equal ones.
int32_t NearestCentroid(std::span<const float> centroids, std::span<const float> row);

// Balanced k-means of weighted points, the second level: a cluster per point. Several starts, the cheapest wins.
// Quadratic in the points. `poll`, which may be empty, is asked between rounds; its error ends the work.
absl::StatusOr<std::vector<int32_t>> ClusterWeightedPoints(std::span<const float> points, int32_t dims,
                                                           std::span<const double> weights, int32_t clusters,
                                                           int32_t iterations, uint64_t seed,
                                                           const std::function<absl::Status()>& poll = {});

}  // namespace atl::tasks
