// A lane that evaluates inside Start, on a backend that blocks: everything happens in the order of the calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "inference/lane.h"
#include "router/engine/testing/backend.h"

namespace atl::router {

// The rows of an evaluation on the backend whose networks they are; both branches of guided ones.
absl::StatusOr<std::vector<float>> EvaluateOn(ModelBackend* backend, const Evaluation& evaluation);

// Start is for one thread at a time, as the backend's calls are. `clock` must outlive the lane.
class InlineLane : public ExpertLane {
 public:
  // Hosts all networks of `backend`, as those of the version with `digest`.
  InlineLane(LaneInfo info, std::shared_ptr<ModelBackend> backend, std::string digest, Clock* clock);

  LaneInfo info() const override { return info_; }
  std::shared_ptr<const std::vector<HostedNetwork>> hosted() const override { return hosted_; }
  // Nothing ever changes.
  void Watch(std::function<void()> /*changed*/) override {}
  void Start(std::shared_ptr<const Evaluation> evaluation, Done done) override;
  // Nothing is under way between calls.
  void Cancel(int64_t /*evaluation*/) override {}

 private:
  absl::StatusOr<std::vector<float>> Evaluate(const Evaluation& evaluation);

  const LaneInfo info_;
  const std::shared_ptr<ModelBackend> backend_;
  Clock* const clock_;
  std::shared_ptr<const std::vector<HostedNetwork>> hosted_;
};

}  // namespace atl::router
