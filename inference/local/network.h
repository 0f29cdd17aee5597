// One network of a model, ready to evaluate on one device. Depends on LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/weights.h"
#include "inference/lane.h"

namespace atl::router {

// Immutable, so any number of threads may evaluate it concurrently. Each computes with one LibTorch thread
// (UseOneThread).
class Network {
 public:
  // Moves the weights to `device` (named as in model::DeviceInfo::torch_name). If that fails, returns INTERNAL with
  // reason NETWORK_FAILED or RESOURCE_EXHAUSTED with reason MODEL_TOO_LARGE.
  static absl::StatusOr<std::shared_ptr<const Network>> Place(model::LoadedModel loaded, const std::string& device);

  const model::DitConfig& config() const { return loaded_.config; }
  // Returns whether the answers are probabilities rather than velocities.
  bool routes() const { return loaded_.config.outputs > 0; }

  // Returns INVALID_ARGUMENT with reason SHAPE_MISMATCH if the evaluation's rows do not fit this network's shape.
  absl::Status Check(const Evaluation& evaluation) const;
  // Returns the values of an EvaluationAnswer, computed in one batch. INTERNAL with reason NETWORK_FAILED.
  absl::StatusOr<std::vector<float>> Run(const Rows& rows) const;
  // Like Run, but in batches of `sizes` rows, as found by ReproducibleSizes: a row's bits depend on the row only.
  absl::StatusOr<std::vector<float>> RunInFixedBatches(const Rows& rows, std::span<const int64_t> sizes) const;

  // Returns batch sizes, ascending, in which a row of this network yields the same bits at any position and beside any
  // other rows. Starts with `base` rows and doubles as long as the bits agree. Returns {1} if a row's bits depend on
  // its neighbours, because a row alone has none. This tests the arithmetic and proves nothing: kernels are chosen by
  // shapes, and it tries shapes.
  absl::StatusOr<std::vector<int64_t>> ReproducibleSizes(int64_t base) const;

  // Returns OK if the network answers a few rows of noise with finite numbers, or else DATA_LOSS with reason
  // NON_FINITE_OUTPUT that names `name`.
  absl::Status Probe(const std::string& name) const;

 private:
  Network(model::LoadedModel loaded, at::Device device) : loaded_(std::move(loaded)), device_(device) {}

  struct Inputs {
    at::Tensor x;
    at::Tensor t;
    at::Tensor classes;
    at::Tensor estimate;  // or undefined
  };
  // Returns the inputs of both branches, one after the other; borrows `rows`.
  Inputs InputsOf(const Rows& rows) const;
  // Returns reproducible noise of `count` rows, covering all times and classes.
  Inputs NoiseInputs(int64_t count) const;
  static Inputs Pick(const Inputs& inputs, const std::vector<int64_t>& rows);
  // Returns one answer per row, contiguous and on the host.
  at::Tensor Forward(const Inputs& inputs) const;

  const model::LoadedModel loaded_;
  const at::Device device_;
};

// Makes the calling thread evaluate with one LibTorch thread from now on. Batches of different experts scale over cores
// better than the small products inside one batch.
void UseOneThread();

}  // namespace atl::router
