#include "common/model/flow_matching.h"

#include "common/base/counter_random.h"

namespace atl::model {
at::Tensor DropClasses(const at::Tensor& classes, std::span<const uint64_t> sequence, uint64_t seed, int64_t null_class,
                       double class_dropout) {
  at::Tensor labels = classes.to(at::kCPU, at::kLong, /*non_blocking=*/false, /*copy=*/true).contiguous();
  for (size_t i = 0; i < sequence.size(); ++i) {
    if (CounterRandom(seed, RandomPurpose::kClassDropout, 0, sequence[i]).Uniform() < class_dropout) {
      labels.data_ptr<int64_t>()[i] = null_class;
    }
  }
  return labels;
}

NoisedBatch Noise(const at::Tensor& x0, const at::Tensor& classes, std::span<const uint64_t> sequence, uint64_t seed,
                  int64_t null_class, double class_dropout) {
  const int64_t n = x0.size(0);
  // The host makes the random numbers, so that they are the same on every device. Pinned memory lets the copy overlap
  // the host's work.
  const auto host = at::TensorOptions().pinned_memory(x0.is_cuda());
  at::Tensor noise = at::empty(x0.sizes(), host.dtype(at::kFloat));
  at::Tensor time = at::empty({n}, host.dtype(at::kFloat));
  const at::Tensor labels =
      at::empty({n}, host.dtype(at::kLong)).copy_(DropClasses(classes, sequence, seed, null_class, class_dropout));
  const size_t elements = n == 0 ? 0 : static_cast<size_t>(x0.numel() / n);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t sample = sequence[static_cast<size_t>(i)];
    CounterRandom(seed, RandomPurpose::kNoise, 0, sample)
        .Normal({noise.data_ptr<float>() + static_cast<size_t>(i) * elements, elements});
    time.data_ptr<float>()[i] = CounterRandom(seed, RandomPurpose::kTime, 0, sample).Uniform();
  }
  NoisedBatch batch{.t = time.to(x0.device(), /*non_blocking=*/true),
                    .classes = labels.to(x0.device(), /*non_blocking=*/true)};
  noise = noise.to(x0.device(), /*non_blocking=*/true);
  const at::Tensor t = batch.t.view({-1, 1, 1, 1});
  batch.x_t = (1 - t) * x0 + t * noise;
  batch.target = noise - x0;
  return batch;
}

at::Tensor EstimateOf(const at::Tensor& x_t, const at::Tensor& t, const at::Tensor& velocity) {
  return x_t - t.view({-1, 1, 1, 1}) * velocity;
}

at::Tensor FlowMatchingLoss(const at::Tensor& velocity, const at::Tensor& target) {
  return at::mse_loss(velocity.to(at::kFloat), target.to(at::kFloat));
}

}  // namespace atl::model
