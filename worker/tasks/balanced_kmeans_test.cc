#include "worker/tasks/balanced_kmeans.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "worker/tasks/balanced_assignment.h"
#include "worker/tasks/centroid_distances.h"

namespace atl::tasks {
namespace {

class VectorRows : public FeatureRows {
 public:
  VectorRows(std::vector<float> values, int32_t dims) : values_(std::move(values)), dims_(dims) {}
  int64_t rows() const override { return static_cast<int64_t>(values_.size()) / dims_; }
  int32_t dims() const override { return dims_; }
  absl::Status Read(int64_t row, std::span<float> out) override {
    std::copy_n(&values_[row * dims_], dims_, out.begin());
    return absl::OkStatus();
  }

 private:
  std::vector<float> values_;
  int32_t dims_;
};

// The pixels of scikit-learn's 1,797 digits, or nothing where the environment is not set.
std::vector<float> Digits() {
  const char* prefix = std::getenv("ATOLL_PREFIX");
  std::vector<float> pixels;
  if (prefix == nullptr) return pixels;
  const gzFile file = gzopen((std::string(prefix) + "/data/digits.csv.gz").c_str(), "rb");
  if (file == nullptr) return pixels;
  std::array<char, 4096> line;
  while (gzgets(file, line.data(), line.size()) != nullptr) {
    char* at = line.data();
    for (int i = 0; i < 64; ++i, ++at) pixels.push_back(std::strtof(at, &at) / 8 - 1);
  }
  gzclose(file);
  return pixels;
}

// The cluster of every row of `values`.
std::vector<int32_t> ClustersOf(const Clustering& clustering, std::span<const float> values) {
  std::vector<int32_t> clusters = CentroidDistances(clustering.fine, clustering.dims, "cpu").Nearest(values);
  for (int32_t& cluster : clusters) cluster = clustering.coarse_of_fine[cluster];
  return clusters;
}

// Random rows in which no two distances are equal to within rounding.
std::vector<float> RandomRows(int64_t rows, int32_t dims, uint64_t sample) {
  std::vector<float> values(rows * dims);
  CounterRandom(7, RandomPurpose::kSubset, 0, sample).Normal(values);
  return values;
}

TEST(CentroidDistancesTest, AreThoseOfTheDifferencesFarFromZeroToo) {
  constexpr int32_t kDims = 40;
  for (const float offset : {0.0F, 1000.0F}) {
    std::vector<float> rows = RandomRows(30, kDims, 1);
    std::vector<float> centroids = RandomRows(20, kDims, 2);
    for (float& value : rows) value += offset;
    for (float& value : centroids) value += offset;
    const std::vector<double> squared = CentroidDistances(centroids, kDims, "cpu").Squared(rows);
    ASSERT_EQ(squared.size(), 600U);
    for (int i = 0; i < 30; ++i) {
      for (int c = 0; c < 20; ++c) {
        double expected = 0;
        for (int j = 0; j < kDims; ++j) expected += std::pow(double{rows[i * kDims + j]} - centroids[c * kDims + j], 2);
        EXPECT_NEAR(squared[i * 20 + c], expected, 1e-5 * expected) << offset;
      }
    }
  }
}

TEST(CentroidDistancesTest, ARowsDistancesDoNotDependOnTheRowsBesideIt) {
  constexpr int32_t kDims = 37;
  const std::vector<float> rows = RandomRows(CentroidDistances::kBlock + 100, kDims, 1);
  const CentroidDistances distances(RandomRows(50, kDims, 2), kDims, "cpu");
  const std::vector<double> whole = distances.Squared(rows);
  const std::vector<int32_t> nearest = distances.Nearest(rows);
  for (const int64_t row : {int64_t{0}, int64_t{1}, int64_t{777}, CentroidDistances::kBlock - 1,
                            CentroidDistances::kBlock, CentroidDistances::kBlock + 99}) {
    const auto one = std::span(rows).subspan(row * kDims, kDims);
    EXPECT_EQ(distances.Squared(one), std::vector<double>(&whole[row * 50], &whole[row * 50 + 50])) << row;
    EXPECT_EQ(distances.Nearest(one)[0], nearest[row]);
  }
}

TEST(CentroidDistancesTest, OfEqualCentroidsTheLowestIndexIsTheNearest) {
  constexpr int32_t kDims = 19;
  const std::vector<float> three = RandomRows(3, kDims, 3);
  std::vector<float> centroids;
  for (int i = 0; i < 40; ++i) centroids.insert(centroids.end(), three.begin(), three.end());
  const std::vector<float> rows = RandomRows(200, kDims, 4);
  for (const int32_t nearest : CentroidDistances(centroids, kDims, "cpu").Nearest(rows)) EXPECT_LT(nearest, 3);
  // Half way between centroids 0 and 1.
  const std::vector<float> line = {-1, 1, -1, 1, 5};
  EXPECT_EQ(CentroidDistances(line, 1, "cpu").Nearest(std::vector<float>{0, 0.25, -0.25, 3.5}),
            (std::vector<int32_t>{0, 1, 0, 4}));
}

TEST(ClusterFeatures, RealDigitsInFourClustersStayBelowOneAndAHalfTimesTheMean) {
  const std::vector<float> pixels = Digits();
  if (pixels.empty()) GTEST_SKIP() << "the digits of ATOLL_PREFIX are not there: run through ctest";
  VectorRows rows(pixels, 64);
  ASSERT_EQ(rows.rows(), 1797);
  for (const uint64_t seed : {0u, 1u, 2u, 3u}) {
    const auto clustering = ClusterFeatures(&rows, {.clusters = 4, .spec = {.fine_centroids = 64}, .seed = seed});
    ASSERT_TRUE(clustering.ok()) << clustering.status();
    const auto& sizes = clustering->rows_of_coarse;
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), 1797);
    EXPECT_LT(*std::max_element(sizes.begin(), sizes.end()), 1.25 * 1797 / 4);
    EXPECT_GT(*std::min_element(sizes.begin(), sizes.end()), 0.7 * 1797 / 4);
    // The sizes are those of the rule by which samples are placed later.
    std::vector<int64_t> placed(4, 0);
    for (const int32_t cluster : ClustersOf(*clustering, pixels)) ++placed[cluster];
    EXPECT_EQ(placed, sizes);
  }
}

TEST(ClusterFeatures, TheSameSeedGivesTheSameBitsAndAnotherSeedOthers) {
  const std::vector<float> pixels = Digits();
  if (pixels.empty()) GTEST_SKIP() << "the digits of ATOLL_PREFIX are not there: run through ctest";
  VectorRows rows(pixels, 64);
  const KMeansOptions options{
      .clusters = 4, .spec = {.fine_centroids = 32, .fine_iterations = 10, .batch_size = 256}, .seed = 5};
  const auto first = ClusterFeatures(&rows, options);
  const auto second = ClusterFeatures(&rows, options);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->fine, second->fine);
  EXPECT_EQ(first->coarse_of_fine, second->coarse_of_fine);
  KMeansOptions other = options;
  other.seed = 6;
  EXPECT_NE(ClusterFeatures(&rows, other)->fine, first->fine);
}

// Four blobs far apart; row i lies in blob i % 4. Rows are made when they are read, so that nothing but the clustering
// holds them.
class BlobRows : public FeatureRows {
 public:
  int64_t rows() const override { return 50'000; }
  int32_t dims() const override { return 8; }
  absl::Status Read(int64_t row, std::span<float> out) override {
    CounterRandom(1, RandomPurpose::kSubset, 0, row).Normal(out);
    out[row % 4] += 30;
    ++reads;
    return absl::OkStatus();
  }
  int64_t reads = 0;
};

TEST(ClusterFeatures, FeaturesLargerThanABatchAreReadInBatches) {
  BlobRows rows;
  const auto clustering =
      ClusterFeatures(&rows, {.clusters = 4, .spec = {.fine_centroids = 16, .fine_iterations = 20, .batch_size = 256}});
  ASSERT_TRUE(clustering.ok()) << clustering.status();
  // One sample for the start, 20 batches, one pass that counts.
  EXPECT_EQ(rows.reads, 256 + 20 * 256 + 50'000);
  std::vector<float> block;
  ASSERT_TRUE(ReadBlock(&rows, 0, &block).ok());
  const std::vector<int32_t> clusters = ClustersOf(*clustering, block);
  for (size_t i = 0; i < clusters.size(); ++i) EXPECT_EQ(clusters[i], clusters[i % 4]) << i;
  EXPECT_EQ(std::set<int32_t>(clusters.begin(), clusters.end()).size(), 4u);
}

TEST(ClusterFeatures, RefusesFewerDistinctRowsThanClusters) {
  VectorRows same(std::vector<float>(20, 1.0F), 1);
  EXPECT_EQ(ErrorReason(ClusterFeatures(&same, {.clusters = 2, .spec = {.fine_centroids = 8}}).status()),
            "CLUSTER_EMPTY");
}

TEST(ClusterFeatures, AnErrorOfThePollEndsIt) {
  BlobRows rows;
  KMeansOptions options{.clusters = 2, .spec = {.fine_centroids = 4, .batch_size = 64}};
  options.poll = [](double done) { return done > 0.3 ? absl::AbortedError("cancelled") : absl::OkStatus(); };
  EXPECT_EQ(ClusterFeatures(&rows, options).status().code(), absl::StatusCode::kAborted);
  EXPECT_LT(rows.reads, 50'000);
  // In the last part too, when every row was read: it may take longest.
  options.poll = [](double done) { return done == 1 ? absl::AbortedError("cancelled") : absl::OkStatus(); };
  EXPECT_EQ(ClusterFeatures(&rows, options).status().code(), absl::StatusCode::kAborted);
  // And in the first, before a batch was read.
  int asked = 0;
  options.poll = [&asked](double) { return ++asked > 2 ? absl::AbortedError("cancelled") : absl::OkStatus(); };
  rows.reads = 0;
  EXPECT_EQ(ClusterFeatures(&rows, options).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rows.reads, 64) << "the sample for the start";
}

// The cost of the best of all assignments whose clusters hold at most `limit` points, around the clusters' own means.
double BruteForceCost(const std::vector<float>& points, int32_t clusters, size_t limit) {
  const size_t n = points.size();
  double least = std::numeric_limits<double>::infinity();
  std::vector<int32_t> assignment(n, 0);
  for (;;) {
    double cost = 0;
    bool balanced = true;
    for (int32_t c = 0; c < clusters; ++c) {
      double sum = 0;
      double squares = 0;
      size_t count = 0;
      for (size_t i = 0; i < n; ++i) {
        if (assignment[i] != c) continue;
        sum += points[i];
        squares += points[i] * points[i];
        ++count;
      }
      balanced = balanced && count <= limit;
      if (count > 0) cost += squares - sum * sum / static_cast<double>(count);
    }
    if (balanced) least = std::min(least, cost);
    size_t digit = 0;
    while (digit < n && ++assignment[digit] == clusters) assignment[digit++] = 0;
    if (digit == n) return least;
  }
}

double CostAroundMeans(const std::vector<float>& points, int32_t clusters, const std::vector<int32_t>& assignment) {
  double cost = 0;
  for (int32_t c = 0; c < clusters; ++c) {
    double sum = 0;
    double squares = 0;
    double count = 0;
    for (size_t i = 0; i < points.size(); ++i) {
      if (assignment[i] != c) continue;
      sum += points[i];
      squares += points[i] * points[i];
      ++count;
    }
    if (count > 0) cost += squares - sum * sum / count;
  }
  return cost;
}

TEST(ClusterWeightedPoints, EqualsBruteForceOnTinySeparableData) {
  const std::vector<std::vector<float>> cases = {
      {0, 1, 10, 11, 20, 21},
      {0, 0.5, 1, 8, 8.5, 9, 30, 30.5, 31},
      {-5, -4.5, 7, 7.25, 100, 101},
  };
  for (const std::vector<float>& points : cases) {
    const std::vector<double> weights(points.size(), 1.0);
    const auto assignment = ClusterWeightedPoints(points, 1, weights, {.clusters = 3});
    ASSERT_TRUE(assignment.ok()) << assignment.status();
    EXPECT_NEAR(CostAroundMeans(points, 3, *assignment), BruteForceCost(points, 3, points.size() / 3), 1e-6);
  }
}

TEST(ClusterWeightedPoints, BalanceHoldsWhereTheDataHasNone) {
  // Nine tenths of the points in one place: balance, not distance, decides.
  std::vector<float> points;
  for (int i = 0; i < 90; ++i) points.push_back(static_cast<float>(i) * 0.01F);
  for (int i = 0; i < 10; ++i) points.push_back(100.0F + static_cast<float>(i));
  const std::vector<double> weights(points.size(), 1.0);
  std::vector<int> sizes(4, 0);
  const auto assignment = ClusterWeightedPoints(points, 1, weights, {.clusters = 4});
  ASSERT_TRUE(assignment.ok()) << assignment.status();
  for (const int32_t cluster : *assignment) ++sizes[cluster];
  EXPECT_LE(*std::max_element(sizes.begin(), sizes.end()), 27);
}

TEST(AssignBalanced, LoadsStayBelowCapacityPlusTheHeaviestPoint) {
  constexpr uint32_t kSeed = 99;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 200; ++round) {
    const auto points = 1 + random() % 60;
    const auto clusters = static_cast<int32_t>(1 + random() % 6);
    std::vector<double> weights(points);
    for (double& weight : weights) weight = round % 2 == 0 ? 1 : uniform(random);
    std::vector<double> costs(points * clusters);
    for (double& cost : costs) cost = uniform(random);
    const double capacity = std::accumulate(weights.begin(), weights.end(), 0.0) / clusters;
    auto assignment = AssignBalanced(costs, clusters, weights, capacity);
    ImproveAssignment(costs, clusters, weights, capacity, &assignment);
    std::vector<double> load(clusters, 0);
    for (size_t i = 0; i < points; ++i) {
      ASSERT_GE(assignment[i], 0);
      load[assignment[i]] += weights[i];
    }
    const double heaviest = *std::max_element(weights.begin(), weights.end());
    for (const double value : load) EXPECT_LT(value, capacity + heaviest + 1e-9);
  }
}

TEST(AssignBalanced, ThePointThatWouldLoseMostChoosesFirst) {
  // Both want cluster 0, which takes one: point 1 would lose 9, point 0 only 1.
  EXPECT_EQ(AssignBalanced(std::vector<double>{0, 1, 0, 9}, 2, std::vector<double>{1, 1}, 1),
            (std::vector<int32_t>{1, 0}));
}

TEST(ImproveAssignment, SwapsWhatGreedyGotWrong) {
  std::vector<int32_t> assignment{1, 0};
  ImproveAssignment(std::vector<double>{0, 5, 5, 0}, 2, std::vector<double>{1, 1}, 1, &assignment);
  EXPECT_EQ(assignment, (std::vector<int32_t>{0, 1}));
}

}  // namespace
}  // namespace atl::tasks
