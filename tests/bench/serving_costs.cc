#include "tests/bench/serving_costs.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "absl/synchronization/notification.h"
#include "common/model/dit.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/figures.h"

namespace atl::bench {
namespace {

constexpr int kMostRows = 32;

void Evaluate(const model::LoadedModel& network, int rows) {
  const model::DitConfig& config = network.config;
  const at::Tensor x = at::zeros({rows, config.channels, config.height, config.width_pixels});
  const at::Tensor t = at::full({rows}, 0.5);
  const at::Tensor classes = at::zeros({rows}, at::kLong);
  model::RunModel(network.layers, x, t, classes);
}

// Seconds per row of `batches` batches in a row, on each of the threads at once; the mean of the threads.
double SecondsPerRow(int threads, int batches, int rows, const std::function<void(int thread, int batch)>& run) {
  std::vector<double> seconds(static_cast<size_t>(threads));
  std::barrier start(threads);
  std::vector<std::thread> workers;
  for (int thread = 0; thread < threads; ++thread) {
    workers.emplace_back([&, thread] {
      at::set_num_threads(1);
      const c10::InferenceMode inference;
      run(thread, 0);
      start.arrive_and_wait();
      const double begin = MonotonicSeconds();
      for (int batch = 0; batch < batches; ++batch) run(thread, batch);
      seconds[static_cast<size_t>(thread)] = (MonotonicSeconds() - begin) / (batches * rows);
    });
  }
  for (std::thread& worker : workers) worker.join();
  double sum = 0;
  for (const double value : seconds) sum += value;
  return sum / threads;
}

std::vector<double> MedianOf(const std::vector<CostCurve>& curves, std::vector<double> CostCurve::*member) {
  std::vector<double> medians;
  for (size_t i = 0; i < (curves.front().*member).size(); ++i) {
    std::vector<double> values;
    for (const CostCurve& curve : curves) values.push_back((curve.*member)[i]);
    medians.push_back(Median(values));
  }
  return medians;
}

}  // namespace

double CostCurve::best_expert() const {
  return *std::min_element(expert.begin(), expert.end());
}

double CostCurve::best_router() const {
  return *std::min_element(router.begin(), router.end());
}

CostCurve MeasureCosts(const std::vector<model::LoadedModel>& networks, int threads) {
  const int experts = static_cast<int>(networks.size()) - 1;
  CostCurve curve;
  for (int rows = 1; rows <= kMostRows; rows *= 2) {
    const int batches = kMostRows / rows;
    curve.rows.push_back(rows);
    curve.expert.push_back(SecondsPerRow(threads, batches, rows, [&](int thread, int batch) {
      Evaluate(networks[static_cast<size_t>((batch * threads + thread) % experts)], rows);
    }));
    curve.router.push_back(SecondsPerRow(threads, batches, rows, [&](int, int) { Evaluate(networks.back(), rows); }));
  }
  return curve;
}

absl::StatusOr<CostCurve> MeasureLaneCosts(const std::vector<std::shared_ptr<router::ExpertLane>>& lanes,
                                           const router::SamplerInfo& info) {
  const auto hosted = lanes.front()->hosted();
  const int threads = static_cast<int>(lanes.size());
  std::atomic<int64_t> id = 0;
  std::atomic<int> failed = 0;
  const auto evaluate = [&](int thread, int32_t expert, int rows) {
    const auto network = std::find_if(hosted->begin(), hosted->end(),
                                      [&](const router::HostedNetwork& entry) { return entry.id.expert == expert; });
    if (network == hosted->end()) {
      ++failed;
      return;
    }
    auto batch = std::make_shared<router::Evaluation>();
    batch->id = ++id;
    batch->network = network->id;
    batch->channels = info.channels;
    batch->height = info.height;
    batch->width = info.width;
    batch->rows = {.count = rows,
                   .x = std::vector<float>(static_cast<size_t>(rows * info.pixels())),
                   .t = std::vector<float>(static_cast<size_t>(rows), 0.5f),
                   .classes = std::vector<int64_t>(static_cast<size_t>(rows))};
    absl::Notification over;
    lanes[static_cast<size_t>(thread)]->Start(std::move(batch), [&](absl::StatusOr<router::EvaluationAnswer> answer) {
      if (!answer.ok()) ++failed;
      over.Notify();
    });
    over.WaitForNotification();
  };
  CostCurve curve;
  for (int rows = 1; rows <= kMostRows; rows *= 2) {
    const int batches = kMostRows / rows;
    curve.rows.push_back(rows);
    curve.expert.push_back(SecondsPerRow(threads, batches, rows, [&](int thread, int batch) {
      evaluate(thread, (batch * threads + thread) % info.experts, rows);
    }));
    curve.router.push_back(
        SecondsPerRow(threads, batches, rows, [&](int thread, int) { evaluate(thread, kRouterNetwork, rows); }));
  }
  if (failed > 0) return absl::InternalError("a lane did not answer");
  return curve;
}

CostCurve MedianOf(const std::vector<CostCurve>& curves) {
  return {.rows = curves.front().rows,
          .expert = MedianOf(curves, &CostCurve::expert),
          .router = MedianOf(curves, &CostCurve::router)};
}

}  // namespace atl::bench
