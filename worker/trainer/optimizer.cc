#include "worker/trainer/optimizer.h"

#include <ATen/core/grad_mode.h>

#include "worker/trainer/learning_rate.h"

namespace atl::trainer {
namespace {

constexpr int64_t kGroupElements = int64_t{1} << 20;

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

std::vector<at::Tensor> Optimizer::Gradients() const {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  return gradients;
}

std::vector<at::Tensor> Optimizer::GradientNorms() const {
  return at::_foreach_norm(Gradients());
}

void Optimizer::Step(int64_t step, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = Gradients();
  const std::vector<at::Tensor> steps(
      parameters_.size(),
      at::full({}, static_cast<double>(step + 1), at::TensorOptions().device(parameters_[0].device())));
  const size_t count = parameters_.size();
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    // A group stays in the processor's cache from one pass over it to the next; on a device all are one.
    int64_t elements = 0;
    do {
      elements += parameters_[end].numel();
    } while (++end < count && (elements < kGroupElements || !parameters_[0].is_cpu()));
    const auto group = [&](const std::vector<at::Tensor>& all) {
      return at::TensorList(all).slice(begin, end - begin);
    };
    if (gradient_scale != 1) at::_foreach_mul_(group(gradients), gradient_scale);
    at::_fused_adamw_(group(parameters_), group(gradients), group(first_moments_), group(second_moments_), {},
                      group(steps), LearningRate(training_, step), training_.beta1, training_.beta2,
                      training_.weight_decay, training_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
    at::_foreach_lerp_(group(ema_), group(parameters_), 1 - EmaDecay(training_, step));
  }
  for (at::Tensor& parameter : parameters_) {
    // The fused update does not count as one in-place change; casts of the weights are kept by version.
    parameter.unsafeGetTensorImpl()->bump_version();
    parameter.mutable_grad() = at::Tensor();
  }
}

std::vector<model::NamedTensor> Optimizer::State(size_t i) const {
  return {{"weights/" + names_[i], parameters_[i]},
          {"ema/" + names_[i], ema_[i]},
          {"adam_m/" + names_[i], first_moments_[i]},
          {"adam_v/" + names_[i], second_moments_[i]}};
}

}  // namespace atl::trainer
