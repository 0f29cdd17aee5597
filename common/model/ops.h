// Atoll's own differentiable operations. Linear and embedding compute their input gradient in the backward pass and
// leave the weight gradient to a closure, which runs at once (B) or later (W, zero bubble: arXiv 2401.10241); those of
// adaLN need fewer passes over memory. Results equal stock autograd's bit for bit on the CPU (`g.t() @ x`, then one
// add).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace atl::model {

// Collects weight-gradient closures between an input-gradient pass and its weight-gradient pass.
class WeightGradientQueue {
 public:
  void Push(std::function<void()> closure) { closures_.push_back(std::move(closure)); }
  // Runs the closures in the order in which the backward pass produced them, and forgets them.
  void RunAll();
  bool empty() const { return closures_.empty(); }

 private:
  std::vector<std::function<void()>> closures_;
};

// While it lives, weight gradients of backward passes that this thread starts go to `queue` instead of being computed.
// A null queue computes them at once. Backward passes of CPU graphs run on the calling thread, those of CUDA graphs on
// autograd's thread of the device, which gets the queue with autograd's thread-local state.
class ScopedWeightGradientQueue {
 public:
  explicit ScopedWeightGradientQueue(WeightGradientQueue* queue);
  ~ScopedWeightGradientQueue();
  ScopedWeightGradientQueue(const ScopedWeightGradientQueue&) = delete;
  ScopedWeightGradientQueue& operator=(const ScopedWeightGradientQueue&) = delete;

 private:
  c10::DebugInfoGuard guard_;
};

// x [..., in], weight [out, in], bias [out] -> [..., out]. The bias gradient stays with the input
// gradient. `compute` is the dtype of the product and of the result; parameters keep theirs (fp32 master weights under
// bf16 compute: the weight gradient is computed in bf16 and accumulated in fp32). Without grad mode no graph is
// recorded.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  at::ScalarType compute = at::kFloat);

// ids [n] int64, table [entries, width] -> [n, width], in the table's dtype.
at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& table);

// adaLN: layer_norm(x) (1 + scale) + shift over the last dimension. x [n, tokens, width], shift and scale [n, width].
// Other readers of x must read `residual`, which is x, so that the gradients of both meet in one buffer.
struct Modulated {
  at::Tensor out;
  at::Tensor residual;
};
Modulated NormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale);

// x + gate y. x and y [n, tokens, width], gate [n, width].
at::Tensor GatedAdd(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);

}  // namespace atl::model
