#include "router/engine/local_backend.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/dit.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

// Answers as floats, row after row. LibTorch's exceptions end here.
absl::Status RunNetwork(const model::LoadedModel& network, const Rows& rows, bool as_probabilities,
                        std::vector<float>* out) {
  try {
    const c10::InferenceMode inference;
    const model::DitConfig& config = network.config;
    // from_blob does not write; the rows stay untouched.
    const at::Tensor x = at::from_blob(const_cast<float*>(rows.x.data()),
                                       {rows.count, config.channels, config.height, config.width_pixels}, at::kFloat);
    const at::Tensor t = at::from_blob(const_cast<float*>(rows.t.data()), {rows.count}, at::kFloat);
    const at::Tensor classes = at::from_blob(const_cast<int64_t*>(rows.classes.data()), {rows.count}, at::kLong);
    at::Tensor estimate;
    if (!rows.estimate.empty()) {
      estimate = at::from_blob(const_cast<float*>(rows.estimate.data()), x.sizes(), at::kFloat);
    }
    at::Tensor answer = model::RunModel(network.layers, x, t, classes, estimate).to(at::kFloat);
    if (as_probabilities) answer = at::softmax(answer, -1);
    answer = answer.contiguous();
    const float* data = answer.const_data_ptr<float>();
    out->assign(data, data + answer.numel());
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return MakeError(absl::StatusCode::kInternal, "NETWORK_FAILED",
                     fmt::format("evaluating {} rows: {}", rows.count, e.what()));
  }
}

class LocalBackend : public ModelBackend {
 public:
  LocalBackend(SamplerInfo info, Networks networks, ComputePool* pool)
      : info_(std::move(info)), networks_(std::move(networks)), pool_(pool) {}

  const SamplerInfo& info() const override { return info_; }

  void ComputePosteriors(std::span<PosteriorBatch> batches) override {
    pool_->RunAll(batches.size(), [&](size_t i) {
      batches[i].status =
          RunNetwork(networks_.router, batches[i].rows, /*as_probabilities=*/true, &batches[i].posterior);
    });
  }

  void ComputeVelocities(std::span<VelocityBatch> batches) override {
    pool_->RunAll(batches.size(), [&](size_t i) {
      batches[i].status = RunNetwork(networks_.experts[batches[i].expert], batches[i].rows, /*as_probabilities=*/false,
                                     &batches[i].velocity);
    });
  }

 private:
  const SamplerInfo info_;
  const Networks networks_;
  ComputePool* const pool_;
};

absl::Status CheckConfig(const SamplerInfo& info, const model::DitConfig& config, int64_t outputs,
                         const std::string& name) {
  const auto describe = [](int64_t channels, int64_t height, int64_t width, int64_t classes, int64_t heads,
                           bool self_conditioning) {
    return fmt::format("{}x{}x{} images, {} classes, {} outputs{}", channels, height, width, classes, heads,
                       self_conditioning ? ", self-conditioned" : "");
  };
  // The router network sees no estimate.
  const std::string expected =
      describe(info.channels, info.height, info.width, info.classes, outputs, outputs == 0 && info.self_conditioning);
  const std::string found = describe(config.channels, config.height, config.width_pixels, config.classes,
                                     config.outputs, config.self_conditioning);
  if (expected == found) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "MODEL_MISMATCH",
                   fmt::format("{} of model '{}' version '{}': expected {}, found {}", name, info.model, info.version,
                               expected, found));
}

bool AllFinite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

// One noisy, one half noised and one nearly clean row through every network, with a class and without; a
// self-conditioned expert is shown the first one without an estimate.
absl::Status Probe(ModelBackend* backend) {
  const SamplerInfo& info = backend->info();
  Rows rows{.count = 3, .t = {1.0f, 0.5f, 0.05f}};
  rows.x.resize(rows.count * info.pixels());
  CounterRandom(/*seed=*/0, RandomPurpose::kSampleNoise, /*step=*/0, /*sample=*/0).Normal(rows.x);
  rows.classes = {0, info.classes, info.classes};
  std::vector<PosteriorBatch> router(1);
  router[0].rows = rows;
  backend->ComputePosteriors(router);
  ATOLL_RETURN_IF_ERROR(router[0].status);
  if (info.self_conditioning) {
    rows.estimate = rows.x;
    std::fill_n(rows.estimate.begin(), info.pixels(), 0.0f);
  }
  std::vector<VelocityBatch> experts(info.experts);
  for (int32_t expert = 0; expert < info.experts; ++expert) {
    experts[expert].expert = expert;
    experts[expert].rows = rows;
  }
  backend->ComputeVelocities(experts);
  const auto damaged = [&](const std::string& name) {
    return MakeError(
        absl::StatusCode::kDataLoss, "NON_FINITE_OUTPUT",
        fmt::format("{} of model '{}' version '{}': expected finite answers to a probe, found some that are not", name,
                    info.model, info.version));
  };
  if (!AllFinite(router[0].posterior)) return damaged("the router network");
  for (const VelocityBatch& batch : experts) {
    ATOLL_RETURN_IF_ERROR(batch.status);
    if (!AllFinite(batch.velocity)) return damaged(fmt::format("expert {}", batch.expert));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelBackend>> MakeLocalBackend(SamplerInfo info, Networks networks, ComputePool* pool) {
  if (networks.experts.size() != static_cast<size_t>(info.experts)) {
    return MakeError(absl::StatusCode::kDataLoss, "MODEL_MISMATCH",
                     fmt::format("model '{}' version '{}': expected {} experts, found {}", info.model, info.version,
                                 info.experts, networks.experts.size()));
  }
  for (size_t expert = 0; expert < networks.experts.size(); ++expert) {
    ATOLL_RETURN_IF_ERROR(
        CheckConfig(info, networks.experts[expert].config, /*outputs=*/0, fmt::format("expert {}", expert)));
  }
  ATOLL_RETURN_IF_ERROR(CheckConfig(info, networks.router.config, info.experts, "the router network"));
  auto backend = std::make_unique<LocalBackend>(std::move(info), std::move(networks), pool);
  ATOLL_RETURN_IF_ERROR(Probe(backend.get()));
  return backend;
}

}  // namespace atl::router
