// AdamW (Loshchilov and Hutter 2019) and the moving average of the weights, over the parameters of one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "common/model/layer.h"
#include "common/spec/spec.h"

namespace atl::trainer {

// Not thread-safe. Every operation works elementwise, so that results do not depend on which parameters share a rank.
class Optimizer {
 public:
  // Shares the parameters' tensors. Moments start at zero, the average at the weights.
  Optimizer(std::vector<model::NamedTensor> parameters, const spec::TrainingSpec& training);

  // Returns the norm of each parameter's gradient as scalars on its device, without waiting for them. The order of
  // addition depends only on the parameter's shape. Every parameter must have a gradient.
  std::vector<at::Tensor> GradientNorms() const;

  // Updates once from the gradients times `gradient_scale`, then drops the gradients. `step` is 0 for the first.
  void Step(int64_t step, double gradient_scale);

  // Returns all checkpointed tensors of parameter i, under its prefixes: "weights/", "ema/", "adam_m/", "adam_v/". The
  // tensors are shared with the optimizer.
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
