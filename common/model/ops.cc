#include "common/model/ops.h"

#include <memory>
#include <unordered_map>
#include <utility>

#include <torch/csrc/autograd/custom_function.h>

namespace atl::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The one kind of thread-local state that autograd carries to its device threads and that a program may define.
constexpr auto kQueueKind = c10::DebugInfoKind::PRODUCER_INFO;

constexpr double kLayerNormEpsilon = 1e-6;

struct QueueInfo : c10::DebugInfoBase {
  explicit QueueInfo(WeightGradientQueue* q) : queue(q) {}
  WeightGradientQueue* const queue;
};

void RunOrQueue(std::function<void()> closure) {
  const auto* info = static_cast<const QueueInfo*>(c10::ThreadLocalDebugInfo::get(kQueueKind));
  if (info != nullptr && info->queue != nullptr) {
    info->queue->Push(std::move(closure));
  } else {
    closure();
  }
}

// Accumulates as autograd does: keeps the first gradient and adds every further one to it.
void Accumulate(const at::Tensor& parameter, at::Tensor gradient) {
  const at::NoGradGuard no_grad;
  if (gradient.scalar_type() != parameter.scalar_type()) gradient = gradient.to(parameter.scalar_type());
  at::Tensor& sum = parameter.mutable_grad();
  if (sum.defined()) {
    sum.add_(gradient);
  } else {
    sum = std::move(gradient);
  }
}

// A parameter in another dtype, cast once per optimizer step rather than once per micro-batch. Per thread, so that
// threads that share a model need no lock; an entry is replaced when the parameter's version moved on.
at::Tensor CastParameter(const at::Tensor& parameter, at::ScalarType dtype) {
  if (parameter.scalar_type() == dtype) return parameter;
  struct Entry {
    c10::weak_intrusive_ptr<c10::TensorImpl> owner;
    uint32_t version;
    at::Tensor cast;
  };
  thread_local std::unordered_map<const c10::TensorImpl*, Entry> cache;
  const c10::TensorImpl* key = parameter.unsafeGetTensorImpl();
  const uint32_t version = parameter._version();
  const auto found = cache.find(key);
  if (found != cache.end() && !found->second.owner.expired() && found->second.version == version &&
      found->second.cast.scalar_type() == dtype) {
    return found->second.cast;
  }
  if (found == cache.end()) std::erase_if(cache, [](const auto& item) { return item.second.owner.expired(); });
  const at::NoGradGuard no_grad;
  at::Tensor cast = parameter.detach().to(dtype);
  cache.insert_or_assign(key,
                         Entry{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()), version, cast});
  return cast;
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            at::ScalarType compute) {
    const at::Tensor x_c = x.to(compute);
    const at::Tensor weight_c = CastParameter(weight, compute);
    // The master weight is saved for its gradient; its cast, when it is another tensor, for the product.
    if (weight_c.is_same(weight)) {
      ctx->save_for_backward({x_c, weight});
    } else {
      ctx->save_for_backward({x_c, weight, weight_c});
    }
    return at::linear(x_c, weight_c, CastParameter(bias, compute));
  }

  // Autograd casts a gradient to the dtype of what it is the gradient of.
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& weight_c = saved.back();
    const at::Tensor g = gradients[0].reshape({-1, weight.size(0)});

    variable_list out(4);
    if (ctx->needs_input_grad(0)) out[0] = at::mm(g, weight_c).view(x.sizes());
    if (ctx->needs_input_grad(2)) out[2] = at::sum(g, {0});
    if (ctx->needs_input_grad(1)) {
      // Detached: a saved input knows its place in the graph, which would otherwise live until the closure has run.
      RunOrQueue([weight, x2 = x.detach().reshape({-1, weight.size(1)}), g] { Accumulate(weight, at::mm(g.t(), x2)); });
    }
    return out;
  }
};

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ids, const at::Tensor& table) {
    ctx->save_for_backward({ids, table});
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    RunOrQueue([ids = saved[0], table = saved[1], g = gradients[0]] {
      Accumulate(table, at::embedding_dense_backward(g, ids, table.size(0), /*padding_idx=*/-1,
                                                     /*scale_grad_by_freq=*/false));
    });
    return variable_list(2);
  }
};

// Computes as stock autograd's backward of the same operations, but without products with one and in fewer buffers: the
// next product overwrites the summed one, and the residual's gradient is added in place.
class NormModulateFunction : public torch::autograd::Function<NormModulateFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& shift,
                               const at::Tensor& scale) {
    const auto [normed, mean, rstd] = at::native_layer_norm(x, x.sizes().slice(2), {}, {}, kLayerNormEpsilon);
    const at::Tensor factor = scale.unsqueeze(1) + 1;
    ctx->save_for_backward({x, normed, mean, rstd, factor});
    ctx->set_materialize_grads(false);
    return {at::addcmul(shift.unsqueeze(1), normed, factor), x};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& g = gradients[0];
    at::Tensor product = g * saved[1];
    const at::Tensor scale_gradient = at::sum(product, {1});
    at::mul_out(product, g, saved[4]);
    const at::Tensor x_gradient = std::get<0>(at::native_layer_norm_backward(product, x, x.sizes().slice(2), saved[2],
                                                                             saved[3], {}, {}, {true, false, false}));
    if (gradients[1].defined()) x_gradient.add_(gradients[1]);
    return {x_gradient, at::sum(g, {1}), scale_gradient};
  }
};

class GatedAddFunction : public torch::autograd::Function<GatedAddFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
    const at::Tensor factor = gate.unsqueeze(1);
    ctx->save_for_backward({factor, y});
    return at::addcmul(x, factor, y);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& g = gradients[0];
    at::Tensor product = g * saved[1];
    const at::Tensor gate_gradient = at::sum(product, {1});
    at::mul_out(product, g, saved[0]);
    return {g, gate_gradient, product};
  }
};

}  // namespace

void WeightGradientQueue::RunAll() {
  const std::vector<std::function<void()>> closures = std::exchange(closures_, {});
  for (const auto& closure : closures) closure();
}

ScopedWeightGradientQueue::ScopedWeightGradientQueue(WeightGradientQueue* queue)
    : guard_(kQueueKind, std::make_shared<QueueInfo>(queue)) {}

ScopedWeightGradientQueue::~ScopedWeightGradientQueue() = default;

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::ScalarType compute) {
  if (at::GradMode::is_enabled()) return LinearFunction::apply(x, weight, bias, compute);
  return at::linear(x.to(compute), CastParameter(weight, compute), CastParameter(bias, compute));
}

at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& table) {
  if (at::GradMode::is_enabled()) return EmbeddingFunction::apply(ids, table);
  return at::embedding(table, ids);
}

Modulated NormModulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
  if (at::GradMode::is_enabled()) {
    const variable_list results = NormModulateFunction::apply(x, shift, scale);
    return {results[0], results[1]};
  }
  const at::Tensor normed = at::layer_norm(x, x.sizes().slice(2), {}, {}, kLayerNormEpsilon);
  return {at::addcmul(shift.unsqueeze(1), normed, scale.unsqueeze(1) + 1), x};
}

at::Tensor GatedAdd(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  if (at::GradMode::is_enabled()) return GatedAddFunction::apply(x, gate, y);
  return at::addcmul(x, gate.unsqueeze(1), y);
}

}  // namespace atl::model
