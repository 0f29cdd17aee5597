// For tests: a model version of formulas, which records its batches.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/engine/testing/backend.h"

namespace atl::router {

// Thread-safe to query; the functions must be set before use. By default every posterior is certain of expert (class
// mod experts), the null class of expert 0, and every velocity is zero.
class FakeBackend : public ModelBackend {
 public:
  explicit FakeBackend(SamplerInfo info) : info_(std::move(info)) {}

  // Row -> experts probabilities; row -> velocity.
  std::function<std::vector<float>(std::span<const float> x, float t, int64_t class_row)> posterior;
  std::function<std::vector<float>(int32_t expert, std::span<const float> x, float t, int64_t class_row)> velocity;
  // The same for a self-conditioned model; takes precedence over `velocity`.
  std::function<std::vector<float>(int32_t expert, std::span<const float> x, std::span<const float> estimate, float t,
                                   int64_t class_row)>
      conditioned_velocity;
  std::function<absl::Status(int32_t expert)> expert_status;

  struct SeenBatch {
    int32_t expert = -1;  // -1: the router network
    int64_t rows = 0;
    bool operator==(const SeenBatch&) const = default;
  };
  std::vector<SeenBatch> TakeSeen() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(seen_, {});
  }

  const SamplerInfo& info() const override { return info_; }

  void ComputePosteriors(std::span<PosteriorBatch> batches) override {
    for (PosteriorBatch& batch : batches) {
      Remember({-1, batch.rows.count});
      for (int64_t i = 0; i < batch.rows.count; ++i) {
        const std::vector<float> row = PosteriorOf(Row(batch.rows, i), batch.rows.t[i], batch.rows.classes[i]);
        batch.posterior.insert(batch.posterior.end(), row.begin(), row.end());
      }
    }
  }

  void ComputeVelocities(std::span<VelocityBatch> batches) override {
    for (VelocityBatch& batch : batches) {
      Remember({batch.expert, batch.rows.count});
      if (expert_status) batch.status = expert_status(batch.expert);
      if (!batch.status.ok()) continue;
      for (int64_t i = 0; i < batch.rows.count; ++i) {
        const std::vector<float> row = VelocityOf(batch, i);
        batch.velocity.insert(batch.velocity.end(), row.begin(), row.end());
      }
    }
  }

 private:
  std::span<const float> Row(const Rows& rows, int64_t i) const {
    return std::span(rows.x).subspan(i * info_.pixels(), info_.pixels());
  }
  std::vector<float> VelocityOf(const VelocityBatch& batch, int64_t i) const {
    const Rows& rows = batch.rows;
    if (conditioned_velocity) {
      const auto estimate = std::span(rows.estimate).subspan(i * info_.pixels(), info_.pixels());
      return conditioned_velocity(batch.expert, Row(rows, i), estimate, rows.t[i], rows.classes[i]);
    }
    if (velocity) return velocity(batch.expert, Row(rows, i), rows.t[i], rows.classes[i]);
    return std::vector<float>(info_.pixels(), 0);
  }
  std::vector<float> PosteriorOf(std::span<const float> x, float t, int64_t class_row) const {
    if (posterior) return posterior(x, t, class_row);
    std::vector<float> certain(info_.experts, 0);
    certain[class_row == info_.classes ? 0 : class_row % info_.experts] = 1;
    return certain;
  }
  void Remember(SeenBatch batch) {
    absl::MutexLock lock(&mutex_);
    seen_.push_back(batch);
  }

  const SamplerInfo info_;
  absl::Mutex mutex_;
  std::vector<SeenBatch> seen_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::router
