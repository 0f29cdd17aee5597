// For tests and benchmarks: a reference DiT that uses only ATen's own operations and stock autograd.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "common/model/dit.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

using Parameters = std::map<std::string, at::Tensor>;

inline model::DitConfig ConfigOf(const TrainerOptions& options) {
  return {.channels = options.channels,
          .height = options.height,
          .width_pixels = options.width,
          .classes = options.classes,
          .patch = options.model.patch,
          .width = options.model.width,
          .depth = options.model.depth,
          .heads = options.model.heads,
          .mlp_ratio = options.model.mlp_ratio,
          .outputs = options.objective == Objective::kCluster ? options.clusters : 0,
          .self_conditioning = options.model.self_conditioning};
}

// Returns weights away from zero, so that every gate is open and every parameter gets a gradient.
inline Parameters RandomParameters(const model::DitConfig& config) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(5);
  Parameters parameters;
  for (const model::NamedTensor& p : model::NamedParameters(model::BuildLayers(config, 1, 0, config.depth + 2))) {
    parameters[p.name] = at::empty_like(p.tensor).normal_(0, 0.15, generator);
  }
  return parameters;
}

// DiT in plain ATen.
class PlainDit {
 public:
  PlainDit(const model::DitConfig& config, const Parameters& values)
      : config_(config),
        positions_(Positions()),
        frequencies_(at::exp(at::arange(128, at::kDouble) * (-std::log(10000.0) / 128.0)).to(at::kFloat)) {
    for (const auto& [name, value] : values) parameters_[name] = value.detach().clone().requires_grad_(true);
  }
  const Parameters& parameters() const { return parameters_; }

  // A self-conditioned model reads `estimate`, or zeros if it is undefined.
  at::Tensor Run(const at::Tensor& x, const at::Tensor& t, const at::Tensor& classes,
                 const at::Tensor& estimate = {}) const {
    at::Tensor in = x;
    if (config_.self_conditioning) in = at::cat({x, estimate.defined() ? estimate : at::zeros_like(x)}, 1);
    at::Tensor tokens = LinearOf("embed.patch", Patches(in)) + positions_;
    const at::Tensor angle = (t * 1000.0).unsqueeze(1) * frequencies_;
    const at::Tensor time =
        LinearOf("embed.time.out", at::silu(LinearOf("embed.time.in", at::cat({angle.cos(), angle.sin()}, 1))));
    const at::Tensor c = at::silu(time + at::embedding(P("embed.class.weight"), classes));
    for (int64_t i = 0; i < config_.depth; ++i) tokens = Block("blocks." + std::to_string(i), tokens, c);
    const auto m = LinearOf("head.modulation", c).chunk(2, 1);
    const at::Tensor out = Modulated(tokens, m[0], m[1]);
    if (config_.outputs > 0) return LinearOf("head.out", out.mean(1));
    return Image(LinearOf("head.out", out));
  }

  // Returns the clean sample that the model predicts without an estimate, which then becomes its estimate.
  at::Tensor Estimate(const at::Tensor& x, const at::Tensor& t, const at::Tensor& classes) const {
    const at::NoGradGuard no_grad;
    return x - t.view({-1, 1, 1, 1}) * Run(x, t, classes);
  }

 private:
  const at::Tensor& P(const std::string& name) const { return parameters_.at(name); }
  at::Tensor LinearOf(const std::string& name, const at::Tensor& x) const {
    return at::linear(x, P(name + ".weight"), P(name + ".bias"));
  }
  at::Tensor Modulated(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) const {
    return at::addcmul(shift.unsqueeze(1), at::layer_norm(x, {config_.width}, {}, {}, 1e-6), scale.unsqueeze(1) + 1);
  }
  at::Tensor Block(const std::string& name, const at::Tensor& x, const at::Tensor& c) const {
    const auto m = LinearOf(name + ".modulation", c).chunk(6, 1);
    const int64_t n = x.size(0);
    const int64_t tokens = x.size(1);
    const auto qkv = LinearOf(name + ".attention.qkv", Modulated(x, m[0], m[1]))
                         .view({n, tokens, 3, config_.heads, config_.width / config_.heads})
                         .unbind(2);
    const at::Tensor attended =
        at::scaled_dot_product_attention(qkv[0].transpose(1, 2), qkv[1].transpose(1, 2), qkv[2].transpose(1, 2));
    const at::Tensor y =
        at::addcmul(x, m[2].unsqueeze(1),
                    LinearOf(name + ".attention.proj", attended.transpose(1, 2).reshape({n, tokens, config_.width})));
    const at::Tensor hidden = at::gelu(LinearOf(name + ".mlp.in", Modulated(y, m[3], m[4])), "tanh");
    return at::addcmul(y, m[5].unsqueeze(1), LinearOf(name + ".mlp.out", hidden));
  }
  at::Tensor Patches(const at::Tensor& x) const {
    const int64_t p = config_.patch;
    return x.reshape({x.size(0), x.size(1), config_.height / p, p, config_.width_pixels / p, p})
        .permute({0, 2, 4, 1, 3, 5})
        .reshape({x.size(0), config_.tokens(), x.size(1) * p * p});
  }
  at::Tensor Image(const at::Tensor& x) const {
    const int64_t p = config_.patch;
    return x.view({x.size(0), config_.height / p, config_.width_pixels / p, p, p, config_.channels})
        .permute({0, 5, 1, 3, 2, 4})
        .reshape({x.size(0), config_.channels, config_.height, config_.width_pixels});
  }
  at::Tensor Positions() const {
    const int64_t side = config_.height / config_.patch;
    const int64_t quarter = config_.width / 4;
    at::Tensor table = at::empty({1, side * side, config_.width});
    for (int64_t token = 0; token < side * side; ++token) {
      for (int64_t i = 0; i < quarter; ++i) {
        const double omega = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(quarter));
        const double column = static_cast<double>(token % side) * omega;
        const double row = static_cast<double>(token / side) * omega;
        table[0][token][i] = std::sin(column);
        table[0][token][quarter + i] = std::cos(column);
        table[0][token][2 * quarter + i] = std::sin(row);
        table[0][token][3 * quarter + i] = std::cos(row);
      }
    }
    return table;
  }

  const model::DitConfig config_;
  // Computed once: values that are equal in every step.
  const at::Tensor positions_;
  const at::Tensor frequencies_;
  Parameters parameters_;
};

}  // namespace atl::trainer
