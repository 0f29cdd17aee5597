// One network of a model, ready to answer on one device. LibTorch lives here.
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

// Read-only, so that any number of threads evaluate it at once; each computes with one LibTorch thread
// (UseOneThread).
class Network {
 public:
  // `device` as in model::DeviceInfo::torch_name. Takes the weights there; INTERNAL NETWORK_FAILED or
  // RESOURCE_EXHAUSTED MODEL_TOO_LARGE when they cannot be.
  static absl::StatusOr<std::shared_ptr<const Network>> Place(model::LoadedModel loaded, const std::string& device);

  const model::DitConfig& config() const { return loaded_.config; }
  // Answers with probabilities rather than velocities.
  bool routes() const { return loaded_.config.outputs > 0; }

  // INVALID_ARGUMENT with reason SHAPE_MISMATCH when the evaluation's rows are not for a network of this shape.
  absl::Status Check(const Evaluation& evaluation) const;
  // The values of an EvaluationAnswer, in one batch. INTERNAL with reason NETWORK_FAILED.
  absl::StatusOr<std::vector<float>> Run(const Rows& rows) const;
  // The same in batches of `sizes` rows, as ReproducibleSizes found them: a row's bits depend on nothing but the row.
  absl::StatusOr<std::vector<float>> RunInFixedBatches(const Rows& rows, std::span<const int64_t> sizes) const;

  // Sizes of batches, ascending, in any of which a row of this network yields the same bits, wherever it stands and
  // whatever stands beside it: `base` rows and what doubling finds to agree with them. Only {1} where rows are not
  // independent of their neighbours: alone they have none. A test of arithmetic, not a proof: kernels choose their way
  // by shapes, and shapes are what it tries.
  absl::StatusOr<std::vector<int64_t>> ReproducibleSizes(int64_t base) const;

  // OK when the network answers a few rows of noise with finite numbers; else DATA_LOSS with reason NON_FINITE_OUTPUT,
  // naming `name`.
  absl::Status Probe(const std::string& name) const;

 private:
  Network(model::LoadedModel loaded, at::Device device) : loaded_(std::move(loaded)), device_(device) {}

  struct Inputs {
    at::Tensor x;
    at::Tensor t;
    at::Tensor classes;
    at::Tensor estimate;  // or undefined
  };
  // Both branches, one after the other; borrows `rows`.
  Inputs InputsOf(const Rows& rows) const;
  // Reproducible noise of `count` rows, of all times and classes.
  Inputs NoiseInputs(int64_t count) const;
  static Inputs Pick(const Inputs& inputs, const std::vector<int64_t>& rows);
  // On the host, contiguous, one answer per row.
  at::Tensor Forward(const Inputs& inputs) const;

  const model::LoadedModel loaded_;
  const at::Device device_;
};

// The calling thread evaluates with one LibTorch thread from now on: batches of different experts scale over cores
// better than the small products inside one of them.
void UseOneThread();

}  // namespace atl::router
