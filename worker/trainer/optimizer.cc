#include "worker/trainer/optimizer.h"

#include <ATen/core/grad_mode.h>

#include "worker/trainer/learning_rate.h"

namespace atl::trainer {
namespace {

// Eight running sums: independent additions keep the processor busy, and their order is fixed.
double SumOfSquares(const float* values, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += static_cast<double>(values[i + j]) * values[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) sums[j] += static_cast<double>(values[i]) * values[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

Optimizer::Optimizer(std::vector<model::NamedTensor> parameters, const spec::TrainingSpec& training)
    : training_(training) {
  const at::NoGradGuard no_grad;
  for (model::NamedTensor& parameter : parameters) {
    names_.push_back(std::move(parameter.name));
    ema_.push_back(parameter.tensor.detach().clone());
    first_moments_.push_back(at::zeros_like(ema_.back()));
    second_moments_.push_back(at::zeros_like(ema_.back()));
    parameters_.push_back(std::move(parameter.tensor));
  }
}

double Optimizer::SquaredNorm(size_t i) const {
  const at::Tensor& gradient = parameters_[i].grad();
  if (!gradient.defined()) return 0;
  if (!gradient.is_cpu() || !gradient.is_contiguous()) return gradient.to(at::kDouble).square().sum().item<double>();
  return SumOfSquares(gradient.const_data_ptr<float>(), gradient.numel());
}

void Optimizer::Step(int64_t step, double gradient_scale) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (at::Tensor& parameter : parameters_) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter));
    parameter.mutable_grad() = at::Tensor();
  }
  if (gradients.empty()) return;
  if (gradient_scale != 1) at::_foreach_mul_(gradients, gradient_scale);
  const std::vector<at::Tensor> steps(parameters_.size(),
                                      at::full({}, static_cast<double>(step + 1), parameters_[0].options()));
  at::_fused_adamw_(parameters_, gradients, first_moments_, second_moments_, {}, steps, LearningRate(training_, step),
                    training_.beta1, training_.beta2, training_.weight_decay, training_.epsilon, /*amsgrad=*/false,
                    /*maximize=*/false);
  // The fused update does not count as one in-place change; casts of the weights are kept by version.
  for (const at::Tensor& parameter : parameters_) parameter.unsafeGetTensorImpl()->bump_version();
  at::_foreach_lerp_(ema_, parameters_, 1 - EmaDecay(training_, step));
}

std::vector<model::NamedTensor> Optimizer::State(size_t i) const {
  return {{"weights/" + names_[i], parameters_[i]},
          {"ema/" + names_[i], ema_[i]},
          {"adam_m/" + names_[i], first_moments_[i]},
          {"adam_v/" + names_[i], second_moments_[i]}};
}

}  // namespace atl::trainer
