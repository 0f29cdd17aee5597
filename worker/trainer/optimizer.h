// AdamW (Loshchilov and Hutter 2019) and the moving average of the weights, over the parameters of one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "common/model/layer.h"
#include "common/spec/spec.h"

namespace atl::trainer {

// Not thread-safe. Every operation works on each element alone, so that results do not depend on which parameters
// share a rank.
class Optimizer {
 public:
  // Shares the parameters' tensors. Moments start at zero, the average at the weights.
  Optimizer(std::vector<model::NamedTensor> parameters, const spec::TrainingSpec& training);

  // Norm of each parameter's gradient, scalars on its device: nothing waits for it. Added up in an order that depends
  // on the parameter's shape alone. Every parameter must have a gradient.
  std::vector<at::Tensor> GradientNorms() const;

  // One update from the gradients times `gradient_scale`; forgets the gradients. `step` is 0 for the first.
  void Step(int64_t step, double gradient_scale);

  // Everything that a checkpoint holds of parameter i, under its prefix: "weights/", "ema/", "adam_m/", "adam_v/".
  // The tensors are shared with the optimizer.
  std::vector<model::NamedTensor> State(size_t i) const;
  size_t size() const { return parameters_.size(); }

 private:
  std::vector<at::Tensor> Gradients() const;

  const spec::TrainingSpec training_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> ema_;
  std::vector<at::Tensor> first_moments_;
  std::vector<at::Tensor> second_moments_;
};

}  // namespace atl::trainer
