// The nearest of 1,024 centroids for rows of 768 features, one thread: matrix products as the clustering has them,
// against one squared difference after the other in double. Prints one JSON object per line.
//
//   kmeans_bench [pairs]
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <span>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "common/base/counter_random.h"
#include "tests/bench/figures.h"
#include "worker/tasks/centroid_distances.h"

namespace atl::bench {
namespace {

constexpr int32_t kDims = 768;
constexpr int64_t kCentroids = 1024;
constexpr int64_t kRows = 8 * tasks::CentroidDistances::kBlock;
constexpr int64_t kLoopRows = 512;

int32_t NearestByLoop(std::span<const float> centroids, std::span<const float> row) {
  int32_t nearest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int32_t c = 0; c < kCentroids; ++c) {
    double sum = 0;
    for (int32_t j = 0; j < kDims; ++j) {
      const double difference = double{centroids[c * kDims + j]} - double{row[j]};
      sum += difference * difference;
    }
    if (sum < least) {
      least = sum;
      nearest = c;
    }
  }
  return nearest;
}

std::vector<float> Values(int64_t rows, uint64_t sample) {
  std::vector<float> values(rows * kDims);
  CounterRandom(1, RandomPurpose::kSubset, 0, sample).Normal(values);
  return values;
}

// The processor's seconds per row: one thread each, and others may use the machine meanwhile.
template <typename F>
double SecondsPerRow(int64_t rows, F work) {
  const double start = CpuSeconds();
  work();
  return (CpuSeconds() - start) / static_cast<double>(rows);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status Run(int pairs) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  const std::vector<float> rows = Values(kRows, 0);
  const std::vector<float> centroids = Values(kCentroids, 1);
  const tasks::CentroidDistances distances(centroids, kDims, "cpu");
  std::vector<int32_t> nearest = distances.Nearest(rows);  // warm
  std::vector<int32_t> by_loop(kLoopRows);
  std::vector<double> product, loop, speedup;
  for (int pair = 0; pair < pairs; ++pair) {
    loop.push_back(SecondsPerRow(kLoopRows, [&] {
      for (int64_t i = 0; i < kLoopRows; ++i) {
        by_loop[i] = NearestByLoop(centroids, std::span(rows).subspan(i * kDims, kDims));
      }
    }));
    product.push_back(SecondsPerRow(kRows, [&] { nearest = distances.Nearest(rows); }));
    speedup.push_back(loop.back() / product.back());
  }
  if (!std::equal(by_loop.begin(), by_loop.end(), nearest.begin())) {
    return absl::InternalError("expected the same nearest centroids of both, found others");
  }
  PrintFigure("distances", "speedup", Median(speedup), "1", AtLeast(20));
  PrintFigure("distances", "rows_per_second", 1 / Median(product), "1/s");
  PrintFigure("distances", "loop_rows_per_second", 1 / Median(loop), "1/s");
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  atl::bench::KeepStandardOutputForFigures();
  const absl::Status status = atl::bench::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 9);
  return atl::bench::EndBench("kmeans_bench", status);
}
