#include "common/model/ops.h"

#include <array>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include <torch/csrc/autograd/custom_function.h>

namespace atl::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The one kind of thread-local state that autograd carries to its device threads and that a program may define.
constexpr auto kQueueKind = c10::DebugInfoKind::PRODUCER_INFO;

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

// As autograd's own accumulation: the first gradient is kept, every further one is added to it.
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
  if (!parameter.defined() || parameter.scalar_type() == dtype) return parameter;
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

// Autograd's custom functions take an absent tensor as an empty optional, not as an undefined tensor.
std::optional<at::Tensor> IfDefined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::ScalarType compute) {
    ctx->saved_data["x_dtype"] = static_cast<int64_t>(x.scalar_type());
    ctx->saved_data["has_bias"] = bias.has_value();
    const at::Tensor x_c = x.to(compute);
    const at::Tensor weight_c = CastParameter(weight, compute);
    // The master weight is saved for its gradient; its cast, when it is another tensor, for the product.
    if (weight_c.is_same(weight)) {
      ctx->save_for_backward({x_c, weight});
    } else {
      ctx->save_for_backward({x_c, weight, weight_c});
    }
    return at::linear(x_c, weight_c, CastParameter(bias.value_or(at::Tensor()), compute));
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& weight_c = saved.back();
    const at::Tensor g = gradients[0].reshape({-1, weight.size(0)});

    variable_list out(4);
    if (ctx->needs_input_grad(0)) {
      out[0] = at::mm(g, weight_c).view(x.sizes()).to(static_cast<at::ScalarType>(ctx->saved_data["x_dtype"].toInt()));
    }
    if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(2))
      out[2] = at::sum(g, {0}).to(weight.scalar_type());
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

class ConvolutionFunction : public torch::autograd::Function<ConvolutionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, int64_t stride, int64_t padding,
                            at::ScalarType compute) {
    ctx->saved_data["x_dtype"] = static_cast<int64_t>(x.scalar_type());
    ctx->saved_data["stride"] = stride;
    ctx->saved_data["padding"] = padding;
    const at::Tensor x_c = x.to(compute);
    const at::Tensor weight_c = CastParameter(weight, compute);
    const at::Tensor bias_or_none = bias.value_or(at::Tensor());
    ctx->save_for_backward({x_c, weight, weight_c, bias_or_none});
    return at::conv2d(x_c, weight_c, CastParameter(bias_or_none, compute), stride, padding);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& weight_c = saved[2];
    const at::Tensor& bias = saved[3];
    const std::vector<int64_t> stride(2, ctx->saved_data["stride"].toInt());
    const std::vector<int64_t> padding(2, ctx->saved_data["padding"].toInt());
    const auto kernel = [g = gradients[0], x = x.detach(), weight_c, stride, padding,
                         bias_size = weight.size(0)](std::array<bool, 3> mask) {
      return at::convolution_backward(g, x, weight_c, at::IntArrayRef{bias_size}, stride, padding, {1, 1},
                                      /*transposed=*/false, {0, 0}, /*groups=*/1, mask);
    };

    variable_list out(6);
    if (ctx->needs_input_grad(0)) {
      const auto x_dtype = static_cast<at::ScalarType>(ctx->saved_data["x_dtype"].toInt());
      out[0] = std::get<0>(kernel({true, false, false})).to(x_dtype);
    }
    const bool bias_gradient = bias.defined() && bias.requires_grad();
    if (ctx->needs_input_grad(1)) {
      RunOrQueue([weight, bias, bias_gradient, kernel] {
        auto [unused, weight_gradient, bias_sum] = kernel({false, true, bias_gradient});
        Accumulate(weight, std::move(weight_gradient));
        if (bias_gradient) Accumulate(bias, std::move(bias_sum));
      });
    }
    return out;
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
  if (at::GradMode::is_enabled()) return LinearFunction::apply(x, weight, IfDefined(bias), compute);
  return at::linear(x.to(compute), CastParameter(weight, compute), CastParameter(bias, compute));
}

at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& table) {
  if (at::GradMode::is_enabled()) return EmbeddingFunction::apply(ids, table);
  return at::embedding(table, ids);
}

at::Tensor Convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t stride,
                       int64_t padding, at::ScalarType compute) {
  if (at::GradMode::is_enabled())
    return ConvolutionFunction::apply(x, weight, IfDefined(bias), stride, padding, compute);
  return at::conv2d(x.to(compute), CastParameter(weight, compute), CastParameter(bias, compute), stride, padding);
}

}  // namespace atl::model
