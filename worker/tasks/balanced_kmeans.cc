#include "worker/tasks/balanced_kmeans.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "worker/tasks/balanced_assignment.h"
#include "worker/tasks/centroid_distances.h"

namespace atl::tasks {
namespace {

constexpr int32_t kStartRowsPerCentroid = 8;
constexpr int kCoarseStarts = 8;
// A batch's centroids count for so much against the batches before: about ten batches are remembered, so that the
// first assignments, made around poor centroids, fade.
constexpr double kMemoryOfEarlierBatches = 0.9;

// Steps of CounterRandom, one per kind of draw.
enum class Draw : uint64_t { kStartRows = 0, kFineStart = 1, kCoarseStart = 2, kBatch = 1000 };

CounterRandom Random(uint64_t seed, Draw draw, uint64_t round, uint64_t sample) {
  return CounterRandom(seed, RandomPurpose::kCluster, static_cast<uint64_t>(draw) + round, sample);
}

double SquaredDistance(const float* a, const float* b, int32_t dims) {
  double sum = 0;
  for (int32_t j = 0; j < dims; ++j) {
    const double difference = static_cast<double>(a[j]) - static_cast<double>(b[j]);
    sum += difference * difference;
  }
  return sum;
}

// k-means++ (Arthur and Vassilvitskii 2007) with weights: each next centroid is a point, drawn by its weighted distance
// from those before it. `uniform(i)` is the i-th random number in [0, 1); `poll` is asked before each.
absl::StatusOr<std::vector<float>> StartCentroids(std::span<const float> points, int32_t dims,
                                                  std::span<const double> weights, int32_t count,
                                                  const std::function<double(uint32_t)>& uniform,
                                                  const std::function<absl::Status()>& poll) {
  std::vector<double> share(weights.begin(), weights.end());
  std::vector<double> nearest(weights.size(), std::numeric_limits<double>::infinity());
  std::vector<float> centroids;
  for (int32_t c = 0; c < count; ++c) {
    ATOLL_RETURN_IF_ERROR(poll());
    double target = uniform(c) * std::accumulate(share.begin(), share.end(), 0.0);
    // The last point with a share catches what rounding leaves of the target.
    size_t chosen = 0;
    for (size_t i = 0; i < share.size(); ++i) {
      if (share[i] <= 0) continue;
      chosen = i;
      if (target < share[i]) break;
      target -= share[i];
    }
    const std::span<const float> point = points.subspan(chosen * dims, dims);
    centroids.insert(centroids.end(), point.begin(), point.end());
    for (size_t i = 0; i < share.size(); ++i) {
      nearest[i] = std::min(nearest[i], SquaredDistance(&points[i * dims], point.data(), dims));
      share[i] = weights[i] * nearest[i];
    }
  }
  return centroids;
}

// Weighted means of the points of each cluster; a cluster without weight keeps `centroids`'.
void MoveToMeans(std::span<const float> points, int32_t dims, std::span<const double> weights,
                 const std::vector<int32_t>& assignment, double memory, std::vector<double>* counts,
                 std::vector<float>* centroids) {
  const size_t clusters = counts->size();
  std::vector<double> sums(clusters * dims, 0);
  std::vector<double> added(clusters, 0);
  for (size_t i = 0; i < assignment.size(); ++i) {
    added[assignment[i]] += weights[i];
    for (int32_t j = 0; j < dims; ++j) {
      sums[static_cast<size_t>(assignment[i]) * dims + j] += weights[i] * static_cast<double>(points[i * dims + j]);
    }
  }
  for (size_t c = 0; c < clusters; ++c) {
    const double kept = (*counts)[c] * memory;
    if (added[c] <= 0) continue;
    (*counts)[c] = kept + added[c];
    for (int32_t j = 0; j < dims; ++j) {
      float& value = (*centroids)[c * dims + j];
      value = static_cast<float>((kept * static_cast<double>(value) + sums[c * dims + j]) / (*counts)[c]);
    }
  }
}

double TotalCost(std::span<const double> costs, int32_t clusters, const std::vector<int32_t>& assignment,
                 std::span<const double> weights) {
  double total = 0;
  for (size_t i = 0; i < assignment.size(); ++i) total += weights[i] * costs[i * clusters + assignment[i]];
  return total;
}

// Costs weighted by points' weights: a heavy point in the wrong cluster loses more.
void ScaleByWeight(std::span<const double> weights, int32_t clusters, std::vector<double>* costs) {
  for (size_t i = 0; i < costs->size(); ++i) (*costs)[i] *= weights[i / clusters];
}

absl::Status Poll(const KMeansOptions& options, double done) {
  return options.poll ? options.poll(done) : absl::OkStatus();
}

// `count` rows: all, in order, when there are no more; else drawn with `draw`.
absl::StatusOr<std::vector<float>> ReadRows(FeatureRows* features, int64_t count, uint64_t seed, Draw draw,
                                            uint64_t round) {
  const auto dims = static_cast<size_t>(features->dims());
  const int64_t rows = std::min(count, features->rows());
  std::vector<float> values(static_cast<size_t>(rows) * dims);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row =
        rows == features->rows() ? i : static_cast<int64_t>(Random(seed, draw, round, i).Below(features->rows()));
    ATOLL_RETURN_IF_ERROR(features->Read(row, std::span(values).subspan(i * dims, dims)));
  }
  return values;
}

absl::StatusOr<std::vector<float>> FitFineCentroids(FeatureRows* features, const KMeansOptions& options) {
  const int32_t dims = features->dims();
  const int32_t count = options.spec.fine_centroids;
  const int64_t start_rows = std::max<int64_t>(options.spec.batch_size, int64_t{count} * kStartRowsPerCentroid);
  std::vector<float> centroids;
  {
    ATOLL_ASSIGN_OR_RETURN(const std::vector<float> sample,
                           ReadRows(features, start_rows, options.seed, Draw::kStartRows, 0));
    const std::vector<double> weights(sample.size() / dims, 1.0);
    const auto uniform = [&](uint32_t i) {
      return static_cast<double>(Random(options.seed, Draw::kFineStart, 0, i).Uniform());
    };
    ATOLL_ASSIGN_OR_RETURN(
        centroids, StartCentroids(sample, dims, weights, count, uniform, [&options] { return Poll(options, 0); }));
  }
  const double memory = features->rows() <= options.spec.batch_size ? 0 : kMemoryOfEarlierBatches;
  std::vector<double> counts(count, 0);
  for (int32_t iteration = 0; iteration < options.spec.fine_iterations; ++iteration) {
    ATOLL_RETURN_IF_ERROR(Poll(options, 0.8 * iteration / options.spec.fine_iterations));
    ATOLL_ASSIGN_OR_RETURN(const std::vector<float> batch,
                           ReadRows(features, options.spec.batch_size, options.seed, Draw::kBatch, iteration));
    const std::vector<double> weights(batch.size() / dims, 1.0);
    const double capacity = kBalanceSlack * static_cast<double>(weights.size()) / count;
    const CentroidDistances distances(centroids, dims, options.device);
    const std::vector<int32_t> assignment = AssignBalanced(distances.Squared(batch), count, weights, capacity);
    MoveToMeans(batch, dims, weights, assignment, memory, &counts, &centroids);
  }
  return centroids;
}

absl::StatusOr<std::vector<int64_t>> CountNearest(FeatureRows* features, const KMeansOptions& options,
                                                  std::span<const float> centroids) {
  const auto dims = static_cast<size_t>(features->dims());
  std::vector<int64_t> counts(centroids.size() / dims, 0);
  const CentroidDistances distances(centroids, features->dims(), options.device);
  std::vector<float> block;
  for (int64_t first = 0; first < features->rows(); first += CentroidDistances::kBlock) {
    ATOLL_RETURN_IF_ERROR(
        Poll(options, 0.8 + 0.2 * static_cast<double>(first) / static_cast<double>(features->rows())));
    ATOLL_RETURN_IF_ERROR(ReadBlock(features, first, &block));
    for (const int32_t nearest : distances.Nearest(block)) ++counts[nearest];
  }
  return counts;
}

}  // namespace

absl::Status ReadBlock(FeatureRows* features, int64_t first, std::vector<float>* rows) {
  const auto dims = static_cast<size_t>(features->dims());
  const int64_t count = std::min(CentroidDistances::kBlock, features->rows() - first);
  rows->resize(static_cast<size_t>(count) * dims);
  for (int64_t i = 0; i < count; ++i) {
    ATOLL_RETURN_IF_ERROR(features->Read(first + i, std::span(*rows).subspan(i * dims, dims)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ClusterWeightedPoints(std::span<const float> points, int32_t dims,
                                                           std::span<const double> weights,
                                                           const KMeansOptions& options) {
  const int32_t clusters = options.clusters;
  const auto poll = [&options] { return Poll(options, 1); };
  const double capacity = kBalanceSlack * std::accumulate(weights.begin(), weights.end(), 0.0) / clusters;
  std::vector<int32_t> best;
  double least = std::numeric_limits<double>::infinity();
  for (int start = 0; start < kCoarseStarts; ++start) {
    const auto uniform = [&](uint32_t i) {
      return static_cast<double>(Random(options.seed, Draw::kCoarseStart, start, i).Uniform());
    };
    ATOLL_ASSIGN_OR_RETURN(std::vector<float> centroids,
                           StartCentroids(points, dims, weights, clusters, uniform, poll));
    std::vector<int32_t> assignment;
    for (int32_t iteration = 0; iteration <= options.spec.coarse_iterations; ++iteration) {
      ATOLL_RETURN_IF_ERROR(poll());
      std::vector<double> costs = CentroidDistances(centroids, dims, options.device).Squared(points);
      ScaleByWeight(weights, clusters, &costs);
      std::vector<int32_t> next = AssignBalanced(costs, clusters, weights, capacity);
      ImproveAssignment(costs, clusters, weights, capacity, &next);
      if (next == assignment) break;
      assignment = std::move(next);
      std::vector<double> counts(clusters, 0);
      MoveToMeans(points, dims, weights, assignment, 0, &counts, &centroids);
    }
    const CentroidDistances distances(centroids, dims, options.device);
    const double cost = TotalCost(distances.Squared(points), clusters, assignment, weights);
    if (cost < least) {
      least = cost;
      best = std::move(assignment);
    }
  }
  return best;
}

absl::StatusOr<Clustering> ClusterFeatures(FeatureRows* features, const KMeansOptions& options) {
  Clustering result{.dims = features->dims()};
  ATOLL_ASSIGN_OR_RETURN(result.fine, FitFineCentroids(features, options));
  ATOLL_ASSIGN_OR_RETURN(result.rows_of_fine, CountNearest(features, options, result.fine));
  const std::vector<double> weights(result.rows_of_fine.begin(), result.rows_of_fine.end());
  ATOLL_ASSIGN_OR_RETURN(result.coarse_of_fine, ClusterWeightedPoints(result.fine, result.dims, weights, options));
  result.rows_of_coarse.assign(options.clusters, 0);
  for (size_t i = 0; i < result.rows_of_fine.size(); ++i) {
    result.rows_of_coarse[result.coarse_of_fine[i]] += result.rows_of_fine[i];
  }
  const auto empty = std::find(result.rows_of_coarse.begin(), result.rows_of_coarse.end(), 0);
  if (empty != result.rows_of_coarse.end()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "CLUSTER_EMPTY",
                     fmt::format("cluster {} of {} would be empty: the features of {} rows have too few distinct "
                                 "values; use other features, fewer experts, or clustering.method: random",
                                 empty - result.rows_of_coarse.begin(), options.clusters, features->rows()));
  }
  return result;
}

}  // namespace atl::tasks
