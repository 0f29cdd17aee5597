// A lane that evaluates inside Start, on a backend that blocks: everything happens in the order of the calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "inference/lane.h"
#include "router/engine/testing/backend.h"

namespace atl::router {

// Evaluates the rows on the backend that has the networks; both branches of guided rows.
absl::StatusOr<std::vector<float>> EvaluateOn(ModelBackend* backend, const Evaluation& evaluation);

// Only one thread at a time may call Start, as for the backend's calls. `clock` must outlive the lane.
class InlineLane : public ExpertLane {
 public:
  // Hosts all networks of `backend`, as those of the version with `digest`.
  InlineLane(LaneInfo info, std::shared_ptr<ModelBackend> backend, std::string digest, Clock* clock);

  LaneInfo info() const override { return info_; }
  std::shared_ptr<const std::vector<HostedNetwork>> hosted() const override { return hosted_; }
  // Ignored, because the hosted networks never change.
  void Watch(std::function<void()> /*changed*/) override {}
  void Start(std::shared_ptr<const Evaluation> evaluation, Done done) override;
  // Ignored, because no evaluation is running between calls.
  void Cancel(int64_t /*evaluation*/) override {}

 private:
  absl::StatusOr<std::vector<float>> Evaluate(const Evaluation& evaluation);

  const LaneInfo info_;
  const std::shared_ptr<ModelBackend> backend_;
  Clock* const clock_;
  std::shared_ptr<const std::vector<HostedNetwork>> hosted_;
};

}  // namespace atl::router
